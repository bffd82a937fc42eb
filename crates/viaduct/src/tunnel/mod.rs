//! Tunnels: flows enter a tunnel at the near end, which acts as the server of each flow, and leave
//! the tunnel at the far end, which acts as the client.
//!
//! ```text
//!   engine::dial ─▶ Outlet                            InboundStream ─▶ engine::tunnels
//!                      │                                    ▲
//!                      ▼                                    │
//!     flow ─ Conn ─ TunnelStream ─┐                     ┌─ TunnelStream ─ Conn ─ flow
//!     flow ─ Conn ─ TunnelStream ─┤   ┌── link ──┐      ├─ TunnelStream ─ Conn ─ flow
//!                                Peer ┤          ├─── Peer
//!                      (proto::tunnel)└── link ──┘(proto::tunnel)
//! ```
//!
//! | file | contains |
//! |---|---|
//! | here | [`Tunnels`]: all of a loop's tunnels, and their links |
//! | [`near`] | the near end of a tunnel, and its outlet |
//! | [`peer`] | a tunnel to one peer, which its streams share |
//! | [`stream`] | a stream of a tunnel, as an end of a flow |
//! | [`link`] | a link, over any transport |
//! | [`tcp`] | over TCP |
//! | [`channel`] | encryption over TCP: records under the sites' keys, or TLS |
//! | [`tls`] | TLS: over TCP, and of QUIC |
//! | [`quic`] | over QUIC: a QUIC stream for each stream of the tunnel |
//! | `setup` | setup and end of links |
//! | [`handover`] | handover of the listening end to another process |
//! | `strangers` | limits of unauthenticated links |
//! | `transfer` | reading and writing of links |
//! | [`dial`] | timing of dials |
//! | [`stats`] | counters |

mod channel;
mod dial;
mod handover;
mod link;
mod near;
mod peer;
mod quic;
pub mod settings;
mod setup;
pub mod stats;
mod strangers;
mod stream;
mod tcp;
mod tls;
mod transfer;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
use ring::rand::{SecureRandom, SystemRandom};
use slab::Slab;
use viaduct_proto::keys::{Entropy, PublicKey};
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::Tunnel;
use viaduct_sys::clock;

use dial::Slot;
use link::{Link, Transport};
use near::{Dialled, Near};
use peer::{Peer, SharedPeer};
use quic::Endpoint;
use settings::{Dial, TunnelName, TunnelSettings};
use tls::TlsConfigs;

pub use handover::InheritedTunnels;
pub use near::Outlet;
pub use peer::InboundStream;
pub use stream::{Readiness, TunnelStream};

/// First token of tunnels.
pub const FIRST_TOKEN: usize = usize::MAX / 2;
const LISTENER: Token = Token(FIRST_TOKEN);
const DATAGRAMS: Token = Token(FIRST_TOKEN + 1);
/// First token of links.
const LINKS: usize = FIRST_TOKEN + 2;
const BACKLOG: u32 = 64;
/// Time for which flows wait for links of a tunnel that one end hands over to another process.
const HANDOVER_TIME: Duration = Duration::from_secs(3);
/// Size of the read buffer, in bytes.
const SCRATCH: usize = 256 << 10;

/// All tunnels of a loop.
pub struct Tunnels {
    settings: TunnelSettings,
    registry: Registry,
    listener: Option<TcpListener>,
    /// The listener, while another process may be accepting the links.
    paused_listener: Option<TcpListener>,
    /// True once another process accepts and dials links in place of this one.
    is_leaving: bool,
    /// Time at which this process leaves the links that it has dialled.
    leave_at: Option<Instant>,
    /// Time at which accepting resumes after it has reached the limit of a turn, or has failed.
    accept_at: Option<Instant>,
    endpoint: Option<Endpoint>,
    tls: TlsConfigs,
    /// Number of unauthenticated links dropped to make room for others.
    strangers_dropped: u64,
    entropy: Entropy,
    links: Slab<Link>,
    /// Near ends: flows enter here.
    nears: Vec<Near>,
    /// Far ends: flows leave here.
    far: Vec<SharedPeer>,
    dialled: Dialled,
    scratch: Box<[u8]>,
}

impl Tunnels {
    /// Opens the listeners, and schedules the first dials. If another process hands its tunnels
    /// over, its sockets are `inherited`, and used instead.
    pub fn new(
        settings: TunnelSettings,
        inherited: Option<InheritedTunnels>,
        registry: Registry,
        now: Instant,
    ) -> Result<Tunnels> {
        let (is_continued, mut inherited) = (inherited.is_some(), inherited.unwrap_or_default());
        let mut listener = match settings.listen {
            Some(at) if !is_continued => {
                let listener = tcp::listen(at, BACKLOG, &settings);
                Some(listener.with_context(|| format!("cannot listen for tunnels at {at}"))?)
            }
            _ => inherited.listener(&settings)?,
        };
        if let Some(listener) = &mut listener {
            registry.register(listener, LISTENER, Interest::READABLE)?;
        }
        let quic = settings.uses_quic();
        let endpoint =
            quic.then(|| Endpoint::new(&settings, inherited.udp.take(), now)).transpose();
        let endpoint = endpoint.context("tunnel: cannot set up QUIC")?;
        if let Some(endpoint) = &endpoint {
            endpoint.register(&registry, DATAGRAMS)?;
        }
        let near = |(n, dial): (usize, &Dial)| {
            let near = Near::new(&settings, dial, now);
            // The time runs from the start on.
            if inherited.was_up(n) && dial.links > 0 {
                near.peer.lock().expect_links(Instant::from_nanos(u64::MAX));
            }
            near
        };
        let nears = settings.dials.iter().enumerate().map(near).collect();
        Ok(Tunnels {
            nears,
            registry,
            listener,
            paused_listener: None,
            is_leaving: false,
            leave_at: None,
            accept_at: None,
            endpoint,
            tls: TlsConfigs::new().context("tunnel: cannot set up TLS")?,
            strangers_dropped: 0,
            entropy: entropy(),
            links: Slab::new(),
            far: Vec::new(),
            dialled: Dialled::default(),
            scratch: vec![0; SCRATCH].into(),
            settings,
        })
    }

    /// Begins to dial. After a handover flows wait for the links from now on.
    pub fn start(&self, now: Instant) {
        for peer in self.nears.iter().map(|near| &near.peer) {
            let mut peer = peer.lock();
            if peer.is_expected(now) {
                peer.expect_links(now + HANDOVER_TIME);
            }
        }
    }

    /// Outlets by the tunnels' names: of the tunnels that this end dials, and of those of the peers
    /// in [`TunnelSettings::clients`].
    pub fn outlets(&self) -> HashMap<TunnelName, Outlet> {
        let waits = self.settings.waits;
        let clients = self.settings.clients.iter().map(|peer| {
            let (near, dialled) = (None, Some(self.dialled.clone()));
            (peer.name.clone(), Outlet { key: peer.key, near, dialled, waits, is_fallback: true })
        });
        let mut outlets: HashMap<_, _> = clients.collect();
        for Near { dial, peer, .. } in &self.nears {
            let dialled = outlets.get(&dial.name).and_then(|outlet| outlet.dialled.clone());
            let (key, near, is_fallback) = (dial.peer, Some(peer.clone()), dial.is_fallback);
            let outlet = Outlet { key, near, dialled, waits, is_fallback };
            outlets.insert(dial.name.clone(), outlet);
        }
        outlets
    }

    fn peers(&self) -> impl Iterator<Item = &SharedPeer> {
        self.nears.iter().map(|near| &near.peer).chain(&self.far)
    }

    /// Counters of each tunnel.
    pub fn counters(&self) -> Vec<stats::TunnelCounters> {
        let nears = self.nears.iter().map(Near::counters);
        nears.chain(self.far.iter().map(|peer| peer.lock().counters())).collect()
    }

    /// Unauthenticated links dropped to make room for others.
    pub fn strangers_dropped(&self) -> u64 {
        self.strangers_dropped
    }

    /// Returns whether no stream is open, so that all data is delivered, and, after a handover, no
    /// stream can still arrive.
    pub fn are_done(&self) -> bool {
        match self.is_leaving {
            // Until a link is closed, a stream may arrive that its peer has already opened.
            true => self.leave_at.is_none() && self.links.is_empty(),
            false => self.peers().all(|peer| peer.lock().tunnel.stats().open == 0),
        }
    }

    /// Permitted destinations of streams.
    pub fn allowed(&self) -> &[ipnet::IpNet] {
        &self.settings.allow_to
    }

    /// Returns whether the peer may open streams for a client with the address `client`. Without
    /// [`TunnelSettings::clients`], each peer may open streams for any client.
    pub fn may_be_client(&self, peer: &PublicKey, client: Option<SocketAddr>) -> bool {
        let clients = &self.settings.clients;
        let own = clients.iter().filter(|of| of.key == *peer).flat_map(|of| &of.prefixes);
        let is = |ip: IpAddr| own.clone().any(|net| net.contains(&ip.to_canonical()));
        clients.is_empty() || client.is_some_and(|at| is(at.ip()))
    }

    /// Returns whether servers see the addresses of clients.
    pub fn keeps_clients(&self) -> bool {
        !self.settings.clients.is_empty()
    }

    /// Changes the number of links to each far end. After a handover, the new process dials them.
    pub fn set_links(&mut self, dials: &[Dial], now: Instant) {
        if self.is_leaving {
            return;
        }
        for (near, dial) in self.nears.iter_mut().zip(dials) {
            near.set_links(dial.links, &self.links, now);
        }
    }

    /// Handles an event of one of the sockets.
    pub fn handle(&mut self, event: &Event, now: Instant) {
        match event.token() {
            LISTENER => self.accept(now),
            // There may be many sockets; `resume` reads all of them once.
            DATAGRAMS => self.endpoint.iter_mut().for_each(|endpoint| endpoint.readable = true),
            Token(token) => {
                let key = token - LINKS;
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                let writable = event.is_writable() || event.is_write_closed() || event.is_error();
                if let Some(Link { transport: Transport::Tcp(tcp), .. }) = self.links.get_mut(key) {
                    tcp.ready(readable, writable);
                    self.drive(key, now);
                }
            }
        }
    }

    /// Continues to read from sockets that had more data than the limit of one turn.
    pub fn resume(&mut self, now: Instant) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.readable) {
            self.receive(now);
        }
        let more = self.links.iter().filter(|(_, link)| link.is_readable());
        for key in more.map(|(key, _)| key).collect::<Vec<_>>() {
            self.drive(key, now);
        }
    }

    /// Returns whether there is work to do without waiting for an event.
    pub fn is_busy(&self) -> bool {
        let mut peers = self.peers();
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.readable)
            || self.links.iter().any(|(_, link)| link.is_readable())
            || peers.any(|peer| !peer.lock().ready.is_empty())
    }

    /// Takes the token and the readiness of the next stream end that has become readable or
    /// writable.
    pub fn poll_ready(&mut self) -> Option<(Token, Readiness)> {
        self.peers().find_map(|peer| peer.lock().ready.pop_front())
    }

    /// Takes the next stream that a peer has opened. In tunnels that this end dials, peers may open
    /// streams only if [`TunnelSettings::clients`] is not empty.
    pub fn poll_arrival(&mut self) -> Option<InboundStream> {
        let nears = self.nears.iter().filter(|_| self.keeps_clients()).map(|near| &near.peer);
        self.far.iter().chain(nears).find_map(|peer| {
            let (slot, to, source) = peer.lock().arrivals.pop_front()?;
            let key = peer.lock().key;
            Some(InboundStream { stream: TunnelStream::arrived(peer, slot), to, source, peer: key })
        })
    }

    /// Time at which [`handle_timeout`](Tunnels::handle_timeout) has something to do.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let tunnels = self.peers().filter_map(|peer| peer.lock().tunnel.poll_timeout()).min();
        let Tunnels { endpoint, links, nears, .. } = self;
        let slots = nears.iter().flat_map(|near| &near.slots).filter_map(Slot::poll_timeout);
        let links = links.iter_mut().filter_map(|(_, link)| link.poll_timeout(endpoint.as_ref()));
        let waits = nears.iter().filter_map(Near::gives_up_at);
        slots.chain(links).chain(tunnels).chain(waits).chain(self.accept_at).min()
    }

    /// Handles the timers due by `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept(now);
        }
        self.nears.iter().for_each(|near| near.give_up_waiting(now));
        for peer in self.peers() {
            let tunnel = &mut peer.lock().tunnel;
            if tunnel.poll_timeout().is_some_and(|at| at <= now) {
                tunnel.handle_timeout(now);
            }
        }
        let Tunnels { endpoint, links, .. } = self;
        let due = links.iter_mut().filter_map(|(key, link)| {
            let at = link.poll_timeout(endpoint.as_ref())?;
            (at <= now).then_some((key, link.place.is_none() && link.deadline <= now))
        });
        for (key, late) in due.collect::<Vec<_>>() {
            match late {
                true => self.close(key, &io::ErrorKind::TimedOut.into(), now),
                false => self.drive(key, now),
            }
        }
        let slots = self.nears.iter().enumerate().flat_map(|(n, near)| {
            let due = |slot: &Slot| slot.poll_timeout().is_some_and(|at| at <= now);
            (0..near.slots.len())
                .filter(move |&slot| due(&near.slots[slot]))
                .map(move |slot| (n, slot))
        });
        for slot in slots.collect::<Vec<_>>() {
            self.dial(slot, now);
        }
    }
}

impl Drop for Tunnels {
    /// Closes all links, including those over QUIC, so that the other ends learn of the end
    /// immediately.
    fn drop(&mut self) {
        let now = time();
        let why = io::Error::other("the process ends");
        for mut link in self.links.drain() {
            link.close(&why, self.endpoint.as_mut(), &self.registry, now);
        }
    }
}

/// Creates a tunnel to the peer with this key; `name` is empty if the tunnel has none.
fn new_peer(
    settings: &TunnelSettings,
    key: PublicKey,
    name: &str,
    instance: Option<u64>,
) -> SharedPeer {
    let mut random = [0; 8];
    entropy()(&mut random);
    let tunnel = Tunnel::new(settings.core.clone(), u64::from_be_bytes(random));
    SharedPeer(Arc::new(Mutex::new(Peer::new(tunnel, key, name, instance))))
}

/// Current time of the monotonic clock.
fn time() -> Instant {
    Instant::from_nanos(clock::now())
}

/// Source of the kernel's random bytes.
fn entropy() -> Entropy {
    Arc::new(|out: &mut [u8]| {
        // Security depends on the random bytes; the kernel always has some once it has started.
        SystemRandom::new().fill(out).expect("the kernel has random bytes");
    })
}
