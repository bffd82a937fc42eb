//! Reading from links and writing to them.

use std::io;
use std::sync::Arc;

use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::StreamId;

use super::link::{Credentials, Tools};
use super::peer::SharedPeer;
use super::{HANDOVER_TIME, Tunnels};

impl Tunnels {
    /// Reads from a link and writes to it, as many bytes as possible.
    pub(super) fn drive(&mut self, key: usize, now: Instant) {
        let result = self.receive_by(key, now).and_then(|()| self.place(key, now));
        let result = result.and_then(|placed| {
            // Bytes that follow the handshake are read immediately, because no further event
            // announces them.
            if placed { self.receive_by(key, now) } else { Ok(()) }
        });
        match result {
            Ok(()) => {
                self.settle_if_left(key, now);
                self.send(key, now);
            }
            Err(error) => self.close(key, &error, now),
        }
    }

    fn receive_by(&mut self, key: usize, now: Instant) -> io::Result<()> {
        let Tunnels { links, endpoint, settings, nears, entropy, tls, scratch, .. } = self;
        let Some(link) = links.get_mut(key) else { return Ok(()) };
        let settings = link.slot.map_or(&*settings, |(near, _)| &nears[near].settings);
        let credentials = Credentials { settings, entropy, tls };
        let mut tools = Tools { endpoint: endpoint.as_mut(), credentials, scratch };
        link.receive(&mut tools, now)
    }

    /// Sends the tunnels' frames that are due, and closes links that the tunnels no longer use.
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

    /// Ends the lanes of streams that have ended.
    fn end_lanes(&mut self, peer: &SharedPeer) {
        loop {
            let over = peer.lock().tunnel.poll_forgotten();
            let Some(StreamId { link, number }) = over else { return };
            if let Some(&key) = peer.lock().keys.get(&link) {
                self.links[key].end(number);
            }
        }
    }

    /// Frees the slot of a link that its peer has left, before a flow finds that no link is up.
    fn settle_if_left(&mut self, key: usize, now: Instant) {
        let place = self.links.get(key).and_then(|link| link.place.clone());
        if let Some((peer, _)) = place.filter(|(peer, _)| peer.lock().tunnel.is_left()) {
            self.settle(&peer, now);
        }
    }

    fn settle(&mut self, peer: &SharedPeer, now: Instant) {
        loop {
            let (down, over) = peer.lock().settle();
            if std::mem::take(&mut peer.lock().has_come_up)
                && let Some(near) =
                    self.nears.iter_mut().find(|near| Arc::ptr_eq(&near.peer.0, &peer.0))
            {
                near.mark_up(now);
            }
            self.free_slots(peer, now);
            if down.is_empty() && over.is_empty() {
                return;
            }
            for (key, why) in down {
                self.close(key, &io::Error::other(why), now);
            }
            for key in over {
                self.close(key, &io::Error::other("the link is no longer used"), now);
            }
        }
    }

    /// Frees the slots of links that this tunnel has left, so that replacements are dialled.
    /// Retired slots keep their links. A link that was left ends with its last stream.
    fn free_slots(&mut self, peer: &SharedPeer, now: Instant) {
        let near = self.nears.iter_mut().find(|near| Arc::ptr_eq(&near.peer.0, &peer.0));
        for slot in near.into_iter().flat_map(|near| &mut near.slots) {
            let link = slot.link.filter(|_| !slot.is_retired());
            let link = link.and_then(|key| self.links.get_mut(key));
            if let Some(link) = link
                && let Some((_, number)) = &link.place
                && peer.lock().tunnel.has_left(*number)
            {
                link.slot = None;
                slot.failed(true, now);
                peer.lock().expect_links(now + HANDOVER_TIME);
            }
        }
    }

    fn send(&mut self, key: usize, now: Instant) {
        let Some(link) = self.links.get_mut(key) else { return };
        if let Err(error) = link.flush(self.endpoint.as_mut(), now) {
            self.close(key, &error, now);
        }
    }
}
