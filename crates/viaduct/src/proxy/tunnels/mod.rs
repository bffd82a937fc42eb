//! Tunnels of a proxy: flows enter one at its near end, as if it were a server, and leave it at its
//! far end, as if they were clients'.
//!
//! ```text
//!     flow ─ Leg ─ Session ─┐                        ┌─ Session ─ Leg ─ flow
//!     flow ─ Leg ─ Session ─┤      ┌── link ──┐      ├─ Session ─ Leg ─ flow
//!                          Peer ───┤          ├─── Peer
//!                   (proto::tunnel)└── link ──┘(proto::tunnel)
//! ```
//!
//! | file | noun |
//! |---|---|
//! | here | [`Tunnels`]: all of a loop's tunnels, and what carries them |
//! | [`near`] | the near end of a tunnel, and the way into it |
//! | [`peer`] | a tunnel to one peer, which its sessions share |
//! | [`session`] | a flow's end |
//! | [`link`] | a link, whatever carries it |
//! | [`stream`] | over TCP: records under the sites' keys |
//! | [`quic`] | over QUIC: a stream for each session |
//! | `coming` | how links come about, and go |
//! | `strangers` | how many may not have shown whose they are |
//! | `carrying` | how they are driven |
//! | [`dial`] | when to try again |
//! | [`pump`] | how the loop drives all this |

mod carrying;
mod coming;
mod dial;
mod link;
mod near;
mod peer;
mod pump;
mod quic;
mod session;
pub mod settings;
pub(super) mod strangers;
mod stream;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

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
use link::{Link, Wire};
use near::Near;
use peer::{Peer, SharedPeer};
use quic::Endpoint;
use settings::{CarrierKind, Dial, TunnelName, TunnelSettings};

pub use near::Outlet;
pub use peer::Arrival;
pub use session::Session;
pub use stream::Took;

/// Tokens of tunnels begin here.
pub const FIRST_TOKEN: usize = usize::MAX / 2;
const LISTENER: Token = Token(FIRST_TOKEN);
const DATAGRAMS: Token = Token(FIRST_TOKEN + 1);
/// Links' tokens begin here.
const LINKS: usize = FIRST_TOKEN + 2;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 64;
/// Bytes read at once.
const SCRATCH: usize = 256 << 10;

/// All tunnels of a loop.
pub struct Tunnels {
    settings: TunnelSettings,
    registry: Registry,
    listener: Option<TcpListener>,
    /// When links are accepted again, after a turn's worth or a failure.
    accept_at: Option<Instant>,
    endpoint: Option<Endpoint>,
    /// Links that were let go for others before their ends had shown a key.
    strangers_dropped: u64,
    entropy: Entropy,
    links: Slab<Link>,
    /// Where flows enter.
    nears: Vec<Near>,
    /// Where they leave.
    far: Vec<SharedPeer>,
    scratch: Box<[u8]>,
}

impl Tunnels {
    /// Listens, and begins to dial.
    pub fn new(settings: TunnelSettings, registry: Registry, now: Instant) -> Result<Tunnels> {
        let listener = settings.listen.map(|at| {
            let listener = stream::listen(at, BACKLOG, &settings);
            listener.with_context(|| format!("tunnel-listen: cannot use {at}"))
        });
        let mut listener = listener.transpose()?;
        if let Some(listener) = &mut listener {
            registry.register(listener, LISTENER, Interest::READABLE)?;
        }
        let quic = settings.listen.is_some() || settings.carrier == CarrierKind::Quic;
        let endpoint = quic.then(|| Endpoint::new(&settings, now)).transpose();
        let endpoint = endpoint.context("tunnel: QUIC cannot begin")?;
        if let Some(endpoint) = &endpoint {
            endpoint.register(&registry, DATAGRAMS)?;
        }
        let nears = settings.dials.iter().map(|dial| Near::new(&settings, dial, now)).collect();
        Ok(Tunnels {
            nears,
            registry,
            listener,
            accept_at: None,
            endpoint,
            strangers_dropped: 0,
            entropy: entropy(),
            links: Slab::new(),
            far: Vec::new(),
            scratch: vec![0; SCRATCH].into(),
            settings,
        })
    }

    /// The ways into the tunnels that this end dials.
    pub fn outlets(&self) -> HashMap<TunnelName, Outlet> {
        self.nears.iter().map(|near| (near.dial.name.clone(), near.outlet())).collect()
    }

    fn peers(&self) -> impl Iterator<Item = &SharedPeer> {
        self.nears.iter().map(|near| &near.peer).chain(&self.far)
    }

    /// What each has counted.
    pub fn counters(&self) -> Vec<super::stats::TunnelCounters> {
        let nears = self.nears.iter().map(Near::counters);
        nears.chain(self.far.iter().map(|peer| peer.lock().counters())).collect()
    }

    /// Links that were let go for others before their ends had shown a key.
    pub fn strangers_dropped(&self) -> u64 {
        self.strangers_dropped
    }

    /// Whether all that was said in sessions has arrived, and none is left.
    pub fn are_done(&self) -> bool {
        self.peers().all(|peer| peer.lock().tunnel.stats().open == 0)
    }

    /// The servers that sessions may leave to.
    pub fn allowed(&self) -> &[ipnet::IpNet] {
        &self.settings.allow_to
    }

    /// As many links to each far end as these say, from now on.
    pub fn set_links(&mut self, dials: &[Dial], now: Instant) {
        for (near, dial) in self.nears.iter_mut().zip(dials) {
            near.set_links(dial.links, &self.links, now);
        }
    }

    /// An event of one of its sockets.
    pub fn handle(&mut self, event: &Event, now: Instant) {
        match event.token() {
            LISTENER => self.accept(now),
            DATAGRAMS => self.receive(now),
            Token(token) => {
                let key = token - LINKS;
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                let writable = event.is_writable() || event.is_write_closed() || event.is_error();
                if let Some(Link { wire: Wire::Stream(stream), .. }) = self.links.get_mut(key) {
                    stream.ready(readable, writable);
                    self.drive(key, now);
                }
            }
        }
    }

    /// Reads on where there was more than one turn takes.
    pub fn resume(&mut self, now: Instant) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.readable) {
            self.receive(now);
        }
        let more = self.links.iter().filter(|(_, link)| link.is_readable());
        for key in more.map(|(key, _)| key).collect::<Vec<_>>() {
            self.drive(key, now);
        }
    }

    /// Whether there is something to do before any event.
    pub fn is_busy(&self) -> bool {
        let mut peers = self.peers();
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.readable)
            || self.links.iter().any(|(_, link)| link.is_readable())
            || peers.any(|peer| !peer.lock().ready.is_empty())
    }

    /// The token of a session's end that is ready, and for what.
    pub fn poll_ready(&mut self) -> Option<(Token, Took)> {
        self.peers().find_map(|peer| peer.lock().ready.pop_front())
    }

    /// The next session that a peer has opened.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.far.iter().find_map(|peer| {
            let (seat, to, source) = peer.lock().arrivals.pop_front()?;
            let key = peer.lock().key;
            Some(Arrival { session: Session::arrived(peer, seat), to, source, peer: key })
        })
    }

    /// When [`handle_timeout`](Tunnels::handle_timeout) has something to do.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let tunnels = self.peers().filter_map(|peer| peer.lock().tunnel.poll_timeout()).min();
        let Tunnels { endpoint, links, nears, .. } = self;
        let slots = nears.iter().flat_map(|near| &near.slots).filter_map(Slot::poll_timeout);
        let links = links.iter_mut().filter_map(|(_, link)| link.poll_timeout(endpoint.as_ref()));
        slots.chain(links).chain(tunnels).chain(self.accept_at).min()
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept(now);
        }
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
    /// Whoever is at the other end of a link hears at once that this one has gone, also by QUIC.
    fn drop(&mut self) {
        let now = Instant::from_nanos(clock::now());
        let why = io::Error::other("the process ends");
        for mut link in self.links.drain() {
            link.close(&why, self.endpoint.as_mut(), &self.registry, now);
        }
    }
}

/// The tunnel to the peer of this key, called `name` if it was given one.
fn new_peer(
    settings: &TunnelSettings,
    key: PublicKey,
    name: &str,
    instance: Option<u64>,
) -> SharedPeer {
    let mut random = [0; 8];
    entropy()(&mut random);
    let tunnel = Tunnel::new(settings.core.clone(), u64::from_be_bytes(random));
    SharedPeer::new(Peer::new(tunnel, key, name, instance))
}

/// The kernel's random bytes.
fn entropy() -> Entropy {
    Arc::new(|out: &mut [u8]| {
        // Without them nothing here is safe; the kernel always has them once it has started.
        SystemRandom::new().fill(out).expect("the kernel gives random bytes");
    })
}
