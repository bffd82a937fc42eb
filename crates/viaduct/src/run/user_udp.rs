//! UDP in user space: carries datagrams of programs without privilege. A program's UDP sockets
//! are in a capture namespace ([`super::capture_ns`]) whose only exit is this process. Each of
//! them that is bound to a port has a host socket outside, at the same port if that is free.
//!
//! ```text
//!   program ── its socket ──▶ netns ══ out ══▶ rules ─▶ flow::datagrams::Passage ─▶ host socket
//!           ◀── from the peer ── netns ◀═ out ═ Passage ◀────────────────────────── host socket
//! ```
//!
//! If the chain ends at a relay ([`super::udp_associate`]), the relay takes the place of the host
//! socket.
//!
//! IPv6 datagrams that arrive, and those to `::1`, pass the loopback interface of the capture
//! namespace, as the kernel requires.

mod host_sockets;

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

use self::host_sockets::{HostSocket, HostSockets};
use super::Plan;
use super::capture_ns::CaptureNs;
use super::datagrams::{self, DatagramCounts};
use super::names::RemoteNames;
use super::report::{self, Report};
use super::udp_associate::UdpRelays;

/// The longest packet, in bytes.
const MAX_PACKET: usize = 65_535;
/// Datagrams held at once, at most.
const MAX_WAITING: usize = 16_384;
/// Datagrams read from one source before the others have their turn.
const MAX_READS: usize = 64;
/// Interval between checks for sockets that programs have closed.
const SWEEP_INTERVAL: Duration = Duration::from_millis(1000);
/// Timer slack: a datagram is not delayed so that the machine wakes up less often.
const SLACK: Duration = Duration::from_nanos(1);
/// Port of DNS queries.
const DNS: u16 = 53;
/// Event data of the namespace's output, its loopback interface, the relays, closed sockets and
/// route changes. Sockets have numbers of their own.
const OUT: u64 = u64::MAX;
const LOOP: u64 = u64::MAX - 1;
const RELAYS: u64 = u64::MAX - 2;
const GONE: u64 = u64::MAX - 3;
const ROUTES: u64 = u64::MAX - 4;
/// Least interval between reads of the routing table while routes change.
const MIN_ROUTES_INTERVAL: Duration = Duration::from_millis(100);
/// The same as a multiple of the time that a read takes: a host may have very many routes.
const ROUTES_BACKOFF: u32 = 10;
/// Default hop limit in the capture namespace.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Event loop that carries the datagrams of a run's programs in user space.
#[derive(Debug)]
pub struct UserUdp {
    netns: CaptureNs,
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
    host_sockets: HostSockets,
    relays: Option<UdpRelays>,
    /// Answers DNS queries, if names are looked up at the far end.
    names: Option<Arc<RemoteNames>>,
    /// Held datagrams, by the passage's tag.
    waiting: HashMap<u32, HeldDatagram>,
    next: u32,
    /// Datagrams dropped for want of room, and those that did not come by the relay.
    lost: [u64; 2],
    last_sweep: Instant,
    /// Addresses and routes of this host.
    own: Arc<SourceRoutes>,
    /// Earliest time of the next read of the routes, and whether they may have changed.
    next_routes_read: Instant,
    routes_changed: bool,
}

/// A datagram that waits for its release time.
struct HeldDatagram {
    direction: Direction,
    ends: Ends,
    bytes: Vec<u8>,
    /// Hop limit and traffic class, where they differ from the defaults.
    fields: HopFields,
}

impl UserUdp {
    /// Makes datagrams pass the handlers of `plan`.
    ///
    /// # Errors
    /// Datagrams cannot be carried; the error says why.
    pub fn start(plan: &Plan) -> Result<Arc<UserUdp>> {
        let passage = datagrams::passage(plan).map_err(anyhow::Error::msg)?;
        let (netns, Uplinks { out, v6, gone, lookup }) = CaptureNs::open_for_datagrams()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &out, epoll::EventData::new_u64(OUT), epoll::EventFlags::IN)?;
        if let Some(v6) = &v6 {
            epoll::add(&epoll, v6, epoll::EventData::new_u64(LOOP), epoll::EventFlags::IN)?;
        }
        if let Some(gone) = &gone {
            epoll::add(&epoll, gone, epoll::EventData::new_u64(GONE), epoll::EventFlags::IN)?;
        }
        let relays = UdpRelays::new(plan)?;
        if let Some(relays) = &relays {
            epoll::add(&epoll, relays, epoll::EventData::new_u64(RELAYS), epoll::EventFlags::IN)?;
        }
        // Fails where there is no netlink; routes that are added later are missing then.
        let watch = SourceRoutesWatch::new().ok();
        if let Some(watch) = &watch {
            epoll::add(&epoll, watch, epoll::EventData::new_u64(ROUTES), epoll::EventFlags::IN)?;
        }
        let own = SourceRoutes::read(relays.is_some() || plan.names.is_some());
        if let Err(error) = netns.set_routes(&own) {
            debug!("routes of the capture namespace: {error}");
        }
        let state = Mutex::new(State {
            passage,
            rules: plan.rules,
            report: plan.report.clone(),
            host_sockets: HostSockets::default(),
            relays,
            names: plan.names.clone(),
            waiting: HashMap::new(),
            next: 0,
            lost: [0; 2],
            last_sweep: now(),
            own: Arc::new(own),
            next_routes_read: now(),
            routes_changed: false,
        });
        let user_udp = Arc::new(UserUdp { netns, out, v6, gone, lookup, epoll, watch, state });
        let event_loop = user_udp.clone();
        let carry = move || {
            if let Err(error) = set_timer_slack(SLACK) {
                debug!("timers may be late: {error}");
            }
            if let Err(error) = event_loop.run() {
                warn!("datagrams are no longer carried: {error}");
            }
        };
        thread::Builder::new().name("datagrams".to_owned()).spawn(carry)?;
        Ok(user_udp)
    }

    /// Opens a UDP socket for a program, of IPv6 or of IPv4.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn socket(&self, v6: bool) -> io::Result<OwnedFd> {
        self.netns.datagram_socket(v6)
    }

    /// Binds `socket`, a duplicate of a program's, to `at`. `v6`: it is an IPv6 socket.
    ///
    /// # Errors
    /// The error for the program: its address is taken, or is another host's.
    pub fn bind(&self, socket: &OwnedFd, v6: bool, at: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        let host_socket = match HostSocket::like(socket, v6, at) {
            // Perhaps held by a host socket whose program has closed its own.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                self.sweep(&mut state);
                HostSocket::like(socket, v6, at)?
            }
            made => made?,
        };
        let mut inside = SocketAddr::new(at.ip(), host_socket.port()?);
        if let (IpAddr::V4(ip), true) = (at.ip(), v6) {
            inside.set_ip(ip.to_ipv6_mapped().into());
        }
        rustix::net::bind(socket, &inside)?;
        let port = inside.port();
        self.register(&mut state, host_socket, port)
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
            if asks || diverted && state.relays.is_some() {
                return Ok(());
            }
            state.host_sockets.find(own).and_then(HostSocket::address)
        };
        host_sockets::probe(from, to, sockopt::socket_broadcast(socket)?)
    }

    /// Returns what the handlers have released so far.
    pub fn counts(&self) -> DatagramCounts {
        let state = self.state();
        let stats = state.passage.stats();
        let [no_room, astray] = state.lost;
        let relays = state.relays.as_ref().map_or(0, UdpRelays::dropped);
        let no_room = no_room + stats.dropped.iter().sum::<u64>();
        DatagramCounts { bytes: stats.bytes, dropped: [no_room, astray + relays] }
    }

    /// Returns whether no datagram is held.
    pub fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Runs the event loop for as long as the process runs.
    fn run(&self) -> io::Result<()> {
        let (mut events, mut packet) = (Vec::with_capacity(64), vec![0; MAX_PACKET]);
        loop {
            self.refresh_routes();
            let wait = self.release_due();
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
                self.handle_closed();
            }
            for event in &events {
                match event.data.u64() {
                    GONE => {}
                    ROUTES => self.note_route_change(),
                    OUT => self.read_namespace(|packet| self.out.read(packet), &mut packet),
                    LOOP => {
                        let Some(v6) = &self.v6 else { continue };
                        self.read_namespace(|packet| v6.read(packet), &mut packet);
                    }
                    RELAYS => self.read_relays(),
                    key => self.read_host_socket(key, &mut packet),
                }
            }
        }
    }

    /// Releases datagrams that are due. Returns how long to wait unless something arrives.
    fn release_due(&self) -> Duration {
        let mut state = self.state();
        let now = now();
        while let Some(id) = state.passage.poll_ready(now) {
            let Some(held) = state.waiting.remove(&id) else { continue };
            match &mut state.relays {
                Some(relays) if held.direction == Direction::Out => {
                    relays.send(now, held.ends, &held.bytes);
                }
                _ => self.release(&mut state, &held),
            }
        }
        state.passage.handle_timeout(now);
        if let Some(relays) = &mut state.relays {
            relays.handle_timeout(now);
            for (ends, bytes) in relays.take_direct() {
                let fields = HopFields::default();
                self.release(
                    &mut state,
                    &HeldDatagram { direction: Direction::Out, ends, bytes, fields },
                );
            }
        }
        if now.since(state.last_sweep) >= SWEEP_INTERVAL {
            self.sweep(&mut state);
        }
        let look = if state.routes_changed {
            state.next_routes_read.since(now).min(SWEEP_INTERVAL)
        } else {
            SWEEP_INTERVAL
        };
        // Relays that time out are given up at the next sweep.
        state.passage.poll_timeout().map_or(look, |at| at.since(now).min(look))
    }

    /// Reads datagrams that programs have sent.
    fn read_namespace(&self, read: impl Fn(&mut [u8]) -> io::Result<usize>, packet: &mut [u8]) {
        for _ in 0..MAX_READS {
            let Ok(length) = read(packet) else { return };
            let Some((datagram, payload)) = Datagram::split(&packet[..length]) else { continue };
            let Datagram { source: own, destination: peer, bytes } = datagram;
            // Fragments of a datagram longer than a packet are dropped.
            if payload.len() < bytes {
                continue;
            }
            let ends = Ends { own, peer };
            let fields = fields_of(&packet[..length]);
            self.handle_datagram(HeldDatagram {
                direction: Direction::Out,
                ends,
                bytes: payload.to_vec(),
                fields,
            });
        }
    }

    /// Reads datagrams that relays have delivered.
    fn read_relays(&self) {
        let (mut received, mut state) = (Vec::new(), self.state());
        if let Some(relays) = &mut state.relays {
            relays.receive(now(), |ends, bytes| received.push((ends, bytes.to_vec())));
        }
        let fields = HopFields::default();
        for (ends, bytes) in received {
            // Only from peers that the program reaches by the relay.
            match state.rules.fate(Transport::Udp, ends.peer) {
                Fate::Divert => {
                    self.hold(
                        &mut state,
                        HeldDatagram { direction: Direction::Back, ends, bytes, fields },
                    );
                }
                Fate::Leave | Fate::Refuse => state.lost[1] += 1,
            }
        }
    }

    /// Reads datagrams and errors of a host socket.
    fn read_host_socket(&self, number: u64, packet: &mut [u8]) {
        let (host_socket, from) = {
            let state = self.state();
            (state.host_sockets.get(number), state.own.clone())
        };
        let Some(HostSocket { socket, at, port, .. }) = host_socket else { return };
        let own = |peer: IpAddr| SocketAddr::new(from.towards(at.of(peer), peer), port);
        let mut quoted = [0; MAX_QUOTED];
        while let Some((error, length)) = take_error_of(socket.as_fd(), &mut quoted) {
            let quoted = &quoted[..length];
            self.write(&undelivered(own(error.to.ip()), error.to, error.why, quoted));
        }
        for _ in 0..MAX_READS {
            let (length, peer, fields) = match hop_fields::receive_from(socket.as_fd(), packet) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An error of an earlier datagram that did not arrive.
                Err(_) => continue,
            };
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            let ends = Ends { own: own(peer.ip()), peer };
            self.handle_datagram(HeldDatagram {
                direction: Direction::Back,
                ends,
                bytes: packet[..length].to_vec(),
                fields,
            });
        }
    }

    fn handle_datagram(&self, held: HeldDatagram) {
        let mut state = self.state();
        if let (Some(names), Direction::Out, DNS) =
            (&state.names, held.direction, held.ends.peer.port())
        {
            let Ends { own, peer } = held.ends;
            let packet = names.answer_to(&held.bytes).and_then(|answer| emit(peer, own, &answer));
            if let Some(packet) = packet {
                self.write(&packet);
            }
            return;
        }
        let by_relay_alone = state.relays.as_ref().is_some_and(|relays| !relays.may_go_direct());
        match state.rules.fate(Transport::Udp, held.ends.peer) {
            // The program reaches this peer by the relay alone: datagrams that came past it are
            // dropped.
            Fate::Divert if held.direction == Direction::Back && by_relay_alone => {
                state.lost[1] += 1;
            }
            Fate::Divert => self.hold(&mut state, held),
            Fate::Leave => {
                if let (Some(report), Direction::Out) = (&state.report, held.direction) {
                    report.count(report::FlowOutcome::Direct, "udp", held.ends.peer);
                }
                self.release(&mut state, &held);
            }
            // The program gets the error when it sends.
            Fate::Refuse => {}
        }
    }

    /// Holds a datagram until the handlers release it.
    fn hold(&self, state: &mut State, held: HeldDatagram) {
        if state.waiting.len() >= MAX_WAITING {
            state.lost[0] += 1;
            return;
        }
        let id = state.next;
        state.next = id.wrapping_add(1);
        let HeldDatagram { direction, ends, ref bytes, .. } = held;
        match state.passage.handle_datagram(now(), ends, direction, bytes.len(), id) {
            Taken::Waits { begins } => {
                if let (Some(report), true) = (&state.report, begins) {
                    report.count(report::FlowOutcome::Handled, "udp", ends.peer);
                }
                state.waiting.insert(id, held);
            }
            Taken::Dropped => {}
        }
    }

    fn release(&self, state: &mut State, held: &HeldDatagram) {
        let Ends { own, peer } = held.ends;
        match held.direction {
            Direction::Back => {
                if let Some(mut packet) = emit(peer, own, &held.bytes) {
                    let HopFields { limit, class } = held.fields;
                    ip::restore(
                        &mut packet,
                        MutableFields {
                            ttl: limit.unwrap_or(DEFAULT_HOP_LIMIT),
                            tos: class.unwrap_or(0),
                        },
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
        HeldDatagram { bytes, fields, .. }: &HeldDatagram,
    ) -> io::Result<()> {
        if state.host_sockets.find(own).is_none() {
            // The program has not bound its socket, so that any port will do.
            let any: IpAddr = match own.ip() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let at = |port| HostSocket::at(SocketAddr::new(any, port));
            let host_socket = at(own.port()).or_else(|_| at(0))?;
            self.register(state, host_socket, own.port())?;
        }
        // To a host socket whose program has just closed its own: close it first, so that
        // the kernel reports the error.
        let ours = peer.ip().is_loopback() || state.own.has(peer.ip());
        if let (true, true, Some(lookup)) =
            (ours, state.host_sockets.has(peer.port()), &self.lookup)
            && !lookup.finds(own, peer)?
        {
            self.sweep(state);
        }
        let Some(host_socket) = state.host_sockets.find(own) else { return Ok(()) };
        // The first call may return the error of an earlier datagram.
        host_socket.send(bytes, peer, *fields).or_else(|_| host_socket.send(bytes, peer, *fields))
    }

    /// Registers a host socket for a program's socket at `port`.
    fn register(&self, state: &mut State, host_socket: HostSocket, port: u16) -> io::Result<()> {
        let number = state.host_sockets.next();
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, &host_socket.socket, data, epoll::EventFlags::IN)?;
        state.host_sockets.add(number, HostSocket { port, ..host_socket });
        Ok(())
    }

    /// Notes that routes or addresses have changed.
    fn note_route_change(&self) {
        if self.watch.as_ref().is_some_and(SourceRoutesWatch::changed) {
            self.state().routes_changed = true;
        }
    }

    /// Updates the routes of the capture namespace to those of this host, if they may have
    /// changed. The lock is released while all routes are read, so that datagrams of programs
    /// do not wait.
    fn refresh_routes(&self) {
        let mut state = self.state();
        let started = now();
        if !state.routes_changed || started < state.next_routes_read {
            return;
        }
        state.routes_changed = false;
        let (known, all) = (state.own.clone(), state.relays.is_some() || state.names.is_some());
        drop(state);
        let own = SourceRoutes::read(all);
        let is_new = own != *known;
        if is_new && let Err(error) = self.netns.set_routes(&own) {
            debug!("routes of the capture namespace: {error}");
        }
        let (now, mut state) = (now(), self.state());
        state.next_routes_read = now + MIN_ROUTES_INTERVAL.max(ROUTES_BACKOFF * now.since(started));
        if is_new {
            state.own = Arc::new(own);
        }
    }

    /// Handles sockets that programs have closed: closes those outside too, so that the kernel
    /// reports errors to their senders.
    fn handle_closed(&self) {
        if self.gone.as_ref().is_some_and(CloseWatch::any) {
            self.sweep(&mut self.state());
        }
    }

    /// Closes host sockets whose program has closed its own.
    fn sweep(&self, state: &mut State) {
        let now = now();
        state.last_sweep = now;
        if state.host_sockets.is_empty() && state.relays.is_none() {
            return;
        }
        let Ok(ports) = self.netns.udp_ports() else { return };
        let out = state.waiting.values().filter(|held| held.direction == Direction::Out);
        let waits: HashSet<u16> = out.map(|held| held.ends.own.port()).collect();
        let stays = |port| ports.contains(&port) || waits.contains(&port);
        state.host_sockets.retain(stays);
        if let Some(relays) = &mut state.relays {
            relays.retain(now, |own| stays(own.port()));
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
        limit: other(fields.ttl, DEFAULT_HOP_LIMIT).filter(|&limit| limit > 0),
        class: other(fields.tos, 0),
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
