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
//! | [`dial`] | when to try again |
//! | [`pump`] | how the loop drives all this |

mod dial;
mod link;
mod near;
mod peer;
mod pump;
mod quic;
mod session;
pub mod settings;
mod stream;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};
use ring::rand::{SecureRandom, SystemRandom};
use slab::Slab;
use tracing::{debug, info, warn};
use viaduct_proto::keys::{Entropy, PublicKey};
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::wire::{Hello, peek_hello};
use viaduct_proto::tunnel::{SessionId, Tunnel};

use dial::Slot;
use link::{Link, Place, Tools, Wire};
use near::Near;
use peer::{Peer, SharedPeer};
use quic::{Arrived, Endpoint};
use settings::{CarrierKind, Dial, TunnelName, TunnelSettings};
use stream::Stream;

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
/// Links that have not shown yet whose they are, at most.
const STRANGERS: usize = 64;
/// How long a link may take until it is up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes read at once.
const SCRATCH: usize = 256 << 10;

/// All tunnels of a loop.
pub struct Tunnels {
    settings: TunnelSettings,
    registry: Registry,
    listener: Option<TcpListener>,
    endpoint: Option<Endpoint>,
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
            endpoint,
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
        self.peers().map(|peer| peer.lock().counters()).collect()
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

    fn accept(&mut self, now: Instant) {
        while let Some(listener) = &self.listener {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return warn!("accept a link: {error}"),
            };
            if self.is_crowded() {
                debug!("{from}: too many links wait to show whose they are");
                continue;
            }
            let stream = Stream::accepted(stream, &self.settings, self.entropy.clone());
            self.add(Wire::Stream(stream.into()), None, now);
        }
    }

    /// Whether no more links are taken before some have shown whose they are.
    fn is_crowded(&self) -> bool {
        self.links.iter().filter(|(_, link)| link.place.is_none()).count() >= STRANGERS
    }

    /// Reads datagrams.
    fn receive(&mut self, now: Instant) {
        let crowded = self.is_crowded();
        let Some(endpoint) = &mut self.endpoint else { return };
        endpoint.readable = true;
        let mut driven = BTreeSet::new();
        for arrived in endpoint.receive(crowded, now) {
            match arrived {
                Arrived::For(key, event) => {
                    if let Some(Link { wire: Wire::Quic(quic), .. }) = self.links.get_mut(key) {
                        quic.handle_event(*event);
                        driven.insert(key);
                    }
                }
                Arrived::New(quic) => driven.extend(self.add(Wire::Quic(quic), None, now)),
            }
        }
        driven.into_iter().for_each(|key| self.drive(key, now));
    }

    fn add(&mut self, mut wire: Wire, slot: Option<Place>, now: Instant) -> Option<usize> {
        let entry = self.links.vacant_entry();
        let key = entry.key();
        match (&mut wire, &mut self.endpoint) {
            (Wire::Stream(stream), _) => {
                let both = Interest::READABLE | Interest::WRITABLE;
                let watched = self.registry.register(stream.source(), Token(LINKS + key), both);
                watched.inspect_err(|error| warn!("register a link: {error}")).ok()?;
            }
            (Wire::Quic(quic), Some(endpoint)) => endpoint.insert(quic, key),
            (Wire::Quic(_), None) => return None,
        }
        entry.insert(Link { wire, slot, place: None, deadline: now + PATIENCE });
        Some(key)
    }

    /// Reads and writes what can be.
    fn drive(&mut self, key: usize, now: Instant) {
        let result = self.receive_by(key, now).and_then(|()| self.place(key, now));
        let result = result.and_then(|placed| {
            // What came behind the first words is read now.
            if placed { self.receive_by(key, now) } else { Ok(()) }
        });
        match result {
            Ok(()) => self.send(key, now),
            Err(error) => self.close(key, &error, now),
        }
    }

    fn receive_by(&mut self, key: usize, now: Instant) -> io::Result<()> {
        let Tunnels { links, endpoint, settings, nears, entropy, scratch, .. } = self;
        let Some(link) = links.get_mut(key) else { return Ok(()) };
        let settings = link.slot.map_or(&*settings, |(near, _)| &nears[near].settings);
        let mut tools = Tools { endpoint: endpoint.as_mut(), settings, entropy, scratch };
        link.receive(&mut tools, now)
    }

    /// Gives a link that has shown whose it is its place in a tunnel; whether it did.
    fn place(&mut self, key: usize, now: Instant) -> io::Result<bool> {
        let Some(link) = self.links.get_mut(key) else { return Ok(false) };
        if link.place.is_some() || !link.is_up() {
            return Ok(false);
        }
        let carrier = link.carrier();
        let (peer, number) = match link.slot {
            Some((near, _)) => {
                let peer = self.nears[near].peer.clone();
                let number = peer.lock().tunnel.dial(now, carrier);
                (peer, number)
            }
            None => {
                let hello = peek_hello(link.early()).map_err(io::Error::other)?;
                let (Some(hello), Some(from)) = (hello, link.peer()) else { return Ok(false) };
                let peer = self.far_peer(from, hello);
                if !peer.lock().tunnel.accept_link(now, hello.link, carrier) {
                    return Err(io::Error::other("a link that is there already"));
                }
                (peer, hello.link)
            }
        };
        let link = &mut self.links[key];
        let early = std::mem::take(link.early());
        peer.lock().keys.insert(number, key);
        peer.lock().tunnel.handle_bytes(now, number, 0, &early);
        link.place = Some((peer, number));
        Ok(true)
    }

    /// The tunnel that a HELLO belongs to; a new one, if it is of a peer that was started since.
    fn far_peer(&mut self, key: PublicKey, hello: Hello) -> SharedPeer {
        self.far.retain(|peer| !peer.lock().is_idle());
        let same = |peer: &&SharedPeer| peer.lock().is(key, hello.instance);
        if let Some(peer) = self.far.iter().find(same) {
            return peer.clone();
        }
        let peer = new_peer(&self.settings, key, Some(hello.instance));
        self.far.push(peer.clone());
        peer
    }

    /// Closes a link; its slot dials again.
    fn close(&mut self, key: usize, why: &io::Error, now: Instant) {
        let Some(mut link) = self.links.try_remove(key) else { return };
        link.close(self.endpoint.as_mut(), &self.registry, now);
        let up = link.place.is_some();
        info!(up, "a link of the tunnel is gone: {why}");
        if let Some((peer, number)) = link.place {
            let mut peer = peer.lock();
            peer.keys.remove(&number);
            peer.tunnel.remove_link(number);
        }
        if let Some(slot) = link.slot {
            self.slot(slot).failed(up, now);
        }
    }

    /// Sends what the tunnels have to send, and closes links that they have done with.
    pub fn flush(&mut self, now: Instant) {
        for peer in self.peers().cloned().collect::<Vec<_>>() {
            let mut turn = Vec::new();
            loop {
                turn.clear();
                let next = peer.lock().tunnel.poll_transmit(now, &mut turn);
                let Some((number, lane)) = next else { break };
                let Some(&key) = peer.lock().keys.get(&number) else { continue };
                let link = &mut self.links[key];
                link.push(lane, &turn);
                if link.is_full() {
                    self.send(key, now);
                }
            }
            self.end_lanes(&peer);
            let keys: Vec<usize> = peer.lock().keys.values().copied().collect();
            for key in keys {
                self.send(key, now);
            }
            self.settle(&peer, now);
        }
    }

    /// Ends the lanes of sessions that are over.
    fn end_lanes(&mut self, peer: &SharedPeer) {
        loop {
            let over = peer.lock().tunnel.poll_forgotten();
            let Some(SessionId { link, number }) = over else { return };
            if let Some(&key) = peer.lock().keys.get(&link) {
                self.links[key].end(number);
            }
        }
    }

    /// Takes what a tunnel has to tell.
    fn settle(&mut self, peer: &SharedPeer, now: Instant) {
        loop {
            let (down, over) = peer.lock().settle();
            if down.is_empty() && over.is_empty() {
                return;
            }
            for (key, why) in down {
                self.close(key, &io::Error::other(why), now);
            }
            for key in over {
                self.close(key, &io::Error::other("it was left"), now);
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

    fn send(&mut self, key: usize, now: Instant) {
        let Some(link) = self.links.get_mut(key) else { return };
        if let Err(error) = link.flush(self.endpoint.as_mut(), now) {
            self.close(key, &error, now);
        }
    }

    /// The token of a session's end that is ready, and for what.
    pub fn poll_ready(&mut self) -> Option<(Token, Took)> {
        self.peers().find_map(|peer| peer.lock().ready.pop_front())
    }

    /// The next session that a peer has opened.
    pub fn poll_arrival(&mut self) -> Option<Arrival> {
        self.far.iter().find_map(|peer| {
            let arrival = peer.lock().arrivals.pop_front()?;
            Some(Arrival {
                session: Session::arrived(peer, arrival.0),
                to: arrival.1,
                source: arrival.2,
            })
        })
    }

    /// When [`handle_timeout`](Tunnels::handle_timeout) has something to do.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let tunnels = self.peers().filter_map(|peer| peer.lock().tunnel.poll_timeout()).min();
        let Tunnels { endpoint, links, nears, .. } = self;
        let slots = nears.iter().flat_map(|near| &near.slots).filter_map(Slot::poll_timeout);
        let links = links.iter_mut().filter_map(|(_, link)| link.poll_timeout(endpoint.as_ref()));
        slots.chain(links).chain(tunnels).min()
    }

    /// Does what is due by now.
    pub fn handle_timeout(&mut self, now: Instant) {
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

    fn dial(&mut self, slot: Place, now: Instant) {
        let Near { settings, dial: Dial { to, .. }, .. } = &self.nears[slot.0];
        let wire = match (settings.carrier, &mut self.endpoint) {
            (CarrierKind::Quic, Some(endpoint)) => {
                endpoint.dial(*to, now).map(|quic| Wire::Quic(quic.into()))
            }
            _ => Stream::dial(*to, settings, self.entropy.clone())
                .map(|stream| Wire::Stream(stream.into())),
        };
        match wire {
            Ok(wire) => {
                let key = self.add(wire, Some(slot), now);
                self.slot(slot).dialled(key);
                key.into_iter().for_each(|key| self.drive(key, now));
            }
            Err(error) => {
                debug!("dial {to}: {error}");
                self.slot(slot).failed(false, now);
            }
        }
    }

    fn slot(&mut self, (near, slot): Place) -> &mut Slot {
        &mut self.nears[near].slots[slot]
    }
}

fn new_peer(settings: &TunnelSettings, key: PublicKey, instance: Option<u64>) -> SharedPeer {
    let mut random = [0; 8];
    entropy()(&mut random);
    let tunnel = Tunnel::new(settings.core.clone(), u64::from_be_bytes(random));
    SharedPeer::new(Peer::new(tunnel, key, instance))
}

/// The kernel's random bytes.
fn entropy() -> Entropy {
    Arc::new(|out: &mut [u8]| {
        // Without them nothing here is safe; the kernel always has them once it has started.
        SystemRandom::new().fill(out).expect("the kernel gives random bytes");
    })
}
