//! UDP in user space, which needs no privilege. A program's UDP sockets are in a capture namespace
//! ([`super::capture_ns`]) that only this process connects to other networks. Each program's socket
//! that is bound to a port has a host socket: a socket in the host's network namespace, at the same
//! port if that port is free.
//!
//! ```text
//!   program ── its socket ──▶ netns ══ out ══▶ rules ─▶ flow::datagrams::Passage ─▶ host socket
//!           ◀── from the peer ── netns ◀═ out ═ Passage ◀────────────────────────── host socket
//! ```
//!
//! If the chain ends at a relay ([`super::udp_associate`]), datagrams go to and from the relay
//! instead of the host socket.
//!
//! IPv6 datagrams to programs, and datagrams to `::1`, go through the loopback interface of the
//! capture namespace, as the kernel requires.

mod carry;
mod host_sockets;
mod routes;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::sockopt;
use tracing::debug;
use viaduct_proto::flow::datagrams::{Direction, Passage};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::netns::capture_ns::{
    CloseWatch, LoopbackSocket, SourceRoutes, SourceRoutesWatch, Uplink, Uplinks, udp_ports,
};
use viaduct_sys::socket::hop_fields::HopFields;
use viaduct_sys::socket::lookup::SocketLookup;

use self::carry::HeldDatagram;
use self::host_sockets::{HostSocket, HostSockets};
use super::Plan;
use super::capture_ns::CaptureNs;
use super::datagrams::{self, DatagramCounts, now, timespec};
use super::names::RemoteNames;
use super::report::Report;
use super::udp_associate::UdpRelays;

/// Maximum length of a packet, in bytes.
const MAX_PACKET: usize = 65_535;
/// Interval between checks for sockets that programs have closed.
const SWEEP_INTERVAL: Duration = Duration::from_millis(1000);
const DNS: u16 = 53;
/// Event data of the namespace's uplink, its loopback interface, the relays, closed sockets and
/// route changes. The event data of a host socket is its number.
const OUT: u64 = u64::MAX;
const LOOP: u64 = u64::MAX - 1;
const RELAYS: u64 = u64::MAX - 2;
const GONE: u64 = u64::MAX - 3;
const ROUTES: u64 = u64::MAX - 4;

/// Event loop that carries the datagrams of a run's programs in user space.
#[derive(Debug)]
pub struct UserUdp {
    /// Capture namespace of programs' sockets.
    pub netns: CaptureNs,
    out: Uplink,
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
    /// Resolver that answers DNS queries, if names are looked up at the far end.
    names: Option<Arc<RemoteNames>>,
    /// Held datagrams, by their tags in the `Passage`.
    waiting: HashMap<u32, HeldDatagram>,
    waiting_bytes: usize,
    next: u32,
    /// Datagrams dropped for lack of room; and those dropped because they bypassed the relay, or
    /// came through the relay although the rules do not select their peer.
    lost: [u64; 2],
    last_sweep: Instant,
    /// Addresses and routes of this host.
    own: Arc<SourceRoutes>,
    /// Earliest time of the next read of the routes.
    next_routes_read: Instant,
    /// True if the routes may have changed since they were last read.
    routes_changed: bool,
}

impl UserUdp {
    /// Starts to pass datagrams through the handlers of `plan`. Errors: the reason why datagrams
    /// cannot be carried.
    pub fn start(plan: &Plan) -> Result<Arc<UserUdp>> {
        let passage = datagrams::passage(plan).map_err(anyhow::Error::msg)?;
        let (netns, Uplinks { out, v6, gone, lookup }) = CaptureNs::open_for_datagrams()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let relays = UdpRelays::new(plan)?;
        // This fails without netlink. The namespace then lacks routes that are added later.
        let watch = SourceRoutesWatch::new().ok();
        let sources = [
            (Some(out.as_fd()), OUT),
            (v6.as_ref().map(AsFd::as_fd), LOOP),
            (gone.as_ref().map(AsFd::as_fd), GONE),
            (relays.as_ref().map(AsFd::as_fd), RELAYS),
            (watch.as_ref().map(AsFd::as_fd), ROUTES),
        ];
        for (source, key) in sources {
            let Some(source) = source else { continue };
            epoll::add(&epoll, source, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        }
        let own = SourceRoutes::read(relays.is_some() || plan.names.is_some());
        if let Err(error) = netns.set_routes(&own) {
            debug!("cannot set the routes of the capture namespace: {error}");
        }
        let state = Mutex::new(State {
            passage,
            rules: plan.rules,
            report: plan.report.clone(),
            host_sockets: HostSockets::default(),
            relays,
            names: plan.names.clone(),
            waiting: HashMap::new(),
            waiting_bytes: 0,
            next: 0,
            lost: [0; 2],
            last_sweep: now(),
            own: Arc::new(own),
            next_routes_read: now(),
            routes_changed: false,
        });
        let user_udp = Arc::new(UserUdp { netns, out, v6, gone, lookup, epoll, watch, state });
        let event_loop = user_udp.clone();
        datagrams::spawn(move || event_loop.run())?;
        Ok(user_udp)
    }

    /// Binds `socket`, a duplicate of a program's socket, to `at`. `v6` is true if the socket is an
    /// IPv6 socket. Errors, which the program gets: the address is in use, or does not belong to
    /// this host.
    pub fn bind(&self, socket: &OwnedFd, v6: bool, at: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        let host_socket = match HostSocket::like(socket, v6, at) {
            // The port may be held by a host socket whose program has closed its own socket.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                self.sweep(&mut state);
                HostSocket::like(socket, v6, at)?
            }
            made => made?,
        };
        let mut inside = SocketAddr::new(at.ip(), host_socket.port);
        if let (IpAddr::V4(ip), true) = (at.ip(), v6) {
            inside.set_ip(ip.to_ipv6_mapped().into());
        }
        rustix::net::bind(socket, &inside)?;
        let port = inside.port();
        self.register(&mut state, host_socket, port)
    }

    /// Checks that this host has a route for a datagram from `socket`, a program's socket, to `to`.
    /// Errors: the error that the kernel would return if the socket were outside the capture
    /// namespace.
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

    /// Returns the counters of datagrams so far.
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

    /// Runs the event loop until the process ends.
    fn run(&self) -> io::Result<()> {
        let (mut events, mut packet) = (Vec::with_capacity(64), vec![0; MAX_PACKET]);
        loop {
            self.refresh_routes();
            let wait = timespec(self.release_due());
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // Closed sockets are handled first, so that hosts that send to them get errors.
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

    /// Releases datagrams that are due. Returns the time until the next timeout.
    fn release_due(&self) -> Duration {
        let mut state = self.state();
        let now = now();
        while let Some(id) = state.passage.poll_ready(now) {
            let Some(held) = state.waiting.remove(&id) else { continue };
            state.waiting_bytes -= held.bytes.len();
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
                let (direction, fields) = (Direction::Out, HopFields::default());
                self.release(&mut state, &HeldDatagram { direction, ends, bytes, fields });
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
        // Timeouts of relays may be handled as late as the next sweep.
        state.passage.poll_timeout().map_or(look, |at| at.since(now).min(look))
    }

    fn register(&self, state: &mut State, host_socket: HostSocket, port: u16) -> io::Result<()> {
        let number = state.host_sockets.next();
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, &host_socket.socket, data, epoll::EventFlags::IN)?;
        state.host_sockets.add(number, HostSocket { port, ..host_socket });
        Ok(())
    }

    /// Handles sockets that programs have closed: closes their host sockets, so that the kernel
    /// reports errors to senders.
    fn handle_closed(&self) {
        if self.gone.as_ref().is_some_and(CloseWatch::any) {
            self.sweep(&mut self.state());
        }
    }

    /// Closes the host sockets and relays whose programs have closed their own sockets.
    fn sweep(&self, state: &mut State) {
        let now = now();
        state.last_sweep = now;
        if state.host_sockets.list.is_empty() && state.relays.is_none() {
            return;
        }
        let Ok(ports) = udp_ports(self.netns.holder) else { return };
        let out = state.waiting.values().filter(|held| held.direction == Direction::Out);
        let waits: HashSet<u16> = out.map(|held| held.ends.own.port()).collect();
        let stays = |port| ports.contains(&port) || waits.contains(&port);
        state.host_sockets.retain(stays);
        if let Some(relays) = &mut state.relays {
            relays.retain(now, |own| stays(own.port()));
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
