//! Look-up of the socket that receives a datagram (`sock_diag(7)`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::route::netlink::{self, Message, NLM_F_ACK};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `INET_DIAG_NOCOOKIE`: any socket.
const ANY: [u8; 8] = [0xff; 8];
/// Offset of the user ID in `struct inet_diag_msg`.
const USER: usize = 64;

/// Looks up UDP sockets of one network namespace.
#[derive(Debug)]
pub struct SocketLookup(OwnedFd);

impl SocketLookup {
    /// Opens a netlink socket in the calling thread's network namespace. Errors: no descriptor is
    /// left.
    pub fn open() -> io::Result<SocketLookup> {
        netlink::open(libc::NETLINK_SOCK_DIAG, 0).map(SocketLookup)
    }

    /// Wraps a socket that another process has opened.
    pub fn of(socket: OwnedFd) -> SocketLookup {
        SocketLookup(socket)
    }

    /// Returns whether a socket receives datagrams from `from` to `to`, two addresses of the same
    /// family. Errors: the netlink request fails.
    pub fn finds(&self, from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
        Ok(self.message(from, to)?.is_some())
    }

    /// Returns the ID of the user that opened the socket that receives datagrams from `from` to
    /// `to`, two addresses of the same family; `None` if there is no such socket. Errors: the
    /// netlink request fails.
    pub fn owner(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Option<u32>> {
        let message = self.message(from, to)?;
        let user = message.as_ref().and_then(|message| message.get(USER..)?.first_chunk());
        Ok(user.map(|user| u32::from_ne_bytes(*user)))
    }

    /// Returns the kernel's description of the socket that receives these datagrams; `None` if
    /// there is no such socket.
    fn message(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Option<Vec<u8>>> {
        let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // `struct inet_diag_req_v2`: family, protocol, extensions, padding, states; then source and
        // destination of the datagram, an interface and a cookie.
        let mut head = vec![family as u8, libc::IPPROTO_UDP as u8, 0, 0];
        head.extend(u32::MAX.to_ne_bytes());
        head.extend(from.port().to_be_bytes());
        head.extend(to.port().to_be_bytes());
        for end in [from, to] {
            let mut address = match end.ip() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            address.resize(16, 0);
            head.extend(address);
        }
        head.extend(0u32.to_ne_bytes());
        head.extend(ANY);
        let question = Message::with_head(SOCK_DIAG_BY_FAMILY, NLM_F_ACK, &head);
        netlink::ask(&self.0, question, SOCK_DIAG_BY_FAMILY)
    }
}

impl AsFd for SocketLookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn sockets_are_found_by_the_datagrams_that_they_receive() {
        let lookup = SocketLookup::open().unwrap();
        for (at, from, to) in [
            ("127.0.0.1:0", "127.0.0.1:9", "127.0.0.1"),
            ("0.0.0.0:0", "192.0.2.1:9", "127.0.0.1"),
            ("[::1]:0", "[::1]:9", "::1"),
            ("[::]:0", "192.0.2.1:9", "127.0.0.1"),
        ] {
            let socket = UdpSocket::bind(at).unwrap();
            let to = SocketAddr::new(to.parse().unwrap(), socket.local_addr().unwrap().port());
            let finds = || lookup.finds(from.parse().unwrap(), to).unwrap();
            assert!(finds(), "{at}");
            let user = rustix::process::getuid().as_raw();
            assert_eq!(lookup.owner(from.parse().unwrap(), to).unwrap(), Some(user), "{at}");
            drop(socket);
            assert!(!finds(), "{at}");
        }
    }
}
