//! Packets of the flood: random bytes, and packets that are correct except for one property.
//!
//! | form | rejected by |
//! |---|---|
//! | random bytes after an IP header with protocol TCP | the tap's filter |
//! | a plain SYN | the tap's filter; the kernel's TCP answers it |
//! | correct sequence numbers, Trickles option, checksum; random bytes as message | the parser |
//! | a complete request for a server with another secret of the same number | authentication code |
//! | the two message forms over UDP | the same |

use std::net::SocketAddrV4;

use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::api::{Endpoint, Files, Minisocket, Reply};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::packet::{Numbers, Return, Role, tcp, udp};
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Server, Settings};
use viaduct_proto::trickles::standard::{MAIN, Place, Valid};
use viaduct_proto::trickles::stream::{Config, Stream};
use viaduct_proto::wire::ip::internet_checksum;

use crate::experiments::prelude::*;
use crate::flood::unused_address;

/// MTU of Ethernet.
const MTU: usize = 1500;
/// Maximum length of a message of random bytes.
const LONGEST: u64 = 1400;
/// Bytes of output that the complete requests ask for.
const OUTPUT: u64 = 400_000;

/// Builds `count` packets to `to` of all forms in turn, each from a different address; complete
/// requests carry the secret's `number`.
pub(super) fn of_all_forms(
    to: SocketAddrV4,
    number: u8,
    count: usize,
    seed: u64,
) -> Result<Vec<Vec<u8>>> {
    let mut rng = Rng::from_seed(seed);
    let near = requests_of_others(number, seed)?;
    let mut made = Vec::with_capacity(count);
    for n in 0..count {
        let from = unused_address(&mut rng);
        let near = &near[rng.below(near.len() as u64) as usize];
        made.push(match n % 8 {
            0 => ip(from, to, 6, &noise(&mut rng)),
            1 => plain_syn(from, to, &mut rng),
            2 => marked(from, to, &noise(&mut rng), &mut rng)?,
            3..=5 => marked(from, to, near, &mut rng)?,
            6 => datagram(from, to, &noise(&mut rng)),
            _ => datagram(from, to, near),
        });
    }
    Ok(made)
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; 20 + rng.below(LONGEST - 20) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Builds a message in TCP's format for an open connection.
fn marked(from: SocketAddrV4, to: SocketAddrV4, message: &[u8], rng: &mut Rng) -> Result<Vec<u8>> {
    let mut numbers = Numbers::new(from.into(), to.into(), rng.next_u64() as u32);
    let mut packet = Vec::new();
    numbers.request(&[1], 1, MTU, &mut packet)?;
    let mut opening = Return::of(&segment(&packet)?).context("cannot answer the SYN")?;
    opening.answer(&[1], MTU, &mut packet)?;
    numbers.handle_answer(&segment(&packet)?, 1);
    numbers.request(message, 1000, MTU, &mut packet)?;
    Ok(packet)
}

fn segment(packet: &[u8]) -> Result<tcp::Segment> {
    match tcp::parse(packet, packet.len(), tcp::Checksum::Check) {
        Ok(tcp::Packet::Message(segment, _)) => Ok(segment),
        other => bail!("a generated packet is parsed as {other:?}"),
    }
}

fn plain_syn(from: SocketAddrV4, to: SocketAddrV4, rng: &mut Rng) -> Vec<u8> {
    let mut segment = [0; 20];
    segment[..2].copy_from_slice(&from.port().to_be_bytes());
    segment[2..4].copy_from_slice(&to.port().to_be_bytes());
    segment[4..8].copy_from_slice(&(rng.next_u64() as u32).to_be_bytes());
    segment[12..16].copy_from_slice(&[5 << 4, 2, 0xff, 0xff]);
    let (source, destination) = (from.ip().octets(), to.ip().octets());
    let sum = internet_checksum(&[&source[..], &destination, &[0, 6, 0, 20], &segment].concat());
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ip(from, to, 6, &segment)
}

fn datagram(from: SocketAddrV4, to: SocketAddrV4, message: &[u8]) -> Vec<u8> {
    let length = (8 + udp::HEAD + message.len()) as u16;
    let ports = [from.port(), to.port(), length, 0].map(u16::to_be_bytes);
    ip(from, to, 17, &[ports.as_flattened(), &udp::head(Role::Request, 0), message].concat())
}

fn ip(from: SocketAddrV4, to: SocketAddrV4, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 60, protocol, 0, 0];
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    let length = (packet.len() + payload.len()) as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = internet_checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

struct NoFiles;

impl Files for NoFiles {
    fn read(&mut self, _: u64, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

/// Builds requests of a transfer from another server, whose secret has the same number but other
/// bytes.
fn requests_of_others(number: u8, seed: u64) -> Result<Vec<Vec<u8>>> {
    let client: SocketAddr = "198.18.0.1:1024".parse()?;
    let (mut now, to) = (Instant::ZERO, Return::of_datagram(client, "198.18.0.2:80".parse()?));
    let secret = [seed as u8 ^ 0x5a; 32];
    let replay = Replay::new(1 << 16, Duration::from_secs(30), [seed; 4], now);
    let server = Server::new(Settings::default(), KeyRing::new(number, &secret), replay);
    let mut server = Endpoint::new(server, 0);
    let mut client = Stream::open(Config::default(), seed, now);
    client.write(MAIN, b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n");
    client.shutdown(MAIN);
    let mut requests = Vec::new();
    for _ in 0..40 {
        now += Duration::from_millis(1);
        let mut answers = Vec::new();
        while let Some(request) = client.poll_transmit(now) {
            if let Ok(event) = server.accept(now, to, &request) {
                let reply = promise(&server, &event);
                let keep = |_: &mut Return, message: &[u8]| answers.push(message.to_vec());
                server.send(event, &reply, &mut NoFiles, keep);
            }
            requests.push(request);
        }
        answers.iter().for_each(|answer| client.handle(now, answer));
    }
    // The first two requests, an open and an echo, contain no continuation. The authentication
    // codes of the other requests are wrong for the server under attack.
    ensure!(requests.len() > 16, "the transfer produced only {} requests", requests.len());
    Ok(requests.split_off(2))
}

/// Replies to each request with an announcement of output that never arrives.
fn promise(server: &Endpoint, event: &Minisocket<'_>) -> Reply {
    let mut reply = Reply::default();
    for input in event.inputs(server.ring()).flatten() {
        let Place { stream, start, .. } = input.place;
        let valid = Valid { stream, start, end: start + OUTPUT, last: true, leave: 0 };
        reply.closed(stream, input.bytes.len() as u64).output(valid, [0; 24]);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_requests_are_parsed_and_none_is_answered() {
        let to = "10.1.0.2:80".parse().unwrap();
        let packets = of_all_forms(to, 7, 400, 1).unwrap();
        let now = Instant::ZERO + Duration::from_secs(9);
        let replay = Replay::new(1 << 16, Duration::from_secs(30), [3; 4], now);
        let ring = KeyRing::new(7, &[1; 32]);
        let mut server = Server::new(Settings::default(), ring, replay);
        let mut read = 0;
        for packet in &packets {
            let parsed = tcp::parse(packet, packet.len(), tcp::Checksum::Check);
            if let Ok(tcp::Packet::Message(segment, message)) = parsed {
                read += 1;
                assert!(server.handle(now, segment.source, message).is_err());
            }
        }
        assert_eq!(read, 200);
        assert!(server.stats().invalid >= 150, "{:?}", server.stats());
    }
}
