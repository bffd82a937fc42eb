//! Thousands of Trickles clients in one thread: the project's client state machines over a TUN
//! device, each with its own address and port. No kernel answers for these addresses. The TUN
//! device is in the host of the TCP clients, which forwards, so that both use the same path.
//!
//! ```text
//!   Stream, Numbers  ─┐ TCP's format, or in UDP
//!   Stream, Numbers  ─┼─▶ trickles0 ─┐
//!   …                ─┘ 10.1.128.0/17├─ a1 ── gwa ══ … ══ server
//!   clients of TCP ── a1's sockets ──┘
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::continuation::{Continuation, LOSS};
use viaduct_proto::trickles::packet::tcp::{self, Checksum, Packet};
use viaduct_proto::trickles::packet::{Format, Numbers, Room, TooLong, udp};
use viaduct_proto::trickles::stream::{Config, Stream};
use viaduct_proto::trickles::wire::response::{Form, HEAD, PAYLOAD_HEAD, Response};
use viaduct_sys::clock;
use viaduct_sys::route::tun::Tun;

use super::datagrams;
use crate::topology::{Dumbbell, TopologyError, open_tun};

/// Interface in the host.
const DEVICE: &str = "trickles0";
/// Network behind the interface: a part of side A's network, so that side B has a route to it.
const NETWORK: &str = "10.1.128.0/17";
/// Ports per address.
const PORTS: u32 = 50_000;
/// First of the ports of each address.
const FIRST_PORT: u32 = 10_000;
const MTU: usize = 1500;
/// Expected bytes of the answers to a request, for TCP's sequence numbers: an initial window.
const EXPECTED: u32 = 16 << 10;
/// Maximum packets read in a turn.
const BATCH: usize = 256;

/// Set of clients; not shared between threads.
pub struct Trickles {
    tun: Tun,
    to: SocketAddr,
    format: Format,
    rng: Rng,
    clients: HashMap<u32, Member>,
    next: u32,
    timers: BTreeSet<(Instant, u32)>,
    touched: BTreeSet<u32>,
    packet: Vec<u8>,
    stats: Counted,
    /// Recorded requests, and the maximum number to record.
    kept: (Vec<(SocketAddr, Vec<u8>)>, usize),
}

struct Member {
    stream: Stream,
    transport: Transport,
    due: Option<Instant>,
}

enum Transport {
    Tcp(Numbers),
    /// Address of the client, and the number of its next request.
    Udp(SocketAddr, u8),
}

impl Transport {
    fn new(format: Format, local: SocketAddr, to: SocketAddr, first: u32) -> Transport {
        match format {
            Format::Tcp => Transport::Tcp(Numbers::new(local, to, first)),
            Format::Udp => Transport::Udp(local, 0),
        }
    }

    fn local(&self) -> SocketAddr {
        match self {
            Transport::Tcp(numbers) => numbers.local(),
            Transport::Udp(local, _) => *local,
        }
    }

    /// Returns the maximum message lengths that fit into packets.
    fn room(&self) -> Room {
        match self {
            Transport::Tcp(numbers) => numbers.room(MTU),
            Transport::Udp(local, _) => {
                let room = MTU - udp::overhead(local.is_ipv4());
                Room { first: room, later: room }
            }
        }
    }

    fn request(
        &mut self,
        to: SocketAddr,
        message: &[u8],
        packet: &mut Vec<u8>,
    ) -> Result<(), TooLong> {
        let room = self.room().later;
        match self {
            Transport::Tcp(numbers) => numbers.request(message, EXPECTED, MTU, packet),
            Transport::Udp(..) if message.len() > room => {
                Err(TooLong { have: message.len(), room })
            }
            Transport::Udp(local, count) => {
                datagrams::emit((*local, to), *count, message, packet);
                *count = count.wrapping_add(1);
                Ok(())
            }
        }
    }
}

/// Counters of all clients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets and bytes sent, IP header included.
    pub sent: (u64, u64),
    /// Packets and bytes received.
    pub received: (u64, u64),
    /// Packets that the kernel had no room for.
    pub dropped: u64,
    /// Received packets that belong to no client or are not answers.
    pub refused: u64,
    /// Received transport continuations.
    pub continuations: Continuations,
}

/// Continuations by encoding, with their maximum length on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuations {
    /// Complete continuations.
    pub whole: u64,
    /// Maximum bytes of a complete continuation, not counting 12 for each loss in its list.
    pub longest_whole: usize,
    /// Delta-encoded continuations (section 5.3).
    pub deltas: u64,
    /// Maximum bytes of a delta.
    pub longest_delta: usize,
}

impl Continuations {
    /// Counts a message's continuation, whose length is the message's length without all other
    /// parts.
    fn count(&mut self, message: &[u8]) {
        let Ok(response) = Response::parse(message) else { return };
        let user = response.payload.user.len();
        let others = HEAD + PAYLOAD_HEAD - usize::from(user < 128) + user;
        let bytes = message.len().saturating_sub(others + response.payload.data.len());
        match response.form {
            Form::AddressToken(continuation) | Form::Fresh(continuation) => {
                let known = Continuation::peek(continuation);
                let losses = known.map_or(0, |(known, _)| known.losses.runs().len());
                self.whole += 1;
                self.longest_whole = self.longest_whole.max(bytes - LOSS * losses);
            }
            Form::Slim(_) => {
                self.deltas += 1;
                self.longest_delta = self.longest_delta.max(bytes);
            }
            Form::Half | Form::Again | Form::Group(_) => {}
        }
    }
}

impl Trickles {
    /// Opens the interface in host a1 of `world`, which is also the host of the kernel's TCP
    /// clients, so that both kinds of clients use the same path. The clients will connect to `to`.
    pub fn open(world: &Dumbbell, to: SocketAddr, seed: u64) -> Result<Trickles, TopologyError> {
        let (host, gateway) = (world.a1(), world.gateway_a());
        host.set_sysctls(&[("net/ipv4/conf/all/forwarding", "1")])?;
        gateway.ip(&[format!("route replace {NETWORK} via {}", host.v4())])?;
        let tun = open_tun(host, DEVICE, MTU as u32)?;
        host.ip(&[format!("link set {DEVICE} up"), format!("route add {NETWORK} dev {DEVICE}")])?;
        Ok(Trickles {
            tun,
            to,
            format: Format::Tcp,
            rng: Rng::from_seed(seed),
            clients: HashMap::new(),
            next: 0,
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            packet: Vec::new(),
            stats: Counted::default(),
            kept: (Vec::new(), 0),
        })
    }

    /// Sets the packet format of connections that are opened later; the default is TCP's format.
    #[must_use]
    pub fn by(self, format: Format) -> Trickles {
        Trickles { format, ..self }
    }

    /// Opens a connection; nothing is sent before [`Trickles::flush`] or [`Trickles::turn`].
    /// The connection number is never reused.
    pub fn connect(&mut self, config: Config) -> u32 {
        let client = self.next;
        self.next += 1;
        let first = self.rng.next_u64() as u32;
        let transport = Transport::new(self.format, address(client), self.to, first);
        let room = transport.room();
        let [message, request] =
            [room.later, room.first].map(|room| room.min(u16::MAX.into()) as u16);
        let (message, request) = (config.message.min(message), config.request.min(request));
        let config = Config { message, request, ..config };
        let stream = Stream::open(config, self.rng.next_u64(), now());
        self.clients.insert(client, Member { stream, transport, due: None });
        self.touched.insert(client);
        client
    }

    /// Returns the streams of a connection; [`Trickles::flush`] sends their pending output.
    pub fn stream(&mut self, client: u32) -> Option<&mut Stream> {
        let member = self.clients.get_mut(&client)?;
        self.touched.insert(client);
        Some(&mut member.stream)
    }

    /// Drops a connection without notice to the server, which has no state for it.
    pub fn forget(&mut self, client: u32) {
        let Some(member) = self.clients.remove(&client) else { return };
        member.due.map(|due| self.timers.remove(&(due, client)));
        self.touched.remove(&client);
    }

    /// Reads pending packets, runs due timers and sends; never blocks. Appends the connections
    /// whose streams have changed to `changed`. Returns whether a packet arrived.
    pub fn turn(&mut self, changed: &mut Vec<u32>) -> io::Result<bool> {
        let mut buffer = [0; MTU];
        let mut came = 0;
        while came < BATCH {
            match self.tun.read(&mut buffer) {
                Ok(length) => self.receive(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            came += 1;
        }
        self.run_timers();
        self.flush(changed);
        Ok(came > 0)
    }

    /// Sends the output of the connections used since the last call, and appends those whose
    /// streams have changed to `changed`.
    pub fn flush(&mut self, changed: &mut Vec<u32>) {
        let now = now();
        for client in std::mem::take(&mut self.touched) {
            let Some(member) = self.clients.get_mut(&client) else { continue };
            while let Some(message) = member.stream.poll_transmit(now) {
                // A message that does not fit counts as lost; the stream restarts with shorter
                // ones.
                if member.transport.request(self.to, &message, &mut self.packet).is_ok() {
                    match self.tun.write(&self.packet) {
                        Ok(()) => add(&mut self.stats.sent, self.packet.len()),
                        Err(_) => self.stats.dropped += 1,
                    }
                }
                if self.kept.0.len() < self.kept.1 {
                    self.kept.0.push((member.transport.local(), message));
                }
            }
            if member.stream.poll_changed().is_some() {
                while member.stream.poll_changed().is_some() {}
                changed.push(client);
            }
            let due = member.stream.poll_timeout();
            if due != member.due {
                member.due.map(|due| self.timers.remove(&(due, client)));
                due.map(|due| self.timers.insert((due, client)));
                member.due = due;
            }
        }
    }

    /// Returns the maximum time before the next [`Trickles::turn`]; `None` to wait for a packet.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|(due, _)| *due - now())
    }

    /// Returns the counters so far.
    pub fn counted(&self) -> Counted {
        self.stats
    }

    /// Records the next `most` requests sent, in order.
    pub fn keep(&mut self, most: usize) {
        self.kept = (Vec::with_capacity(most), most);
    }

    /// Returns the recorded requests: source and message.
    pub fn take_kept(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.kept).0
    }

    fn receive(&mut self, packet: &[u8]) {
        add(&mut self.stats.received, packet.len());
        match self.answer(packet) {
            Some(client) => drop(self.touched.insert(client)),
            None => self.stats.refused += 1,
        }
    }

    /// Passes an answer to its client; returns the client.
    fn answer(&mut self, packet: &[u8]) -> Option<u32> {
        let (client, message) = match self.format {
            Format::Tcp => {
                let read = tcp::parse(packet, packet.len(), Checksum::Check).ok()?;
                let Packet::Message(answer, message) = read else { return None };
                let client = number(answer.destination)?;
                let Transport::Tcp(numbers) = &mut self.clients.get_mut(&client)?.transport else {
                    return None;
                };
                numbers.handle_answer(&answer, message.len()).then_some((client, message))?
            }
            Format::Udp => {
                let (from, to, message) = datagrams::parse(packet)?;
                (number(to).filter(|_| from == self.to)?, message)
            }
        };
        self.stats.continuations.count(message);
        self.clients.get_mut(&client)?.stream.handle(now(), message);
        Some(client)
    }

    fn run_timers(&mut self) {
        let now = now();
        while let Some(&(due, client)) = self.timers.first().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, client));
            let Some(member) = self.clients.get_mut(&client) else { continue };
            member.due = None;
            member.stream.handle_timeout(now);
            self.touched.insert(client);
        }
    }
}

impl AsFd for Trickles {
    /// Becomes readable when [`Trickles::turn`] has work.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}

fn address(client: u32) -> SocketAddr {
    // Starts at 10.1.128.1; 32,000 addresses have ports for 1.6 billion clients.
    let ip = Ipv4Addr::from_bits(0x0a01_8001 + client / PORTS);
    SocketAddr::new(ip.into(), (FIRST_PORT + client % PORTS) as u16)
}

fn number(at: SocketAddr) -> Option<u32> {
    let SocketAddr::V4(at) = at else { return None };
    let nth = at.ip().to_bits().checked_sub(0x0a01_8001)?;
    let port = u32::from(at.port()).checked_sub(FIRST_PORT).filter(|port| *port < PORTS)?;
    nth.checked_mul(PORTS)?.checked_add(port)
}

fn add(to: &mut (u64, u64), bytes: usize) {
    to.0 += 1;
    to.1 += bytes as u64;
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_address_maps_back_to_the_client() {
        for client in [0, 1, 49_999, 50_000, 1_234_567, 1_600_000_000] {
            assert_eq!(number(address(client)), Some(client));
        }
        for stranger in ["10.1.128.0:10000", "10.1.128.1:9999", "10.1.128.1:60000", "[::1]:10000"] {
            assert_eq!(number(stranger.parse().unwrap()), None, "{stranger}");
        }
    }
}
