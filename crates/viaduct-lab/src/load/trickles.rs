//! Clients of Trickles, thousands of them in one thread: the project's own client cores over a TUN, each
//! with an address and a port of its own, behind which no kernel stands that would answer for them. The
//! TUN is in the host of TCP's clients, which forwards, so that both take the same path.
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
use viaduct_sys::tun::Tun;

use super::datagrams;
use crate::topology::{Dumbbell, TopologyError, open_tun};

/// The interface in the host, and the network behind it: a part of side A's, so that side B has a route.
const DEVICE: &str = "trickles0";
const NETWORK: &str = "10.1.128.0/17";
/// Ports of an address, and the first.
const PORTS: u32 = 50_000;
const FIRST_PORT: u32 = 10_000;
const MTU: usize = 1500;
/// Bytes of answers that a request is taken to bring, for TCP's numbers: a first window.
const EXPECTED: u32 = 16 << 10;
/// Packets that are taken in one turn before anything else is looked at.
const BATCH: usize = 256;

/// The clients. Not shared between threads.
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
    /// Requests that were sent, and how many are to be kept.
    kept: (Vec<(SocketAddr, Vec<u8>)>, usize),
}

/// A connection.
struct Member {
    stream: Stream,
    way: Way,
    due: Option<Instant>,
}

/// How its messages travel.
enum Way {
    Tcp(Numbers),
    /// Its own address, and the next request's number.
    Udp(SocketAddr, u8),
}

impl Way {
    fn new(format: Format, local: SocketAddr, to: SocketAddr, first: u32) -> Way {
        match format {
            Format::Tcp => Way::Tcp(Numbers::new(local, to, first)),
            Format::Udp => Way::Udp(local, 0),
        }
    }

    fn local(&self) -> SocketAddr {
        match self {
            Way::Tcp(numbers) => numbers.local(),
            Way::Udp(local, _) => *local,
        }
    }

    /// Bytes of the longest messages that packets hold.
    fn room(&self) -> Room {
        match self {
            Way::Tcp(numbers) => numbers.room(MTU),
            Way::Udp(local, _) => {
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
            Way::Tcp(numbers) => numbers.request(message, EXPECTED, MTU, packet),
            Way::Udp(..) if message.len() > room => Err(TooLong { have: message.len(), room }),
            Way::Udp(local, count) => {
                datagrams::emit((*local, to), *count, message, packet);
                *count = count.wrapping_add(1);
                Ok(())
            }
        }
    }
}

/// What all clients together count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets sent, and bytes of them from the IP header on.
    pub sent: (u64, u64),
    /// The same of what came.
    pub received: (u64, u64),
    /// Packets that the kernel had no room for.
    pub dropped: u64,
    /// Packets that were for none of them, or no answers.
    pub refused: u64,
    /// Transport continuations that came.
    pub continuations: Continuations,
}

/// Continuations by how they came, and how long they were on the wire at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuations {
    /// Whole ones.
    pub whole: u64,
    /// Bytes of one, beside 12 for each loss that it names.
    pub longest_whole: usize,
    /// Deltas (section 5.3).
    pub deltas: u64,
    /// Bytes of one.
    pub longest_delta: usize,
}

impl Continuations {
    /// Reads it from a message: what is left when all else is known.
    fn count(&mut self, message: &[u8]) {
        let Ok(response) = Response::parse(message) else { return };
        let user = response.payload.user.len();
        let others = HEAD + PAYLOAD_HEAD - usize::from(user < 128) + user;
        let bytes = message.len().saturating_sub(others + response.payload.data.len());
        match response.form {
            Form::Ticket(continuation) | Form::Fresh(continuation) => {
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
    /// Opens their interface in host a1 of `world`, where the kernel's clients of TCP are: both take the same
    /// path. They will connect to `to`.
    ///
    /// # Errors
    /// The interface or the route to it cannot be made.
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

    /// Those that connect from now on speak by UDP.
    #[must_use]
    pub fn by_udp(self) -> Trickles {
        Trickles { format: Format::Udp, ..self }
    }

    /// Opens a connection; nothing leaves before [`Trickles::flush`] or [`Trickles::turn`]. Its name is
    /// never used again.
    pub fn connect(&mut self, config: Config) -> u32 {
        let client = self.next;
        self.next += 1;
        let first = self.rng.next_u64() as u32;
        let way = Way::new(self.format, address(client), self.to, first);
        let room = way.room();
        let [message, request] =
            [room.later, room.first].map(|room| room.min(u16::MAX.into()) as u16);
        let (message, request) = (config.message.min(message), config.request.min(request));
        let config = Config { message, request, ..config };
        let stream = Stream::open(config, self.rng.next_u64(), now());
        self.clients.insert(client, Member { stream, way, due: None });
        self.touched.insert(client);
        client
    }

    /// A connection's streams, to be used; what comes of it leaves with [`Trickles::flush`].
    pub fn stream(&mut self, client: u32) -> Option<&mut Stream> {
        let member = self.clients.get_mut(&client)?;
        self.touched.insert(client);
        Some(&mut member.stream)
    }

    /// Forgets a connection, without a word to the server: it has nothing of it.
    pub fn forget(&mut self, client: u32) {
        let Some(member) = self.clients.remove(&client) else { return };
        member.due.map(|due| self.timers.remove(&(due, client)));
        self.touched.remove(&client);
    }

    /// Takes what has come, runs the timers that are due, sends, and names the connections whose streams
    /// have changed; never waits. Whether anything came.
    ///
    /// # Errors
    /// The kernel's.
    pub fn turn(&mut self, changed: &mut Vec<u32>) -> io::Result<bool> {
        let mut buffer = [0; MTU];
        let mut came = 0;
        while came < BATCH {
            match self.tun.read(&mut buffer) {
                Ok(length) => self.hear(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            came += 1;
        }
        self.run_timers();
        self.flush(changed);
        Ok(came > 0)
    }

    /// Sends what the connections that were used have to send, and names those whose streams have
    /// changed.
    pub fn flush(&mut self, changed: &mut Vec<u32>) {
        let now = now();
        for client in std::mem::take(&mut self.touched) {
            let Some(member) = self.clients.get_mut(&client) else { continue };
            while let Some(message) = member.stream.poll_transmit(now) {
                // What does not fit is lost: the stream begins anew with shorter messages.
                if member.way.request(self.to, &message, &mut self.packet).is_ok() {
                    match self.tun.write(&self.packet) {
                        Ok(()) => add(&mut self.stats.sent, self.packet.len()),
                        Err(_) => self.stats.dropped += 1,
                    }
                }
                if self.kept.0.len() < self.kept.1 {
                    self.kept.0.push((member.way.local(), message));
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

    /// How long to wait at most before the next [`Trickles::turn`]; None: until something comes.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|(due, _)| *due - now())
    }

    /// The counters so far.
    pub fn counted(&self) -> Counted {
        self.stats
    }

    /// Keeps the next `most` requests that are sent, in their order.
    pub fn keep(&mut self, most: usize) {
        self.kept = (Vec::with_capacity(most), most);
    }

    /// Those that were kept: who sent them, and their messages.
    pub fn take_kept(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.kept).0
    }

    fn hear(&mut self, packet: &[u8]) {
        add(&mut self.stats.received, packet.len());
        match self.answer(packet) {
            Some(client) => drop(self.touched.insert(client)),
            None => self.stats.refused += 1,
        }
    }

    /// Hands an answer to the client whose it is.
    fn answer(&mut self, packet: &[u8]) -> Option<u32> {
        let (client, message) = match self.format {
            Format::Tcp => {
                let read = tcp::parse(packet, packet.len(), Checksum::Check).ok()?;
                let Packet::Message(answer, message) = read else { return None };
                let client = number(answer.destination)?;
                let Way::Tcp(numbers) = &mut self.clients.get_mut(&client)?.way else {
                    return None;
                };
                numbers.hear(&answer, message.len()).then_some((client, message))?
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
    /// Readable when there is something for [`Trickles::turn`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}

/// Where a client is.
fn address(client: u32) -> SocketAddr {
    // From 10.1.128.1 on; 32,000 addresses have ports for a billion and a half.
    let ip = Ipv4Addr::from_bits(0x0a01_8001 + client / PORTS);
    SocketAddr::new(ip.into(), (FIRST_PORT + client % PORTS) as u16)
}

/// Which client is there.
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
    fn a_clients_address_leads_back_to_it() {
        for client in [0, 1, 49_999, 50_000, 1_234_567, 1_600_000_000] {
            assert_eq!(number(address(client)), Some(client));
        }
        for stranger in ["10.1.128.0:10000", "10.1.128.1:9999", "10.1.128.1:60000", "[::1]:10000"] {
            assert_eq!(number(stranger.parse().unwrap()), None, "{stranger}");
        }
    }
}
