//! Many packets or datagrams per system call, received into and sent from one buffer.
//!
//! ```text
//!   socket ── recvmmsg ──▶ Inbox   [ bytes | from | to | checksum? ] ...
//!   socket ◀─ sendmmsg ─── Outbox  [ bytes | to | from ] ...
//! ```
//!
//! Unlike [`crate::socket::udp::UdpBatch`], an inbox reports the local address of a datagram, and
//! an outbox sends each datagram from a given address. Both also work with packet and raw sockets.
//! The sender of outboxes and of `UdpBatch` (`sender`) lets the kernel segment one message into
//! several datagrams (`run`), which needs a fraction of the time of one message per datagram.

mod inbox;
mod outbox;
mod run;
mod sender;

pub use inbox::{Inbox, Received, report_checksum, report_destination};
pub use outbox::{Outbox, path_mtu};
pub(crate) use sender::{BatchSender, Datagram};

/// Max messages in one call.
const BATCH: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn replies_are_sent_from_the_address_that_received_the_datagram() {
        for (any, ip) in [("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "::1")] {
            let server = UdpSocket::bind(any).unwrap();
            let ip: IpAddr = ip.parse().unwrap();
            report_destination(server.as_fd(), ip.is_ipv4()).unwrap();
            let to = SocketAddr::new(ip, server.local_addr().unwrap().port());
            let client = UdpSocket::bind(any).unwrap();
            let mut outbox = Outbox::default();
            for n in 0..100_u8 {
                outbox.push(&[n; 30], to, None);
            }
            assert!(outbox.is_full());
            assert_eq!(outbox.flush(client.as_fd()).sent, 100);
            let (mut inbox, mut seen) = (Inbox::new(20), 0);
            while inbox.receive(server.as_fd()).unwrap() > 0 {
                for got in inbox.iter() {
                    assert_eq!((got.bytes, got.length, got.to), (&[seen; 20][..], 30, Some(ip)));
                    outbox.push(&[seen], got.from.unwrap(), got.to);
                    seen += 1;
                }
            }
            assert_eq!((seen, outbox.flush(server.as_fd()).sent), (100, 100));
            assert_eq!(client.recv_from(&mut [0; 9]).unwrap(), (1, to));
        }
    }

    #[test]
    fn consecutive_datagrams_to_one_peer_are_one_message_and_arrive_separately() {
        for (any, ip) in [("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "::1")] {
            let (server, client) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            let ip: IpAddr = ip.parse().unwrap();
            let to = SocketAddr::new(ip, client.local_addr().unwrap().port());
            let other =
                SocketAddr::new(ip, UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port());
            let mut outbox = Outbox::of_datagrams();
            let lengths = [700, 700, 700, 20, 700, 700, 0, 5];
            for (n, length) in lengths.into_iter().enumerate() {
                outbox.push(&vec![n as u8; length], to, Some(ip));
            }
            outbox.push(&[9; 5], other, Some(ip));
            assert_eq!(outbox.flush(server.as_fd()).sent, 9);
            let mut bytes = [0; 2_000];
            for (n, length) in lengths.into_iter().enumerate() {
                let (got, from) = client.recv_from(&mut bytes).unwrap();
                assert_eq!((got, from.ip()), (length, ip));
                assert!(bytes[..got].iter().all(|byte| *byte == n as u8));
            }
        }
    }

    #[test]
    fn the_destination_of_a_too_long_message_is_reported_and_the_rest_is_sent() {
        let (server, client) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = server.local_addr().unwrap();
        let mut outbox = Outbox::default();
        for length in [10, 65_600, 20] {
            outbox.push(&vec![1; length], to, None);
        }
        let report = outbox.flush(client.as_fd());
        assert_eq!((report.sent, report.too_long), (2, 1));
        assert_eq!(outbox.too_long(), [to.ip()]);
        assert_eq!(path_mtu(to.ip()).unwrap(), 65_535, "the longest IP packet");
    }
}
