//! The tunnel: several links between two peers, and the streams on them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;

use super::common::{Common, Event, LinkError, Settings, StreamId};
use super::mux::{Carrier, Lane, MAX_GONE, Mux};
use super::stats::{LinkStats, StreamStats, TunnelStats};
use crate::flow::{Address, Failure};
use crate::time::Instant;

/// End of a tunnel. Calls for a stream that is over or a link that is gone do nothing: the caller's
/// state may lag behind the peer's messages.
#[derive(Debug)]
pub struct Tunnel {
    pub(super) common: Common,
    pub(super) links: BTreeMap<u32, Mux>,
    /// Number of the next link that this end dials.
    pub(super) next: u32,
    /// Link that had the last turn.
    turn: u32,
    /// Broken links to be reported to the peer on the next link: this end holds no bytes of them.
    gone: Vec<u32>,
    /// Former generations whose last streams are still open; they have no former ones themselves.
    pub(super) former: Vec<Tunnel>,
}

impl Tunnel {
    /// Creates a tunnel without links. `instance` is random: it distinguishes this tunnel from
    /// the one before a restart of the process.
    pub fn new(settings: Settings, instance: u64) -> Tunnel {
        Tunnel {
            common: Common::new(settings, instance),
            links: BTreeMap::new(),
            next: 1,
            turn: 0,
            gone: Vec::new(),
            former: Vec::new(),
        }
    }

    /// Adds a link that this end has dialled, and returns its number. If the peer has left a link,
    /// or all are left, a new generation begins, and the other links are left.
    pub fn dial(&mut self, now: Instant, carrier: Carrier) -> u32 {
        if self.is_left() || (!self.links.is_empty() && self.links.values().all(Mux::has_left)) {
            self.begin_generation();
        }
        self.common.now = now;
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.add(Mux::new(number, carrier, true, &self.common));
        number
    }

    /// Adds a link that the peer has dialled, with the number in its HELLO
    /// ([`peek_hello`](super::wire::peek_hello)). Returns false if there is already a link with
    /// this number.
    pub fn accept_link(&mut self, now: Instant, number: u32, carrier: Carrier) -> bool {
        self.common.now = now;
        let new = !self.links.contains_key(&number);
        if new {
            self.add(Mux::new(number, carrier, false, &self.common));
        }
        new
    }

    fn add(&mut self, mut mux: Mux) {
        for link in std::mem::take(&mut self.gone) {
            mux.report_gone(link);
        }
        self.links.insert(mux.number, mux);
    }

    /// Stops the opening of streams on a link, by this end and by the peer. When its last
    /// stream is over, [`is_over`](Tunnel::is_over) returns true.
    pub fn leave(&mut self, link: u32) {
        if let Some(mux) = self.generation(link).links.get_mut(&link) {
            mux.leave();
        }
    }

    /// Returns whether the peer has left a link, so that the next link begins a new generation.
    pub fn is_left(&self) -> bool {
        self.common.peer_leaves
    }

    /// Returns whether this end opens no more streams on a link.
    pub fn has_left(&self, link: u32) -> bool {
        self.link(link).is_some_and(Mux::has_left)
    }

    /// Returns whether a link can be removed: neither end opens streams on it any more, and its
    /// last stream is over.
    pub fn is_over(&self, link: u32) -> bool {
        self.link(link).is_some_and(Mux::is_over)
    }

    /// Removes a link whose connection broke or was closed. Its streams are reset.
    pub fn remove_link(&mut self, link: u32) {
        self.generation(link).break_off(link, true);
    }

    /// Numbers of the links.
    pub fn links(&self) -> impl Iterator<Item = u32> {
        self.generations().flat_map(|of| of.links.keys().copied())
    }

    /// Processes bytes that arrived on a link. `lane` is 0 unless the link has several lanes.
    pub fn handle_bytes(&mut self, now: Instant, link: u32, lane: Lane, bytes: &[u8]) {
        self.generation(link).handle_own_bytes(now, link, lane, bytes);
    }

    /// Processes bytes on a link of this generation.
    fn handle_own_bytes(&mut self, now: Instant, link: u32, lane: Lane, bytes: &[u8]) {
        self.common.now = now;
        let Some(mux) = self.links.get_mut(&link) else { return };
        let result = mux.handle_bytes(&mut self.common, lane, bytes);
        if std::mem::take(&mut self.common.restarted) {
            self.fail_former();
        }
        for gone in std::mem::take(&mut self.common.gone) {
            self.fail(gone, LinkError::Gone, false);
            self.common.tokens.release(gone);
        }
        if let Err(error) = result {
            // A restarted peer holds no bytes of the link, so none are stranded.
            let strand = error != LinkError::Restarted;
            self.fail(link, error, strand);
        }
    }

    /// Fails the links to the peer's former instance. A link that has not received HELLO is kept,
    /// because its far end may be the new instance.
    fn fail_former(&mut self) {
        let peer = self.common.peer;
        let is_former =
            |mux: &&Mux| mux.hello.is_some_and(|hello| peer.is_some_and(|p| p != hello.instance));
        let former: Vec<u32> =
            self.links.values().filter(is_former).map(|mux| mux.number).collect();
        former.into_iter().for_each(|link| self.fail(link, LinkError::Restarted, false));
    }

    /// Processes the end of a lane, on a link with several lanes: no bytes follow on the lane.
    pub fn handle_lane_end(&mut self, link: u32, lane: Lane) {
        let Tunnel { links, common, .. } = self.generation(link);
        if let Some(mux) = links.get_mut(&link) {
            mux.lane_ended(common, lane);
        }
    }

    /// Next stream that is over, on a link with several lanes. The stream's lane ends after the
    /// frames that [`poll_transmit`](Tunnel::poll_transmit) still returns for it.
    pub fn poll_forgotten(&mut self) -> Option<StreamId> {
        let own = self.common.forgotten.pop_front();
        own.or_else(|| self.former.iter_mut().find_map(|of| of.common.forgotten.pop_front()))
    }

    /// Sets whether a link takes bytes to send. A new link does.
    pub fn set_writable(&mut self, link: u32, is_writable: bool) {
        if let Some(mux) = self.generation(link).links.get_mut(&link) {
            mux.is_writable = is_writable;
        }
    }

    /// Appends the frames of one turn to `out`, and returns the link and lane on which they are to
    /// be sent. Links that take bytes have their turns one after the other. `None` if there is
    /// nothing to send.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<(u32, Lane)> {
        let former = self.former.iter_mut().find_map(|of| of.take_turn(now, out));
        former.or_else(|| self.take_turn(now, out))
    }

    /// Lets the next link of this generation take its turn.
    fn take_turn(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<(u32, Lane)> {
        self.common.now = now;
        let after = self.links.range(self.turn.saturating_add(1)..);
        let order: Vec<u32> =
            after.chain(self.links.range(..=self.turn)).map(|(&link, _)| link).collect();
        for link in order {
            let mux = self.links.get_mut(&link).filter(|mux| mux.is_writable);
            let lane = mux.and_then(|mux| mux.turn(&mut self.common, out));
            if let Some(lane) = lane {
                self.turn = link;
                return Some((link, lane));
            }
        }
        None
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let own = self.common.events.pop_front();
        let event =
            own.or_else(|| self.former.iter_mut().find_map(|of| of.common.events.pop_front()));
        if event.is_none() {
            self.forget_former();
        }
        event
    }

    /// Time at which to call [`handle_timeout`](Tunnel::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        let links = self.generations().flat_map(|of| of.links.values());
        links.filter_map(Mux::poll_timeout).min()
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.former.iter_mut().for_each(|of| of.handle_timeout(now));
        self.common.now = now;
        let mut broken = Vec::new();
        for (&link, mux) in &mut self.links {
            if let Err(error) = mux.handle_timeout(&mut self.common) {
                broken.push((link, error));
            }
        }
        broken.into_iter().for_each(|(link, error)| self.fail(link, error, true));
    }

    /// Opens a stream to `to`, for `source`, on the least loaded link. Bytes may be written
    /// immediately. `None` if no link is up, or each has as many streams as the peer allows.
    pub fn open(&mut self, to: Address, source: Option<SocketAddr>) -> Option<StreamId> {
        let turn = self.common.settings.mss;
        let vacant = self.links.values_mut().filter(|mux| mux.vacant() > 0);
        let mux = vacant.min_by_key(|mux| mux.load(turn))?;
        let number = mux.open(&mut self.common, to, source);
        Some(StreamId { link: mux.number, number })
    }

    /// Returns whether [`open`](Tunnel::open) opens a stream now.
    pub fn can_open(&self) -> bool {
        self.links.values().any(|mux| mux.vacant() > 0)
    }

    /// Accepts a stream that the peer has opened, and tells the peer.
    pub fn accept(&mut self, id: StreamId) {
        self.on(id, |mux, _| mux.accept(id.number));
    }

    /// Returns whether bytes may be written: fewer than [`Settings::queue`] wait. After false,
    /// [`Event::Writable`] is reported once bytes may be written again.
    pub fn may_write(&mut self, id: StreamId) -> bool {
        self.on(id, |mux, cx| mux.may_write(cx, id.number)).unwrap_or(false)
    }

    /// Queues all of `bytes`, however many bytes are already queued. A stream that was not accepted
    /// yet is accepted. Returns false, and queues nothing, if `bytes` is empty, or the stream is
    /// over or was shut down.
    pub fn write(&mut self, now: Instant, id: StreamId, bytes: Bytes) -> bool {
        self.generation(id.link).common.now = now;
        self.on(id, |mux, cx| mux.write(cx, id.number, bytes)).unwrap_or(false)
    }

    /// Reads the next bytes. They count as held by the tunnel until they
    /// are [`consumed`](Tunnel::consumed).
    pub fn read(&mut self, id: StreamId) -> Option<Bytes> {
        self.on(id, |mux, cx| mux.read(cx, id.number)).flatten()
    }

    /// Reports that `count` bytes read are no longer held, so that the peer may send others.
    pub fn consumed(&mut self, now: Instant, id: StreamId, count: usize) {
        self.generation(id.link).common.now = now;
        self.on(id, |mux, cx| mux.consumed(cx, id.number, count));
    }

    /// Ends the direction towards the peer. Queued bytes are still sent.
    pub fn shutdown(&mut self, id: StreamId) {
        self.on(id, |mux, _| mux.shutdown(id.number));
    }

    /// Ends a stream in both directions, and drops its queued bytes. No event follows.
    pub fn reset(&mut self, id: StreamId, why: Failure) {
        self.on(id, |mux, cx| mux.reset(cx, id.number, why));
    }

    /// Counters of the tunnel.
    pub fn stats(&self) -> TunnelStats {
        let mut stats = self.own_stats();
        self.former.iter().for_each(|of| stats.merge(&of.own_stats()));
        stats
    }

    /// Counters of a link.
    pub fn link_stats(&self, link: u32) -> Option<LinkStats> {
        self.link(link).map(Mux::stats)
    }

    /// Counters of a stream.
    pub fn stream_stats(&self, id: StreamId) -> Option<StreamStats> {
        let generation = self.generations().find(|of| of.links.contains_key(&id.link))?;
        let stream = generation.links[&id.link].streams.get(&id.number)?;
        Some(StreamStats {
            queued: stream.out.len() as u64,
            outstanding: generation.common.tokens.outstanding(stream.account),
            held: stream.unacknowledged(),
            sent: stream.sent,
            received: stream.received,
            delay: stream.delay,
        })
    }

    /// Checks the internal counts against each other. Panics: the counts disagree.
    #[cfg(any(test, fuzzing))]
    pub fn check(&mut self) {
        self.former.iter_mut().for_each(Tunnel::check);
        self.common.tokens.check();
        let streams = self.links.values().flat_map(|mux| mux.streams.values());
        self.common.window.check(streams.map(|stream| stream.unacknowledged()));
    }

    /// Uses up all numbers for streams that this end opens on a link, except the last one.
    #[cfg(test)]
    pub fn use_up(&mut self, link: u32) {
        self.links.values_mut().filter(|mux| mux.number == link).for_each(Mux::use_up);
    }

    /// Number of broken links whose report the peer has not confirmed.
    #[cfg(test)]
    pub fn untold(&self) -> usize {
        self.gone.len() + self.links.values().map(|mux| mux.reported_gone.len()).sum::<usize>()
    }

    fn on<T>(&mut self, id: StreamId, act: impl FnOnce(&mut Mux, &mut Common) -> T) -> Option<T> {
        let Tunnel { links, common, .. } = self.generation(id.link);
        links.get_mut(&id.link).map(|mux| act(mux, common))
    }

    /// Breaks a link off, and reports this.
    pub(super) fn fail(&mut self, link: u32, error: LinkError, strand: bool) {
        if self.break_off(link, strand) {
            self.common.events.push_back(Event::LinkDown(link, error));
        }
    }

    fn break_off(&mut self, link: u32, strand: bool) -> bool {
        let Some(mut mux) = self.links.remove(&link) else { return false };
        mux.break_off(&mut self.common, strand);
        // GONE reports that were sent on this link may have been lost with it.
        mux.reported_gone.push(link);
        mux.reported_gone.into_iter().for_each(|link| self.report_gone(link));
        true
    }

    /// Tells the peer that this end holds no bytes of a link.
    fn report_gone(&mut self, link: u32) {
        match self.links.values_mut().min_by_key(|mux| mux.hello.is_none()) {
            Some(mux) => mux.report_gone(link),
            None if self.gone.len() < MAX_GONE => self.gone.push(link),
            None => {}
        }
    }
}
