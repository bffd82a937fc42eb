//! Host sockets: UDP sockets in the host's network namespace, one for each port that programs'
//! sockets have in the capture namespace.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use viaduct_sys::socket::error_queue::enable_error_queue;
use viaduct_sys::socket::hop_fields::{self, HopFields, enable_hop_fields};

/// Socket in the network namespace of this host.
#[derive(Clone, Debug)]
pub struct HostSocket {
    pub socket: Arc<UdpSocket>,
    /// The address to which the program has bound its socket.
    pub at: Bound,
    /// The port of the program's socket.
    pub port: u16,
}

/// An address to which a socket is bound.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    ip: IpAddr,
    /// True for an IPv6 socket that also carries IPv4.
    both: bool,
}

impl Bound {
    /// Returns the socket's own address for datagrams to `peer`, in the family of `peer`: the
    /// unspecified address if the socket is bound to all addresses.
    pub fn of(self, peer: IpAddr) -> IpAddr {
        match (peer, self.both) {
            (IpAddr::V4(_), true) => Ipv4Addr::UNSPECIFIED.into(),
            _ => self.ip,
        }
    }

    fn covers(self, own: IpAddr) -> bool {
        let any = |ip: IpAddr| ip.is_unspecified();
        self.ip == own || any(self.ip) && (self.both || self.ip.is_ipv4() == own.is_ipv4())
    }
}

impl HostSocket {
    /// Opens a host socket at `at` for a program's socket that is not bound. Errors: the port is in
    /// use.
    pub fn at(at: SocketAddr) -> io::Result<HostSocket> {
        let socket = open(at.is_ipv6())?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        HostSocket::bound(socket, at, false)
    }

    /// Opens a host socket at `at` with the options of `socket`, the program's socket. `v6` is true
    /// if the program's socket is an IPv6 socket. Errors, which the program gets: the address is in
    /// use, or does not belong to this host.
    pub fn like(socket: &OwnedFd, v6: bool, at: SocketAddr) -> io::Result<HostSocket> {
        let host_socket = open(at.is_ipv6())?;
        sockopt::set_socket_reuseaddr(&host_socket, sockopt::socket_reuseaddr(socket)?)?;
        sockopt::set_socket_reuseport(&host_socket, sockopt::socket_reuseport(socket)?)?;
        let mut both = false;
        if v6 && at.is_ipv6() {
            let alone = sockopt::ipv6_v6only(socket)?;
            sockopt::set_ipv6_v6only(&host_socket, alone)?;
            both = !alone && at.ip() == Ipv6Addr::UNSPECIFIED;
        }
        HostSocket::bound(host_socket, at, both)
    }

    fn bound(socket: OwnedFd, at: SocketAddr, both: bool) -> io::Result<HostSocket> {
        rustix::net::bind(&socket, &at)?;
        let socket = UdpSocket::from(socket);
        // In the capture namespace, the kernel checks whether the program has enabled broadcasts.
        socket.set_broadcast(true)?;
        enable_error_queue(&socket)?;
        enable_hop_fields(&socket)?;
        let port = socket.local_addr()?.port();
        let at = Bound { ip: at.ip(), both };
        Ok(HostSocket { socket: Arc::new(socket), at, port })
    }

    /// Returns the address to which the program has bound its socket, unless it is the unspecified
    /// address.
    pub fn address(&self) -> Option<IpAddr> {
        Some(self.at.ip).filter(|ip| !ip.is_unspecified())
    }

    /// Sends a datagram. Errors: the kernel's error for this datagram or for an earlier one.
    pub fn send(&self, bytes: &[u8], peer: SocketAddr, fields: HopFields) -> io::Result<()> {
        let to = match peer.ip() {
            IpAddr::V4(ip) if self.at.both => {
                SocketAddr::new(ip.to_ipv6_mapped().into(), peer.port())
            }
            _ => peer,
        };
        match fields == HopFields::default() {
            true => self.socket.send_to(bytes, to).map(drop),
            false => hop_fields::send_to(self.socket.as_fd(), bytes, to, fields),
        }
    }
}

/// Checks the route to `to`, from `from` if given, by connecting a UDP socket, which sends nothing.
/// Errors: the kernel's error, such as that there is no route.
pub fn probe(from: Option<IpAddr>, to: SocketAddr, broadcasts: bool) -> io::Result<()> {
    let socket = open(to.is_ipv6())?;
    sockopt::set_socket_broadcast(&socket, broadcasts)?;
    if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
        rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    }
    Ok(rustix::net::connect(&socket, &to)?)
}

fn open(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// All host sockets, by number.
#[derive(Debug, Default)]
pub struct HostSockets {
    pub list: HashMap<u64, HostSocket>,
    /// Numbers of the host sockets, by the ports of the programs' sockets.
    pub ports: HashMap<u16, Vec<u64>>,
    next: u64,
}

impl HostSockets {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds a socket under `number`.
    pub fn add(&mut self, number: u64, host_socket: HostSocket) {
        self.ports.entry(host_socket.port).or_default().push(number);
        self.list.insert(number, host_socket);
    }

    /// Finds the host socket for datagrams from `own`. A socket bound to that address is preferred
    /// to a socket bound to all addresses.
    pub fn find(&self, own: SocketAddr) -> Option<&HostSocket> {
        let numbers = self.ports.get(&own.port())?;
        let all = numbers.iter().filter_map(|number| self.list.get(number));
        let closeness =
            |of: &HostSocket| (of.at.ip == own.ip(), of.at.ip.is_ipv4() == own.is_ipv4());
        all.filter(|of| of.at.covers(own.ip())).max_by_key(|of| closeness(of))
    }

    /// Removes the host sockets of ports for which `stay` returns false.
    pub fn retain(&mut self, stay: impl Fn(u16) -> bool) {
        self.ports.retain(|port, _| stay(*port));
        let ports = &self.ports;
        self.list.retain(|_, host_socket| ports.contains_key(&host_socket.port));
    }
}
