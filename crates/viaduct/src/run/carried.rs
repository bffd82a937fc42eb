//! Datagrams of programs, without privilege. A program's UDP sockets are in a capture namespace
//! ([`super::hall`]) whose only way out is this process. Each of them that is bound to a port
//! has a socket outside, at the same port if that is free.
//!
//! ```text
//!   program ── its socket ──▶ netns ══ out ══▶ rules ─▶ flow::datagrams::Passage ─▶ socket outside
//!           ◀── from the peer ── netns ◀═ out ═ Passage ◀─────────────────────── socket outside
//! ```
//!
//! If the chain ends at a relay ([`super::relayed`]), the relay takes the place of the socket
//! outside.
//!
//! IPv6 datagrams that arrive, and those to `::1`, pass the loopback interface of the capture
//! namespace, as the kernel requires.

mod outside;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;
use tracing::{debug, warn};
use viaduct_proto::flow::datagrams::{Direction, Ends, Passage, Taken};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::datagram::{Datagram, MAX_QUOTED, emit, undelivered};
use viaduct_proto::wire::ip::{self, MutableFields};
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::clock;
use viaduct_sys::netns::capture_ns::{
    self, CloseWatch, LoopbackSocket, SocketLookup, SourceRoutes, SourceRoutesWatch, Uplinks,
};
use viaduct_sys::process::thread::set_timer_slack;
use viaduct_sys::socket::error_queue::take_error_of;
use viaduct_sys::socket::hop_fields::{self, HopFields};

use self::outside::{All, Outside};
use super::Plan;
use super::datagrams::{self, Passed};
use super::hall::Hall;
use super::names::Remote;
use super::relayed::Relayed;
use super::report::{self, Report};

/// The longest packet, in bytes.
const PACKET: usize = 65_535;
/// Datagrams held at once, at most.
const MAX_WAITING: usize = 16_384;
/// Datagrams read from one source before the others have their turn.
const TURN: usize = 64;
/// Interval between checks for sockets that programs have closed.
const LOOK: Duration = Duration::from_millis(1000);
/// Timer slack: a datagram is not delayed so that the machine wakes up less often.
const SLACK: Duration = Duration::from_nanos(1);
/// Port of DNS queries.
const DNS: u16 = 53;
/// Event data of the namespace's output, its loopback interface, the relays, closed sockets and
/// route changes. Sockets have numbers of their own.
const OUT: u64 = u64::MAX;
const LOOP: u64 = u64::MAX - 1;
const RELAYED: u64 = u64::MAX - 2;
const GONE: u64 = u64::MAX - 3;
const ROUTES: u64 = u64::MAX - 4;
/// Least interval between reads of the routing table while routes change.
const ROUTES_PAUSE: Duration = Duration::from_millis(100);
/// The same as a multiple of the time that a read takes: a host may have very many routes.
const ROUTES_BACKOFF: u32 = 10;
/// Default hop limit in the capture namespace.
const HOPS: u8 = 64;

/// UDP in user space: carries the datagrams of a run's programs.
#[derive(Debug)]
pub struct Carried {
    hall: Hall,
    out: capture_ns::Uplink,
    v6: Option<LoopbackSocket>,
    gone: Option<CloseWatch>,
    lookup: Option<SocketLookup>,
    epoll: OwnedFd,
    watch: Option<SourceRoutesWatch>,
    state: Mutex<State>,
}

struct State {
    passage: Passage,
    rules: Rules,
    report: Option<Report>,
    outside: All,
    relayed: Option<Relayed>,
    /// Answers DNS queries, if names are looked up at the far end.
    names: Option<Arc<Remote>>,
    /// Held datagrams, by the passage's tag.
    waiting: HashMap<u32, Held>,
    next: u32,
    /// Datagrams dropped for want of room, and those that did not come by the relay.
    lost: [u64; 2],
    looked: Instant,
    /// Addresses and routes of this host.
    own: Arc<SourceRoutes>,
    /// Earliest time of the next read of the routes, and whether they may have changed.
    ask_at: Instant,
    changed: bool,
}

/// A datagram that waits for its release time.
struct Held {
    way: Direction,
    ends: Ends,
    bytes: Vec<u8>,
    /// Hop limit and traffic class, where they differ from the defaults.
    fields: HopFields,
}

impl Carried {
    /// Makes datagrams pass the handlers of `plan`.
    ///
    /// # Errors
    /// Datagrams cannot be carried; the error says why.
    pub fn start(plan: &Plan) -> Result<Arc<Carried>> {
        let passage = datagrams::passage(plan).map_err(anyhow::Error::msg)?;
        let (hall, Uplinks { out, v6, gone, lookup }) = Hall::open_for_datagrams()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &out, epoll::EventData::new_u64(OUT), epoll::EventFlags::IN)?;
        if let Some(v6) = &v6 {
            epoll::add(&epoll, v6, epoll::EventData::new_u64(LOOP), epoll::EventFlags::IN)?;
        }
        if let Some(gone) = &gone {
            epoll::add(&epoll, gone, epoll::EventData::new_u64(GONE), epoll::EventFlags::IN)?;
        }
        let relayed = Relayed::new(plan)?;
        if let Some(relayed) = &relayed {
            epoll::add(&epoll, relayed, epoll::EventData::new_u64(RELAYED), epoll::EventFlags::IN)?;
        }
        // Fails where there is no netlink; routes that are added later are missing then.
        let watch = SourceRoutesWatch::new().ok();
        if let Some(watch) = &watch {
            epoll::add(&epoll, watch, epoll::EventData::new_u64(ROUTES), epoll::EventFlags::IN)?;
        }
        let own = SourceRoutes::read(relayed.is_some() || plan.names.is_some());
        if let Err(error) = hall.reach(&own) {
            debug!("routes of a hall: {error}");
        }
        let state = Mutex::new(State {
            passage,
            rules: plan.rules,
            report: plan.report.clone(),
            outside: All::default(),
            relayed,
            names: plan.names.clone(),
            waiting: HashMap::new(),
            next: 0,
            lost: [0; 2],
            looked: now(),
            own: Arc::new(own),
            ask_at: now(),
            changed: false,
        });
        let carried = Arc::new(Carried { hall, out, v6, gone, lookup, epoll, watch, state });
        let carries = carried.clone();
        let carry = move || {
            if let Err(error) = set_timer_slack(SLACK) {
                debug!("timers may be late: {error}");
            }
            if let Err(error) = carries.run() {
                warn!("datagrams cannot be carried any more: {error}");
            }
        };
        thread::Builder::new().name("datagrams".to_owned()).spawn(carry)?;
        Ok(carried)
    }

    /// Opens a UDP socket for a program, of IPv6 or of IPv4.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn socket(&self, v6: bool) -> io::Result<OwnedFd> {
        self.hall.datagram_socket(v6)
    }

    /// Binds `socket`, a duplicate of a program's, to `at`. `v6`: it is an IPv6 socket.
    ///
    /// # Errors
    /// The error for the program: its address is taken, or is another host's.
    pub fn bind(&self, socket: &OwnedFd, v6: bool, at: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        let outside = match Outside::like(socket, v6, at) {
            // Perhaps held by an outside socket whose program has closed its own.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                self.sweep(&mut state);
                Outside::like(socket, v6, at)?
            }
            made => made?,
        };
        let mut inside = SocketAddr::new(at.ip(), outside.port()?);
        if let (IpAddr::V4(ip), true) = (at.ip(), v6) {
            inside.set_ip(ip.to_ipv6_mapped().into());
        }
        rustix::net::bind(socket, &inside)?;
        let port = inside.port();
        self.open(&mut state, outside, port)
    }

    /// Checks that this host has a route for a datagram from `socket`, a program's, to `to`.
    ///
    /// # Errors
    /// The kernel's error for the same datagram from a socket outside of the capture namespace.
    pub fn probe(&self, socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
        let own: SocketAddr = rustix::net::getsockname(socket)?.try_into()?;
        let own = SocketAddr::new(own.ip().to_canonical(), own.port());
        let from = {
            let state = self.state();
            let asks = state.names.is_some() && to.port() == DNS;
            let diverted = state.rules.fate(Transport::Udp, to) == Fate::Divert;
            if asks || diverted && state.relayed.is_some() {
                return Ok(());
            }
            state.outside.find(own).and_then(Outside::address)
        };
        outside::probe(from, to, sockopt::socket_broadcast(socket)?)
    }

    /// Returns what the handlers have released so far.
    pub fn passed(&self) -> Passed {
        let state = self.state();
        let stats = state.passage.stats();
        let [no_room, astray] = state.lost;
        let relays = state.relayed.as_ref().map_or(0, Relayed::dropped);
        let no_room = no_room + stats.dropped.iter().sum::<u64>();
        Passed { bytes: stats.bytes, dropped: [no_room, astray + relays] }
    }

    /// Returns whether no datagram is held.
    pub fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Runs the event loop for as long as the process runs.
    fn run(&self) -> io::Result<()> {
        let (mut events, mut packet) = (Vec::with_capacity(64), vec![0; PACKET]);
        loop {
            self.refresh_routes();
            let wait = self.turn();
            let wait = Timespec {
                tv_sec: wait.as_secs().cast_signed(),
                tv_nsec: wait.subsec_nanos().into(),
            };
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // First, so that datagrams to sockets that are gone get their errors.
            if events.iter().any(|event| event.data.u64() == GONE) {
                self.see_gone();
            }
            for event in &events {
                match event.data.u64() {
                    GONE => {}
                    ROUTES => self.see_routes(),
                    OUT => self.take_out(|packet| self.out.read(packet), &mut packet),
                    LOOP => {
                        let Some(v6) = &self.v6 else { continue };
                        self.take_out(|packet| v6.read(packet), &mut packet);
                    }
                    RELAYED => self.take_relayed(),
                    key => self.take_back(key, &mut packet),
                }
            }
        }
    }

    /// Releases datagrams that are due. Returns how long to wait unless something arrives.
    fn turn(&self) -> Duration {
        let mut state = self.state();
        let now = now();
        while let Some(id) = state.passage.poll_ready(now) {
            let Some(held) = state.waiting.remove(&id) else { continue };
            match &mut state.relayed {
                Some(relayed) if held.way == Direction::Out => {
                    relayed.send(now, held.ends, &held.bytes)
                }
                _ => self.let_on(&mut state, &held),
            }
        }
        state.passage.handle_timeout(now);
        if let Some(relayed) = &mut state.relayed {
            relayed.handle_timeout(now);
            for (ends, bytes) in relayed.left() {
                let fields = HopFields::default();
                self.let_on(&mut state, &Held { way: Direction::Out, ends, bytes, fields });
            }
        }
        if now.since(state.looked) >= LOOK {
            self.sweep(&mut state);
        }
        let look = if state.changed { state.ask_at.since(now).min(LOOK) } else { LOOK };
        // Relays that time out are given up at the next sweep.
        state.passage.poll_timeout().map_or(look, |at| at.since(now).min(look))
    }

    /// Reads datagrams that programs have sent.
    fn take_out(&self, read: impl Fn(&mut [u8]) -> io::Result<usize>, packet: &mut [u8]) {
        for _ in 0..TURN {
            let Ok(length) = read(packet) else { return };
            let Some((datagram, carried)) = Datagram::split(&packet[..length]) else { continue };
            let Datagram { source: own, destination: peer, bytes } = datagram;
            // Fragments of a datagram longer than a packet are dropped.
            if carried.len() < bytes {
                continue;
            }
            let ends = Ends { own, peer };
            let fields = fields_of(&packet[..length]);
            self.take(Held { way: Direction::Out, ends, bytes: carried.to_vec(), fields });
        }
    }

    /// Reads datagrams that relays have delivered.
    fn take_relayed(&self) {
        let (mut come, mut state) = (Vec::new(), self.state());
        if let Some(relayed) = &mut state.relayed {
            relayed.receive(now(), |ends, bytes| come.push((ends, bytes.to_vec())));
        }
        let fields = HopFields::default();
        for (ends, bytes) in come {
            // Only from peers that the program reaches by the relay.
            match state.rules.fate(Transport::Udp, ends.peer) {
                Fate::Divert => {
                    self.hold(&mut state, Held { way: Direction::Back, ends, bytes, fields });
                }
                Fate::Leave | Fate::Refuse => state.lost[1] += 1,
            }
        }
    }

    /// Reads datagrams and errors of an outside socket.
    fn take_back(&self, number: u64, packet: &mut [u8]) {
        let (outside, from) = {
            let state = self.state();
            (state.outside.get(number), state.own.clone())
        };
        let Some(Outside { socket, at, port, .. }) = outside else { return };
        let own = |peer: IpAddr| SocketAddr::new(from.towards(at.of(peer), peer), port);
        let mut quoted = [0; MAX_QUOTED];
        while let Some((error, length)) = take_error_of(socket.as_fd(), &mut quoted) {
            let carried = &quoted[..length];
            self.write(&undelivered(own(error.to.ip()), error.to, error.why, carried));
        }
        for _ in 0..TURN {
            let (length, peer, fields) = match hop_fields::receive_from(socket.as_fd(), packet) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An error of an earlier datagram that did not arrive.
                Err(_) => continue,
            };
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            let ends = Ends { own: own(peer.ip()), peer };
            self.take(Held {
                way: Direction::Back,
                ends,
                bytes: packet[..length].to_vec(),
                fields,
            });
        }
    }

    fn take(&self, held: Held) {
        let mut state = self.state();
        if let (Some(names), Direction::Out, DNS) = (&state.names, held.way, held.ends.peer.port())
        {
            let Ends { own, peer } = held.ends;
            let packet = names.answer_to(&held.bytes).and_then(|answer| emit(peer, own, &answer));
            if let Some(packet) = packet {
                self.write(&packet);
            }
            return;
        }
        let by_relay_alone = state.relayed.as_ref().is_some_and(|relayed| !relayed.leaves());
        match state.rules.fate(Transport::Udp, held.ends.peer) {
            // The program reaches this peer by the relay alone: datagrams that came past it are
            // dropped.
            Fate::Divert if held.way == Direction::Back && by_relay_alone => state.lost[1] += 1,
            Fate::Divert => self.hold(&mut state, held),
            Fate::Leave => {
                if let (Some(report), Direction::Out) = (&state.report, held.way) {
                    report.count(report::Fate::Direct, "udp", held.ends.peer);
                }
                self.let_on(&mut state, &held);
            }
            // The program gets the error when it sends.
            Fate::Refuse => {}
        }
    }

    /// Holds a datagram until the handlers release it.
    fn hold(&self, state: &mut State, held: Held) {
        if state.waiting.len() >= MAX_WAITING {
            state.lost[0] += 1;
            return;
        }
        let id = state.next;
        state.next = id.wrapping_add(1);
        let Held { way, ends, ref bytes, .. } = held;
        match state.passage.handle_datagram(now(), ends, way, bytes.len(), id) {
            Taken::Waits { begins } => {
                if let (Some(report), true) = (&state.report, begins) {
                    report.count(report::Fate::Handled, "udp", ends.peer);
                }
                state.waiting.insert(id, held);
            }
            Taken::Dropped => {}
        }
    }

    fn let_on(&self, state: &mut State, held: &Held) {
        let Ends { own, peer } = held.ends;
        match held.way {
            Direction::Back => {
                if let Some(mut packet) = emit(peer, own, &held.bytes) {
                    let HopFields { limit, class } = held.fields;
                    ip::restore(
                        &mut packet,
                        MutableFields { ttl: limit.unwrap_or(HOPS), tos: class.unwrap_or(0) },
                    );
                    self.write(&packet);
                }
            }
            Direction::Out => {
                if let Err(error) = self.send(state, own, peer, held) {
                    debug!("a datagram to {peer}: {error}");
                }
            }
        }
    }

    fn send(
        &self,
        state: &mut State,
        own: SocketAddr,
        peer: SocketAddr,
        Held { bytes, fields, .. }: &Held,
    ) -> io::Result<()> {
        if state.outside.find(own).is_none() {
            // The program has not bound its socket, so that any port will do.
            let any: IpAddr = match own.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let at = |port| Outside::at(SocketAddr::new(any, port));
            let outside = at(own.port()).or_else(|_| at(0))?;
            self.open(state, outside, own.port())?;
        }
        // To an outside socket whose program has just closed its own: close it first, so that
        // the kernel reports the error.
        let ours = peer.ip().is_loopback() || state.own.has(peer.ip());
        if let (true, true, Some(lookup)) = (ours, state.outside.has(peer.port()), &self.lookup)
            && !lookup.finds(own, peer)?
        {
            self.sweep(state);
        }
        let Some(outside) = state.outside.find(own) else { return Ok(()) };
        // The first call may return the error of an earlier datagram.
        outside.send(bytes, peer, *fields).or_else(|_| outside.send(bytes, peer, *fields))
    }

    /// Registers an outside socket for a program's socket at `port`.
    fn open(&self, state: &mut State, outside: Outside, port: u16) -> io::Result<()> {
        let number = state.outside.next();
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, &outside.socket, data, epoll::EventFlags::IN)?;
        state.outside.add(number, Outside { port, ..outside });
        Ok(())
    }

    /// Notes that routes or addresses have changed.
    fn see_routes(&self) {
        if self.watch.as_ref().is_some_and(SourceRoutesWatch::changed) {
            self.state().changed = true;
        }
    }

    /// Updates the routes of the capture namespace to those of this host, if they may have
    /// changed. The lock is released while all routes are read, so that datagrams of programs
    /// do not wait.
    fn refresh_routes(&self) {
        let mut state = self.state();
        let begun = now();
        if !state.changed || begun < state.ask_at {
            return;
        }
        state.changed = false;
        let (known, all) = (state.own.clone(), state.relayed.is_some() || state.names.is_some());
        drop(state);
        let own = SourceRoutes::read(all);
        let is_new = own != *known;
        if is_new && let Err(error) = self.hall.reach(&own) {
            debug!("routes of a hall: {error}");
        }
        let (now, mut state) = (now(), self.state());
        state.ask_at = now + ROUTES_PAUSE.max(ROUTES_BACKOFF * now.since(begun));
        if is_new {
            state.own = Arc::new(own);
        }
    }

    /// Handles sockets that programs have closed: closes those outside too, so that the kernel
    /// reports errors to their senders.
    fn see_gone(&self) {
        if self.gone.as_ref().is_some_and(CloseWatch::any) {
            self.sweep(&mut self.state());
        }
    }

    /// Closes outside sockets whose program has closed its own.
    fn sweep(&self, state: &mut State) {
        let now = now();
        state.looked = now;
        if state.outside.is_empty() && state.relayed.is_none() {
            return;
        }
        let Ok(ports) = self.hall.udp_ports() else { return };
        let out = state.waiting.values().filter(|held| held.way == Direction::Out);
        let waits: HashSet<u16> = out.map(|held| held.ends.own.port()).collect();
        let stays = |port| ports.contains(&port) || waits.contains(&port);
        state.outside.retain(stays);
        if let Some(relayed) = &mut state.relayed {
            relayed.retain(now, |own| stays(own.port()));
        }
    }

    /// Writes a packet to the capture namespace, which drops it if no socket receives it.
    fn write(&self, packet: &[u8]) {
        let written = match &self.v6 {
            Some(v6) if packet.first().is_some_and(|first| first >> 4 == 6) => v6.write(packet),
            _ => self.out.write(packet),
        };
        if let Err(error) = written {
            debug!("a datagram to a program: {error}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pairs", &self.passage.pairs()).finish_non_exhaustive()
    }
}

/// Hop limit and traffic class that the program has set, by a socket option or a control message.
fn fields_of(packet: &[u8]) -> HopFields {
    let Some(fields) = ip::mutable_fields(packet) else { return HopFields::default() };
    let other = |value: u8, usual: u8| (value != usual).then_some(value);
    HopFields {
        limit: other(fields.ttl, HOPS).filter(|&limit| limit > 0),
        class: other(fields.tos, 0),
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
