//! Fake TCP of a gateway: its local ports, and the raw sockets that send its packets.
//!
//! ```text
//!   tap ─▶ FakeTcp::handle_packet ─▶ Plane           Plane ─▶ FakeTcp::send ─▶ raw socket
//!     ┊ the same packets ─▶ kernel: silent listeners, which answer nothing
//! ```
//!
//! The ports are held by listening sockets that drop every packet, so the kernel sends no resets.
//! Nothing else on the machine is changed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use viaduct_proto::fake_tcp::{FakeTcp, Ports};
use viaduct_proto::keys::Entropy;
use viaduct_proto::repair::wire::is_initiation;
use viaduct_proto::time::Instant;
use viaduct_proto::wire::ip::Header;
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::socket::mmsg::Outbox;
use viaduct_sys::socket::tcp::listen_silently;

use super::site::Site;
use super::snapshot::Shell;

/// Number of local ports for connections that this gateway opens.
const SOURCE_PORTS: usize = 8;

/// Fake TCP of a gateway.
pub struct FakeTcpPort {
    /// Connections.
    pub machine: FakeTcp,
    listen: SocketAddr,
    raw: RawSockets,
    /// Packets of IPv4 and of IPv6.
    outboxes: [Outbox; 2],
    listeners: Vec<TcpListener>,
}

impl FakeTcpPort {
    /// Opens the ports: that of `[site] listen`, and some for connections that this gateway opens.
    ///
    /// # Errors
    /// The port is in use by another program, or raw sockets are not allowed.
    pub fn open(site: &Site, entropy: Entropy, now: Instant) -> Result<FakeTcpPort> {
        let listen = site.config.listen;
        let taken = || format!("[site] listen: cannot use TCP {listen} for fake TCP");
        let mut listeners = vec![listen_silently(listen).with_context(taken)?];
        for _ in 0..SOURCE_PORTS {
            let listener = listen_silently(SocketAddr::new(listen.ip(), 0))
                .context("no free port for fake TCP")?;
            listeners.push(listener);
        }
        FakeTcpPort::with_listeners(site, entropy, now, listeners)
    }

    /// Uses the ports of `listeners`: first that of `[site] listen`, then those for connections
    /// that this gateway opens.
    ///
    /// # Errors
    /// There are too few listeners, or raw sockets are not allowed.
    pub fn with_listeners(
        site: &Site,
        entropy: Entropy,
        now: Instant,
        listeners: Vec<TcpListener>,
    ) -> Result<FakeTcpPort> {
        let listen = site.config.listen;
        let port = |listener: &TcpListener| Ok(listener.local_addr()?.port());
        let sources = listeners.iter().skip(1).map(port).collect::<Result<Vec<_>>>()?;
        ensure!(!sources.is_empty(), "fake TCP has no port for the connections that it opens");
        let raw = RawSockets::open().context("cannot open raw sockets for fake TCP")?;
        let ports = Ports { listen, sources, mtu: site.wan_mtu };
        let machine = FakeTcp::new(ports, entropy, now);
        Ok(FakeTcpPort { machine, listen, raw, outboxes: Default::default(), listeners })
    }

    /// Listeners, for the handover to a new process.
    pub fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// Local addresses at which packets arrive.
    ///
    /// # Errors
    /// The kernel does not report the address of a listener, which is not expected.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        self.listeners.iter().map(|listener| Ok(listener.local_addr()?)).collect()
    }

    /// Sends a datagram. An initiation opens a connection if there is none; any datagram replaces
    /// a stale connection of this gateway.
    pub fn send(&mut self, now: Instant, to: SocketAddr, datagram: &[u8]) {
        let opens = is_initiation(datagram) || self.machine.is_stale(now, to);
        let source = opens.then(|| self.source(to)).flatten();
        self.machine.send(now, to, source, datagram);
    }

    /// Sends the packets that are due.
    pub fn flush(&mut self, shell: &mut Shell) {
        if self.machine.transmits().len() == 0 {
            return;
        }
        for packet in self.machine.transmits() {
            let Ok(header) = Header::parse(packet) else { continue };
            let to = SocketAddr::new(header.destination, 0);
            self.outboxes[usize::from(to.is_ipv6())].push(packet, to, None);
        }
        self.machine.clear_transmits();
        for (outbox, is_ipv4) in self.outboxes.iter_mut().zip([true, false]) {
            match self.raw.socket(is_ipv4) {
                Some(socket) if !outbox.is_empty() => shell.sent(outbox.flush(socket)),
                Some(_) => {}
                None => outbox.forget(|_| true),
            }
        }
    }

    /// Address of this machine for packets to `to`; `None` if there is no route.
    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        if !self.listen.ip().is_unspecified() {
            return Some(self.listen.ip());
        }
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    }
}
