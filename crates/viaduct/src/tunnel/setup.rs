//! Setup and end of links: dialling, accepting, assignment to a tunnel, and closing.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;

use mio::{Interest, Token};
use quinn_proto::ConnectionError;
use tracing::{debug, info, warn};
use viaduct_proto::keys::PublicKey;
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::record::RecordError;
use viaduct_proto::tunnel::wire::{Hello, peek_hello};

use super::channel::Channel;
use super::dial::Slot;
use super::link::{Credentials, Link, SlotIndex, Transport, record_error};
use super::near::Near;
use super::peer::SharedPeer;
use super::quic::Arrived;
use super::settings::{CarrierKind, title};
use super::strangers;
use super::tcp::TcpLink;
use super::{DATAGRAMS, LINKS, Tunnels, new_peer};
use crate::rate_limited::RateLimitedLog;
use crate::source::Source;

/// Maximum time for the handshake and the HELLO message.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of links accepted in one turn before other sockets are served.
const MAX_ACCEPTS: usize = 64;
/// Time until links are accepted again after a failure, such as a lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Rate-limited warning that links cannot be accepted: once a minute.
static ACCEPT_FAILURES: RateLimitedLog<()> = RateLimitedLog::new(1);

impl Tunnels {
    pub(super) fn dial(&mut self, slot: SlotIndex, now: Instant) {
        let Near { settings, dial, .. } = &self.nears[slot.0];
        let to = dial.to;
        let transport = match (settings.carrier, &mut self.endpoint) {
            (CarrierKind::Quic, Some(endpoint)) => {
                endpoint.dial(to, now).map(|quic| Transport::Quic(quic.into()))
            }
            _ => {
                let credentials = Credentials { settings, entropy: &self.entropy, tls: &self.tls };
                TcpLink::dial(dial, credentials).map(|tcp| Transport::Tcp(tcp.into()))
            }
        };
        match transport {
            Ok(transport) => {
                let Some(key) = self.add(transport, to, Some(slot), now) else {
                    return self.slot(slot).failed(false, now);
                };
                self.slot(slot).dialled(key);
                self.drive(key, now);
            }
            Err(error) => {
                debug!("cannot dial {to}: {error}");
                self.slot(slot).failed(false, now);
            }
        }
    }

    fn slot(&mut self, (near, slot): SlotIndex) -> &mut Slot {
        &mut self.nears[near].slots[slot]
    }

    /// Accepts pending links, at most [`MAX_ACCEPTS`]. The listener is watched edge-triggered, so a
    /// timer resumes accepting after the limit is reached, and after a failure.
    pub(super) fn accept(&mut self, now: Instant) {
        self.accept_at = None;
        let mut left = MAX_ACCEPTS;
        while let Some(listener) = &self.listener {
            if left == 0 {
                self.accept_at = Some(now);
                return;
            }
            left -= 1;
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    ACCEPT_FAILURES.warn(
                        (),
                        format_args!("cannot accept links now, they wait in the backlog: {error}"),
                    );
                    self.accept_at = Some(now + ACCEPT_RETRY);
                    return;
                }
            };
            self.add_accepted(Transport::Tcp(TcpLink::accepted(stream).into()), from, now);
        }
    }

    /// Adds an accepted link. If there is no room, the new link replaces an unauthenticated one.
    fn add_accepted(
        &mut self,
        transport: Transport,
        from: SocketAddr,
        now: Instant,
    ) -> Option<usize> {
        let quic = matches!(transport, Transport::Quic(_));
        let limits = self.settings.stranger_memory.limits(quic);
        if let Some(key) = strangers::link_to_drop(&self.strangers(quic), from.ip().into(), limits)
        {
            self.strangers_dropped += 1;
            self.close(key, &io::Error::other("dropped in favour of a newer link"), now);
        }
        self.add(transport, from, None, now)
    }

    /// Unauthenticated links, the oldest first: over QUIC if `quic` is true, otherwise over TCP.
    fn strangers(&self, quic: bool) -> Vec<(usize, Source)> {
        let is = |link: &Link| {
            link.is_stranger() && matches!(link.transport, Transport::Quic(_)) == quic
        };
        let mut waiting: Vec<_> = self.links.iter().filter(|(_, link)| is(link)).collect();
        waiting.sort_unstable_by_key(|(_, link)| link.deadline);
        waiting.into_iter().map(|(key, link)| (key, link.remote.ip().into())).collect()
    }

    /// Number of unauthenticated links.
    #[cfg(test)]
    pub(super) fn strangers_held(&self) -> usize {
        self.links.iter().filter(|(_, link)| link.is_stranger()).count()
    }

    /// Reads datagrams of links over QUIC.
    pub(super) fn receive(&mut self, now: Instant) {
        let limits = self.settings.stranger_memory.limits(true);
        let crowded = strangers::is_crowded(self.strangers(true).len(), limits);
        let Some(endpoint) = &mut self.endpoint else { return };
        endpoint.readable = true;
        let mut driven = BTreeSet::new();
        for arrived in endpoint.receive(crowded) {
            match arrived {
                Arrived::For(key, event) => {
                    if let Some(Link { transport: Transport::Quic(quic), .. }) =
                        self.links.get_mut(key)
                    {
                        quic.handle_event(*event);
                        driven.insert(key);
                    }
                }
                Arrived::New(quic, from) => {
                    driven.extend(self.add_accepted(Transport::Quic(quic), from, now));
                }
            }
        }
        driven.into_iter().for_each(|key| self.drive(key, now));
    }

    fn add(
        &mut self,
        mut transport: Transport,
        remote: SocketAddr,
        slot: Option<SlotIndex>,
        now: Instant,
    ) -> Option<usize> {
        let entry = self.links.vacant_entry();
        let key = entry.key();
        match (&mut transport, &mut self.endpoint) {
            (Transport::Tcp(tcp), _) => {
                let both = Interest::READABLE | Interest::WRITABLE;
                let watched = self.registry.register(&mut tcp.stream, Token(LINKS + key), both);
                watched.inspect_err(|error| warn!("cannot register a link: {error}")).ok()?;
            }
            (Transport::Quic(quic), Some(endpoint)) => {
                endpoint.insert(quic, key);
                if let Err(error) = endpoint.watch(quic, &self.registry, DATAGRAMS) {
                    warn!("cannot register a link: {error}");
                    quic.close(0, endpoint, now);
                    endpoint.remove(quic);
                    return None;
                }
            }
            (Transport::Quic(_), None) => return None,
        }
        entry.insert(Link {
            transport,
            remote,
            slot,
            place: None,
            deadline: now + HANDSHAKE_TIMEOUT,
        });
        Some(key)
    }

    /// Assigns a link to its tunnel if both ends have authenticated and, on an accepted link, HELLO
    /// has arrived. Returns whether the link was assigned by this call.
    pub(super) fn place(&mut self, key: usize, now: Instant) -> io::Result<bool> {
        let Some(link) = self.links.get_mut(key) else { return Ok(false) };
        if link.place.is_some() || !link.is_up() {
            return Ok(false);
        }
        let carrier = link.carrier();
        let (peer, number) = match link.slot {
            Some((near, slot)) => {
                let Near { peer, slots, .. } = &self.nears[near];
                let number = peer.lock().tunnel.dial(now, carrier);
                if slots[slot].is_retired() {
                    peer.lock().tunnel.leave(number);
                }
                (peer.clone(), number)
            }
            None => {
                let hello = peek_hello(link.early()).map_err(io::Error::other)?;
                let (Some(hello), Some(from)) = (hello, link.peer()) else { return Ok(false) };
                let peer = self.far_peer(from, hello);
                if !peer.lock().tunnel.accept_link(now, hello.link, carrier) {
                    return Err(io::Error::other("the tunnel already has a link with this number"));
                }
                (peer, hello.link)
            }
        };
        let link = &mut self.links[key];
        // Another process accepts further links.
        if link.slot.is_none() && (self.is_leaving || self.paused_listener.is_some()) {
            peer.lock().tunnel.leave(number);
        }
        link.trust(self.settings.core.streams);
        let early = std::mem::take(link.early());
        peer.lock().keys.insert(number, key);
        peer.lock().tunnel.handle_bytes(now, number, 0, &early);
        link.place = Some((peer, number));
        Ok(true)
    }

    /// Returns the tunnel to which a HELLO belongs: a new tunnel if this is the first link since
    /// the peer's process started.
    fn far_peer(&mut self, key: PublicKey, hello: Hello) -> SharedPeer {
        self.far.retain(|peer| !peer.lock().is_idle());
        let same = |peer: &&SharedPeer| peer.lock().is(key, hello.instance);
        if let Some(peer) = self.far.iter().find(same) {
            return peer.clone();
        }
        let peer = new_peer(&self.settings, key, "", Some(hello.instance));
        self.far.push(peer.clone());
        let mut dialled = self.dialled.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = dialled.entry(key).or_default();
        of_key.retain(|peer| !peer.lock().is_idle());
        of_key.insert(0, peer.clone());
        drop(dialled);
        peer
    }

    /// Closes a link; its slot, if any, is dialled again.
    pub(super) fn close(&mut self, key: usize, why: &io::Error, now: Instant) {
        let Some(mut link) = self.links.try_remove(key) else { return };
        link.close(why, self.endpoint.as_mut(), &self.registry, now);
        let (up, remote) = (link.place.is_some(), link.remote);
        match (link.is_stranger(), up) {
            // Logged only at the debug level, because any host can cause any number of these lines.
            (true, _) => {
                debug!("{remote} dialled, but did not authenticate with a known key: {why}");
            }
            (_, true) => {
                let name = link.slot.map(|(near, _)| title(&self.nears[near].dial.name));
                let name = name.unwrap_or_else(|| "tunnel".to_owned());
                info!("a link of the {name} with {remote} is gone: {why}");
                if let Some((near, _)) = link.slot {
                    self.nears[near].mark_broken(&why.to_string(), now);
                }
            }
            (_, false) => {
                let why = reason(&link, why);
                link.slot.into_iter().for_each(|(near, _)| self.nears[near].log_failure(&why, now));
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

/// Reason why a link did not come up.
fn reason(link: &Link, why: &io::Error) -> String {
    let remote = link.remote;
    match record_error(why) {
        Some(RecordError::Refused(refusal)) => format!("{remote}: {refusal}"),
        Some(_) => format!("{remote} is not the far end of this key: {why}"),
        None if is_the_peers(why) => {
            let middle = match &link.transport {
                Transport::Tcp(tcp) if matches!(tcp.channel, Channel::Tls(_)) => {
                    ", or a device on the path decrypts TLS"
                }
                _ => "",
            };
            format!(
                "{remote} has closed the link ({why}): its key is not the one that is given as \
                 peer here, or it speaks another version of the tunnel{middle}"
            )
        }
        None => format!("{remote}: {why}"),
    }
}

/// Returns whether the other end, rather than the network, has closed a link.
fn is_the_peers(why: &io::Error) -> bool {
    let lost = why.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(why.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
        || matches!(lost, Some(ConnectionError::ApplicationClosed(_)))
}
