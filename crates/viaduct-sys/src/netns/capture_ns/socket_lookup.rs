//! Look-up of a capture namespace's socket for a datagram (`sock_diag(7)`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::route::netlink::{self, Message, NLM_F_ACK};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `INET_DIAG_NOCOOKIE`: any socket.
const ANY: [u8; 8] = [0xff; 8];

/// Looks up UDP sockets of a capture namespace.
#[derive(Debug)]
pub struct SocketLookup(OwnedFd);

impl SocketLookup {
    /// Opens a netlink socket in the calling thread's network namespace. Errors: no descriptor is
    /// left.
    pub(super) fn open() -> io::Result<SocketLookup> {
        netlink::open(libc::NETLINK_SOCK_DIAG, 0).map(SocketLookup)
    }

    /// Wraps a socket that another process has opened.
    pub fn of(socket: OwnedFd) -> SocketLookup {
        SocketLookup(socket)
    }

    /// Returns whether a socket receives datagrams from `from` to `to`, two addresses of the same
    /// family. Errors: the netlink request fails.
    pub fn finds(&self, from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
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
        Ok(netlink::ask(&self.0, question, SOCK_DIAG_BY_FAMILY)?.is_some())
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
    fn sockets_are_found_by_what_they_receive() {
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
            drop(socket);
            assert!(!finds(), "{at}");
        }
    }
}
