//! Datagrams of programs, without privilege: a program's sockets of UDP are in a hall ([`super::hall`])
//! which nothing leaves but by our hands, and each that has a port there has a socket of ours outside, at
//! the same port if that is free.
//!
//! ```text
//!   program ── its socket ──▶ hall ══ TUN ══▶ rules ─▶ flow::datagrams::Passage ─▶ a socket outside ──▶
//!           ◀── from whom it is ── hall ◀═ TUN ═ Passage ◀──────────────────────────── socket ◀──────
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;
use tracing::{debug, warn};
use viaduct_proto::flow::datagrams::{Ends, Passage, Taken, Way};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::datagram::{Datagram, emit, undelivered};
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::thread::set_timer_slack;
use viaduct_sys::{clock, hall};

use super::Plan;
use super::datagrams::{self, Passed};
use super::hall::Hall;
use super::report::{self, Report};

/// The longest packet.
const PACKET: usize = 65_535;
/// Datagrams that wait, at most.
const MOST: usize = 16_384;
/// Datagrams that are taken from one place before others have their turn.
const TURN: usize = 64;
/// How often it is looked which sockets are left.
const LOOK: Duration = Duration::from_millis(1000);
/// How late a datagram may go on so that the machine wakes up less often: not at all.
const SLACK: Duration = Duration::from_nanos(1);
/// The headers of IPv4, as the kernel writes them, and of UDP.
const HEADERS: usize = 28;
/// What the events of the TUN bear.
const TUN: u64 = u64::MAX;

/// Whoever carries them.
#[derive(Debug)]
pub struct Carried {
    hall: Hall,
    tun: OwnedFd,
    epoll: OwnedFd,
    own: Ipv4Addr,
    state: Mutex<State>,
}

struct State {
    passage: Passage,
    rules: Rules,
    report: Option<Report>,
    /// By the address and the port that the program knows.
    outside: HashMap<u64, Outside>,
    /// By what the passage calls them.
    waiting: HashMap<u32, Held>,
    next: u32,
    lost: u64,
    looked: Instant,
}

/// A socket of ours for one of a program's.
#[derive(Debug)]
struct Outside {
    socket: Arc<UdpSocket>,
    /// The address that the program has bound its own to; unspecified, if to none.
    at: Ipv4Addr,
}

/// A datagram that waits for its time.
struct Held {
    way: Way,
    ends: Ends,
    bytes: Vec<u8>,
}

impl Carried {
    /// Has datagrams pass the handlers of `plan`.
    ///
    /// # Errors
    /// They cannot: why.
    pub fn start(plan: &Plan) -> Result<Arc<Carried>> {
        let passage = datagrams::passage(plan).map_err(anyhow::Error::msg)?;
        let (hall, tun) = Hall::open_for_datagrams()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &tun, epoll::EventData::new_u64(TUN), epoll::EventFlags::IN)?;
        let state = Mutex::new(State {
            passage,
            rules: plan.rules,
            report: plan.report.clone(),
            outside: HashMap::new(),
            waiting: HashMap::new(),
            next: 0,
            lost: 0,
            looked: now(),
        });
        let own = hall::own_address();
        let carried = Arc::new(Carried { hall, tun, epoll, own, state });
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

    /// A socket of UDP for a program.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.hall.datagram_socket()
    }

    /// Binds `socket`, a duplicate of a program's, as it asks for.
    ///
    /// # Errors
    /// What the program is to be told: its address is taken, or another host's.
    pub fn bind(&self, socket: &OwnedFd, ip: Ipv4Addr, port: u16) -> io::Result<()> {
        let mut state = self.state();
        self.sweep(&mut state);
        let outside = rustix::net::socket_with(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
            None,
        )?;
        sockopt::set_socket_reuseaddr(&outside, sockopt::socket_reuseaddr(socket)?)?;
        sockopt::set_socket_reuseport(&outside, sockopt::socket_reuseport(socket)?)?;
        rustix::net::bind(&outside, &SocketAddr::new(ip.into(), port))?;
        let at: SocketAddr = rustix::net::getsockname(&outside)?.try_into()?;
        rustix::net::bind(socket, &at)?;
        self.open(&mut state, at.port(), ip, outside.into())
    }

    /// What handlers have let on so far.
    pub fn passed(&self) -> Passed {
        let state = self.state();
        let stats = state.passage.stats();
        Passed { bytes: stats.bytes, dropped: stats.dropped.iter().sum::<u64>() + state.lost }
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// For as long as the process runs.
    fn run(&self) -> io::Result<()> {
        let (mut events, mut packet) = (Vec::with_capacity(64), vec![0; PACKET]);
        loop {
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
            for event in &events {
                match event.data.u64() {
                    TUN => self.take_out(&mut packet),
                    key => self.take_back(key, &mut packet),
                }
            }
        }
    }

    /// Lets on what may go: how long there is nothing to do, unless something comes.
    fn turn(&self) -> Duration {
        let mut state = self.state();
        let now = now();
        while let Some(id) = state.passage.poll_ready(now) {
            if let Some(held) = state.waiting.remove(&id) {
                self.let_on(&mut state, &held);
            }
        }
        state.passage.handle_timeout(now);
        if now.since(state.looked) >= LOOK {
            self.sweep(&mut state);
        }
        state.passage.poll_timeout().map_or(LOOK, |at| at.since(now).min(LOOK))
    }

    /// What programs have sent.
    fn take_out(&self, packet: &mut [u8]) {
        for _ in 0..TURN {
            let Ok(length) = rustix::io::read(&self.tun, &mut *packet) else { return };
            let Some(datagram) = Datagram::parse(&packet[..length]) else { continue };
            let Datagram { source: own, destination: peer, bytes } = datagram;
            let payload = packet[..length].get(HEADERS..HEADERS + bytes);
            let (Some(bytes), true) = (payload, own.is_ipv4()) else { continue };
            let held = Held { way: Way::Out, ends: Ends { own, peer }, bytes: bytes.to_vec() };
            self.take(held);
        }
    }

    /// What has come to one of ours.
    fn take_back(&self, key: u64, packet: &mut [u8]) {
        let port = key as u16;
        let (socket, at) = match self.state().outside.get(&key) {
            Some(outside) => (outside.socket.clone(), outside.at),
            None => return,
        };
        while let Some(error) = hall::take_error(socket.as_fd()) {
            let (own, peer) = (self.own(at, error.to.ip(), port), error.to.into());
            self.write(&undelivered(own, peer, error.why));
        }
        for _ in 0..TURN {
            let (length, peer) = match socket.recv_from(packet) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // What was said of a datagram that did not arrive.
                Err(_) => continue,
            };
            let SocketAddr::V4(from) = peer else { continue };
            let ends = Ends { own: self.own(at, from.ip(), port), peer };
            self.take(Held { way: Way::Back, ends, bytes: packet[..length].to_vec() });
        }
    }

    /// The end that a program's datagrams to `peer` come from.
    fn own(&self, at: Ipv4Addr, peer: &Ipv4Addr, port: u16) -> SocketAddr {
        let ip = match (at.is_unspecified(), peer.is_loopback()) {
            (false, _) => at,
            (true, true) => Ipv4Addr::LOCALHOST,
            (true, false) => self.own,
        };
        SocketAddr::new(ip.into(), port)
    }

    fn take(&self, held: Held) {
        let mut state = self.state();
        match state.rules.fate(Transport::Udp, held.ends.peer) {
            Fate::Divert => {}
            Fate::Leave => {
                if let (Some(report), Way::Out) = (&state.report, held.way) {
                    report.count(report::Fate::Direct, "udp", held.ends.peer);
                }
                return self.let_on(&mut state, &held);
            }
            // Programs are told so when they send.
            Fate::Refuse => return,
        }
        if state.waiting.len() >= MOST {
            state.lost += 1;
            return;
        }
        let id = state.next;
        state.next = id.wrapping_add(1);
        let Held { way, ends, ref bytes } = held;
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
            Way::Back => {
                if let Some(packet) = emit(peer, own, &held.bytes) {
                    self.write(&packet);
                }
            }
            Way::Out => {
                if let Err(error) = self.send(state, own, peer, &held.bytes) {
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
        bytes: &[u8],
    ) -> io::Result<()> {
        let SocketAddr::V4(own) = own else { return Ok(()) };
        let keys = [*own.ip(), Ipv4Addr::UNSPECIFIED].map(|ip| key(ip, own.port()));
        if !keys.iter().any(|key| state.outside.contains_key(key)) {
            // The program has not bound it, so that another port will do.
            let outside = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, own.port()))
                .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
            self.open(state, own.port(), Ipv4Addr::UNSPECIFIED, outside)?;
        }
        let outside = keys.iter().find_map(|key| state.outside.get(key));
        let Some(outside) = outside else { return Ok(()) };
        let sent = outside.socket.send_to(bytes, peer);
        // What is said of an earlier one is said first, once.
        sent.or_else(|_| outside.socket.send_to(bytes, peer)).map(drop)
    }

    /// A socket of ours for a program's at `port`.
    fn open(
        &self,
        state: &mut State,
        port: u16,
        at: Ipv4Addr,
        socket: UdpSocket,
    ) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        // Whether the program may is asked in the hall.
        socket.set_broadcast(true)?;
        hall::hear_errors(&socket)?;
        let data = epoll::EventData::new_u64(key(at, port));
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        state.outside.insert(key(at, port), Outside { socket: Arc::new(socket), at });
        Ok(())
    }

    /// Closes ours of those that programs have closed.
    fn sweep(&self, state: &mut State) {
        state.looked = now();
        if state.outside.is_empty() {
            return;
        }
        let Ok(ports) = self.hall.udp_ports() else { return };
        let waiting = &state.waiting;
        let waits = |port| {
            waiting.values().any(|held| held.way == Way::Out && held.ends.own.port() == port)
        };
        state.outside.retain(|key, _| ports.contains(&(*key as u16)) || waits(*key as u16));
    }

    /// Hands the hall a packet, which drops it if nobody is there.
    fn write(&self, packet: &[u8]) {
        if let Err(error) = rustix::io::write(&self.tun, packet) {
            debug!("a datagram to a program: {error}");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What ours is known by: never as the TUN is.
fn key(at: Ipv4Addr, port: u16) -> u64 {
    u64::from(u32::from(at)) << 16 | u64::from(port)
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pairs", &self.passage.pairs()).finish_non_exhaustive()
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
