//! UDP stream with NAK-based recovery. The receiver drops bursts, as an overloaded host does, and
//! recovers the packets from the packet cache of its own gateway, or from the sender if the cache
//! does not have them.
//!
//! ```text
//!   sender ══ DATA 1, 2, 3 … ══▶ WAN ══▶ gateway ══▶ receiver (drops 41 to 50)
//!      ▲                                    ▲ └── DATA 41 … 50 ──▶ │
//!      │                                    └──── VDC1 query ──────┤  a LAN round trip
//!      └──────────────── NAK, only if the query failed ────────────┘  a WAN round trip
//! ```
//!
//! Run `nak-receiver receive 7000 --cache 10.2.1.1:7401` at one site, and then `nak-receiver send
//! 10.2.1.2:7000` at the other.
//!
//! A packet is `DATA` (`MORE` if it is a retransmission), its number and the total number of
//! packets (32 bits each, big endian), and padding. A NAK is `NAK1` and the missing numbers.

use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PACKETS: u32 = 2_000;
const SIZE: usize = 1_000;
const EVERY: Duration = Duration::from_micros(1_000);
/// Number of consecutive packets that the receiver drops ...
const BURST: u32 = 10;
/// ... in each period of this many packets.
const PERIOD: u32 = 200;
/// Time within which the cache must answer before the sender is asked: many LAN round trips.
const CACHE_TIMEOUT: Duration = Duration::from_millis(30);
/// Time after which the receiver asks the sender again: more than a WAN round trip.
const SENDER_TIMEOUT: Duration = Duration::from_millis(400);
/// Silence after which the sender and the receiver give up.
const SILENCE: Duration = Duration::from_secs(2);
/// Maximum number of packet numbers in one query or NAK.
const MAX_NUMBERS: usize = 64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["send", to] => send(to),
        ["receive", port] => receive(port, None),
        ["receive", port, "--cache", cache] => receive(port, Some(cache)),
        _ => Err("usage: nak-receiver send HOST:PORT | receive PORT [--cache HOST:PORT]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nak-receiver: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends the stream, and retransmits the packets that NAKs name, until [`SILENCE`] has passed.
fn send(to: &str) -> Result<()> {
    let to: SocketAddr = to.parse()?;
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    let start = Instant::now();
    let (mut next, mut heard, mut again) = (1, Instant::now(), 0);
    while next <= PACKETS || heard.elapsed() < SILENCE {
        // Send all packets that are due, because the kernel's shortest wait may be several times
        // `EVERY`.
        while next <= PACKETS && start.elapsed() >= EVERY * next {
            socket.send(&packet(b"DATA", next))?;
            (next, heard) = (next + 1, Instant::now());
        }
        socket.set_read_timeout(Some(EVERY / 2))?;
        let mut nak = [0; 2_048];
        let Ok(len) = socket.recv(&mut nak) else { continue };
        let Some(list) = nak[..len].strip_prefix(b"NAK1") else { continue };
        for number in list.chunks_exact(4).map(read_number).filter(|&n| n < next) {
            socket.send(&packet(b"MORE", number))?;
            (heard, again) = (Instant::now(), again + 1);
        }
    }
    println!("sent {PACKETS} packets, and retransmitted {again}");
    Ok(())
}

fn packet(kind: &[u8; 4], number: u32) -> Vec<u8> {
    let mut packet = [&kind[..], &number.to_be_bytes(), &PACKETS.to_be_bytes()].concat();
    packet.resize(SIZE, number as u8);
    packet
}

fn read_number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

/// Receiver of the stream.
struct Receiver {
    socket: UdpSocket,
    port: u16,
    cache: Option<SocketAddr>,
    seen: Seen,
}

/// Packets received, dropped and missing.
#[derive(Default)]
struct Seen {
    sender: Option<SocketAddr>,
    highest: u32,
    total: u32,
    dropped: HashSet<u32>,
    /// Missing packets by number: the time at which each was found missing, and the time to ask the
    /// sender.
    missing: BTreeMap<u32, (Instant, Instant)>,
    by_cache: Vec<Duration>,
    by_sender: Vec<Duration>,
}

fn receive(port: &str, cache: Option<&str>) -> Result<()> {
    let port: u16 = port.parse()?;
    let cache = cache.map(str::parse).transpose()?;
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let mut receiver = Receiver { socket, port, cache, seen: Seen::default() };
    receiver.run()?;
    receiver.report()
}

impl Seen {
    fn all(&self) -> bool {
        self.sender.is_some() && self.highest == self.total && self.missing.is_empty()
    }
}

impl Receiver {
    fn run(&mut self) -> Result<()> {
        let mut heard = Instant::now();
        // The sender may be started later, so the wait for the first packet is longer.
        let timeout = |r: &Self| if r.seen.sender.is_none() { 30 * SILENCE } else { SILENCE };
        while !self.seen.all() && heard.elapsed() < timeout(self) {
            self.socket.set_read_timeout(Some(Duration::from_millis(5)))?;
            let mut bytes = [0; 2_048];
            if let Ok((len, from)) = self.socket.recv_from(&mut bytes) {
                heard = Instant::now();
                self.take(&bytes[..len], from)?;
            }
            self.ask_sender()?;
        }
        Ok(())
    }

    fn take(&mut self, datagram: &[u8], from: SocketAddr) -> Result<()> {
        let Some((kind, rest)) = datagram.split_first_chunk::<4>() else { return Ok(()) };
        // Other datagrams, such as the cache's own answer with the number found, are ignored.
        if !matches!(kind, b"DATA" | b"MORE") || rest.len() < 8 {
            return Ok(());
        }
        let (number, total) = (read_number(&rest[..4]), read_number(&rest[4..8]));
        // Each packet of a burst is dropped once.
        if number % PERIOD >= PERIOD - BURST && number < total && self.seen.dropped.insert(number) {
            return Ok(());
        }
        (self.seen.sender, self.seen.total) = (Some(from), total);
        if let Some((since, _)) = self.seen.missing.remove(&number) {
            let took = since.elapsed();
            let again = kind == b"MORE";
            let path = if again { "sender" } else { "cache" };
            println!("packet {number:>5}  {path:<6}  {:>7.2} ms", took.as_secs_f64() * 1e3);
            if again { &mut self.seen.by_sender } else { &mut self.seen.by_cache }.push(took);
        }
        if number > self.seen.highest {
            let gap: Vec<u32> = (self.seen.highest + 1..number).collect();
            self.seen.highest = number;
            self.miss(&gap)?;
        }
        Ok(())
    }

    /// Records missing packets and asks the cache for them.
    fn miss(&mut self, gap: &[u32]) -> Result<()> {
        let now = Instant::now();
        let ask_again = if self.cache.is_some() { now + CACHE_TIMEOUT } else { now };
        self.seen.missing.extend(gap.iter().map(|&n| (n, (now, ask_again))));
        let Some(cache) = self.cache else { return Ok(()) };
        for numbers in gap.chunks(MAX_NUMBERS) {
            // Protocol UDP (17 = 0x11), patterns of 8 bytes. A pattern is compared at offset 8,
            // after the UDP header.
            let mut query = [&b"VDC1\x11\x08"[..], &self.port.to_be_bytes(), &[0, 8]].concat();
            for number in numbers {
                query.extend([&b"DATA"[..], &number.to_be_bytes()].concat());
            }
            self.socket.send_to(&query, cache)?;
        }
        Ok(())
    }

    /// Asks the sender for packets that the cache has not delivered, and again for overdue packets.
    fn ask_sender(&mut self) -> Result<()> {
        let (Some(sender), now) = (self.seen.sender, Instant::now()) else { return Ok(()) };
        let mut nak = b"NAK1".to_vec();
        let due = self.seen.missing.iter_mut().filter(|(_, (_, ask))| *ask <= now);
        for (number, (_, ask)) in due.take(MAX_NUMBERS) {
            *ask = now + SENDER_TIMEOUT;
            nak.extend(number.to_be_bytes());
        }
        if nak.len() > 4 {
            self.socket.send_to(&nak, sender)?;
        }
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        for (path, times) in
            [("cache", &mut self.seen.by_cache), ("sender", &mut self.seen.by_sender)]
        {
            times.sort();
            let median = times.get(times.len() / 2).map_or(0.0, |t| t.as_secs_f64() * 1e3);
            println!("from the {path}: {} packets, median {median:.2} ms", times.len());
        }
        let (seen, left) = (&self.seen, self.seen.missing.len());
        let ended =
            || format!("ended at packet {}; {left} packets never arrived", seen.highest).into();
        seen.all().then_some(()).ok_or_else(ended)
    }
}
