//! Probes of a replica: one exchange over UDP or TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::UdpSocket;
use viaduct_proto::trickles::crypt::ClientCrypt;
use viaduct_proto::trickles::probe::Probe;
use viaduct_sys::random::random;

use super::config::{Check, Kind};
use crate::random::entropy;
use crate::tcp_probe;

/// Maximum length of a datagram that is read, in bytes.
const MAX_DATAGRAM: usize = 2_048;
/// `User-Agent` in requests over HTTP.
const AGENT: &str = "viaduct-spray";

/// Probes the replica at `ip`. The caller limits the time. Errors: the reason of the failure.
pub async fn probe(check: &Check, ip: IpAddr) -> Result<(), String> {
    let to = SocketAddr::new(ip, check.port);
    let said = match check.by {
        Kind::Trickles => trickles(check, to).await,
        Kind::Tcp => tcp_probe::connect(to, &[]).await,
        Kind::Http => tcp_probe::http(to, &[], &check.path, AGENT).await,
    };
    said.map_err(|error| tcp_probe::reason(&error))
}

async fn trickles(check: &Check, to: SocketAddr) -> io::Result<()> {
    let any: IpAddr = match to.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // A connected socket receives only the replica's datagrams, and reports ICMP errors.
    socket.connect(to).await?;
    let crypt = check.key.map(|server| ClientCrypt::new(server, entropy()));
    let mut probe = Probe::new(u64::from_ne_bytes(random()?), crypt);
    let datagram = probe.datagram().ok_or_else(|| io::Error::other("no handshake is possible"))?;
    socket.send(&datagram).await?;
    let mut answer = [0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await?;
        if probe.is_answer(&answer[..length]) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use viaduct_proto::health::Timing;

    fn check(by: Kind, port: u16) -> Check {
        Check { by, port, path: "/up".to_owned(), key: None, timing: Timing::default() }
    }

    #[tokio::test]
    async fn a_check_by_http_requests_its_path_and_checks_the_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            for status in
                ["HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.0 503 Gone\r\n\r\n", "SSH-2.0-x\r\n.."]
            {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut request = [0; 512];
                let length = client.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"HEAD /up HTTP/1.1\r\n"));
                client.write_all(status.as_bytes()).await.unwrap();
            }
        };
        let ip = IpAddr::from([127, 0, 0, 1]);
        let http = check(Kind::Http, port);
        let (_, said) = tokio::join!(server, async {
            [probe(&http, ip).await, probe(&http, ip).await, probe(&http, ip).await]
        });
        let no = |what: &str| Err(what.to_owned());
        assert_eq!(said, [Ok(()), no("status 503"), no("the answer is not HTTP")]);
        assert_eq!(probe(&check(Kind::Tcp, port), ip).await, Ok(()));
        drop(listener);
        for by in [Kind::Tcp, Kind::Http, Kind::Trickles] {
            assert_eq!(probe(&check(by, port), ip).await, no("connection refused"), "{by:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_not_trickles_is_ignored() {
        let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = other.local_addr().unwrap().port();
        let echo = async {
            let mut buffer = [0; MAX_DATAGRAM];
            let (length, from) = other.recv_from(&mut buffer).await.unwrap();
            other.send_to(&buffer[..length], from).await.unwrap();
        };
        let trickles = check(Kind::Trickles, port);
        let asked = probe(&trickles, IpAddr::from([127, 0, 0, 1]));
        let waited = tokio::time::timeout(Duration::from_millis(50), asked);
        assert!(tokio::join!(echo, waited).1.is_err());
    }
}
