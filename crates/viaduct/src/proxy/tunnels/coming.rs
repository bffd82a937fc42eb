//! How links come about, here and from elsewhere, get their place in a tunnel, and go.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::{Interest, Token};
use quinn_proto::ConnectionError;
use tracing::{debug, info, warn};
use viaduct_proto::keys::PublicKey;
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::wire::{Hello, peek_hello};

use super::super::onward::Onward;
use super::dial::Slot;
use super::link::{Link, Place, Wire};
use super::near::Near;
use super::peer::SharedPeer;
use super::quic::Arrived;
use super::settings::{CarrierKind, Dial};
use super::strangers::{self, Source};
use super::stream::Stream;
use super::{LINKS, Tunnels, new_peer};

/// How long a link may take until it is up.
const PATIENCE: Duration = Duration::from_secs(10);

impl Tunnels {
    pub(super) fn dial(&mut self, slot: Place, now: Instant) {
        let Near { settings, dial: Dial { to, .. }, .. } = &self.nears[slot.0];
        let to = *to;
        let wire = match (settings.carrier, &mut self.endpoint) {
            (CarrierKind::Quic, Some(endpoint)) => {
                endpoint.dial(to, now).map(|quic| Wire::Quic(quic.into()))
            }
            _ => Stream::dial(to, settings, self.entropy.clone())
                .map(|stream| Wire::Stream(stream.into())),
        };
        match wire {
            Ok(wire) => {
                let key = self.add(wire, to, Some(slot), now);
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

    pub(super) fn accept(&mut self, now: Instant) {
        while let Some(listener) = &self.listener {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return warn!("accept a link: {error}"),
            };
            let stream = Stream::accepted(stream, &self.settings, self.entropy.clone());
            self.admit(Wire::Stream(stream.into()), from, now);
        }
    }

    /// Takes a link that somebody has dialled; one that has waited too long may go for it.
    fn admit(&mut self, wire: Wire, from: SocketAddr, now: Instant) -> Option<usize> {
        let waiting = self.strangers(matches!(wire, Wire::Quic(_)));
        if let Some(key) = strangers::in_the_way(&waiting, from.ip().into()) {
            self.close(key, &io::Error::other("others wait to show whose they are"), now);
        }
        self.add(wire, from, None, now)
    }

    /// Links that have not shown yet whose they are, the oldest first.
    fn strangers(&self, quic: bool) -> Vec<(usize, Source)> {
        let is = |link: &Link| link.is_stranger() && matches!(link.wire, Wire::Quic(_)) == quic;
        let mut waiting: Vec<_> = self.links.iter().filter(|(_, link)| is(link)).collect();
        waiting.sort_by_key(|(_, link)| link.deadline);
        waiting.into_iter().map(|(key, link)| (key, link.remote.ip().into())).collect()
    }

    /// Reads datagrams.
    pub(super) fn receive(&mut self, now: Instant) {
        let crowded = strangers::is_crowded(self.strangers(true).len());
        let Some(endpoint) = &mut self.endpoint else { return };
        endpoint.readable = true;
        let mut driven = BTreeSet::new();
        for arrived in endpoint.receive(crowded) {
            match arrived {
                Arrived::For(key, event) => {
                    if let Some(Link { wire: Wire::Quic(quic), .. }) = self.links.get_mut(key) {
                        quic.handle_event(*event);
                        driven.insert(key);
                    }
                }
                Arrived::New(quic, from) => driven.extend(self.admit(Wire::Quic(quic), from, now)),
            }
        }
        driven.into_iter().for_each(|key| self.drive(key, now));
    }

    fn add(
        &mut self,
        mut wire: Wire,
        remote: SocketAddr,
        slot: Option<Place>,
        now: Instant,
    ) -> Option<usize> {
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
        entry.insert(Link { wire, remote, slot, place: None, deadline: now + PATIENCE });
        Some(key)
    }

    /// Gives a link that has shown whose it is its place in a tunnel; whether it did.
    pub(super) fn place(&mut self, key: usize, now: Instant) -> io::Result<bool> {
        let Some(link) = self.links.get_mut(key) else { return Ok(false) };
        if link.place.is_some() || !link.is_up() {
            return Ok(false);
        }
        let carrier = link.carrier();
        let (peer, number) = match link.slot {
            Some((near, _)) => {
                let peer = self.nears[near].peer.clone();
                let number = peer.lock().tunnel.dial(now, carrier);
                self.nears[near].is_up();
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
        let peer = new_peer(&self.settings, key, "", Some(hello.instance));
        self.far.push(peer.clone());
        peer
    }

    /// Closes a link; its slot dials again.
    pub(super) fn close(&mut self, key: usize, why: &io::Error, now: Instant) {
        let Some(mut link) = self.links.try_remove(key) else { return };
        link.close(self.endpoint.as_mut(), &self.registry, now);
        let (up, remote) = (link.place.is_some(), link.remote);
        match (link.is_stranger(), up) {
            // Anybody can have as many of these as they like.
            (true, _) => debug!("{remote} dialled and did not show a known key: {why}"),
            (_, true) => {
                let name = link.slot.map(|(near, _)| self.nears[near].name());
                let name = name.unwrap_or(Onward::Tunnel(String::new()));
                info!("a link of the {name} with {remote} is gone: {why}");
            }
            (_, false) => {
                let why = match is_the_peers(why) {
                    true => format!(
                        "{remote} has closed it ({why}); does it know this site's public key, and \
                         is its own given here?"
                    ),
                    false => format!("{remote}: {why}"),
                };
                link.slot.into_iter().for_each(|(near, _)| self.nears[near].complain(&why, now));
            }
        }
        if let Some((peer, number)) = link.place {
            let mut peer = peer.lock();
            peer.keys.remove(&number);
            peer.tunnel.remove_link(number);
        }
        if let Some(slot) = link.slot {
            self.slot(slot).failed(up, now);
        }
    }
}

/// Whether the other end has ended a link, and not the way to it.
fn is_the_peers(why: &io::Error) -> bool {
    let lost = why.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(why.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
        || matches!(lost, Some(ConnectionError::ApplicationClosed(_)))
}
