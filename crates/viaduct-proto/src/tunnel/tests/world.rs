//! Two ends, the simulator's links between them, and a trivial model: the bytes that were
//! written to each stream, in order.

use std::collections::BTreeMap;
use std::iter;

use bytes::Bytes;

use crate::flow::{Address, Failure};
use crate::link::{Link, LinkConfig};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::tunnel::{Carrier, Event, Lane, LinkError, Settings, StreamId, Tunnel};

/// Direction of a link, as frames in flight by lane.
pub(super) type Wire = Link<(Lane, Vec<u8>)>;

/// Both ends of a tunnel, and the links between them.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) ends: [Tunnel; 2],
    /// Far end of the process that has handed over to that of `ends[1]`.
    pub(super) old: Option<Tunnel>,
    /// Links by number: one direction and the other.
    pub(super) links: BTreeMap<u32, [Wire; 2]>,
    pub(super) config: LinkConfig,
    pub(super) carrier: Carrier,
    pub(super) streams: BTreeMap<StreamId, Twin>,
    pub(super) events: [Vec<Event>; 2],
    pub(super) rng: Rng,
}

/// State of a stream at each end.
#[derive(Default)]
pub(super) struct Twin {
    pub(super) written: [Vec<u8>; 2],
    pub(super) read: [Vec<u8>; 2],
    pub(super) shut: [bool; 2],
    pub(super) finished: [bool; 2],
    /// Bytes that were read and not yet consumed.
    pub(super) kept: [usize; 2],
    pub(super) stopped: [bool; 2],
    /// True if the end knows the stream.
    pub(super) known: [bool; 2],
    pub(super) reset: bool,
}

/// Bytes that the socket of a link takes before it is full.
pub(super) const SOCKET: u64 = 64 << 10;

impl World {
    pub(super) fn new(settings: &Settings, link: &str, carrier: Carrier, links: usize) -> World {
        let mut world = World {
            now: Instant::ZERO,
            ends: [1, 2].map(|instance| Tunnel::new(settings.clone(), instance)),
            old: None,
            links: BTreeMap::new(),
            config: link.parse().unwrap(),
            carrier,
            streams: BTreeMap::new(),
            events: Default::default(),
            rng: Rng::from_seed(5),
        };
        (0..links).for_each(|_| world.dial());
        world.run(Duration::from_secs(1));
        world
    }

    pub(super) fn dial(&mut self) {
        let number = self.ends[0].dial(self.now, self.carrier);
        assert!(self.ends[1].accept_link(self.now, number, self.carrier));
        let link = || Link::new(self.config.clone(), 1, self.now);
        self.links.insert(number, [link(), link()]);
    }

    /// Replaces the far end by that of another process, whose links are dialled later. The old
    /// process leaves all of its links.
    pub(super) fn hand_over(&mut self, settings: &Settings) {
        let mut old = std::mem::replace(&mut self.ends[1], Tunnel::new(settings.clone(), 77));
        old.links().collect::<Vec<_>>().into_iter().for_each(|link| old.leave(link));
        self.old = Some(old);
    }

    /// Tunnel at `end` that has this link.
    pub(super) fn end(&mut self, end: usize, link: u32) -> &mut Tunnel {
        at(&mut self.ends, &mut self.old, end, link)
    }

    /// Breaks a link. The two ends learn of it at different times.
    pub(super) fn cut(&mut self, link: u32) {
        self.links.remove(&link);
        for twin in self.streams.iter_mut().filter(|(id, _)| id.link == link) {
            twin.1.reset = true;
        }
    }

    pub(super) fn open(&mut self, end: usize) -> Option<StreamId> {
        let to = Address::Name("server".to_owned(), 80);
        let id = self.ends[end].open(to, None)?;
        let known = [end == 0, end == 1];
        // This end may not know yet that the link is cut.
        let reset = !self.links.contains_key(&id.link);
        self.streams.insert(id, Twin { known, reset, ..Twin::default() });
        Some(id)
    }

    pub(super) fn write(&mut self, end: usize, id: StreamId, count: usize) {
        let mut bytes = vec![0; count];
        self.rng.fill(&mut bytes);
        let twin = self.streams.get_mut(&id).unwrap();
        let tunnel = at(&mut self.ends, &mut self.old, end, id.link);
        if !twin.shut[end] && tunnel.may_write(id) {
            twin.written[end].extend_from_slice(&bytes);
            let taken = tunnel.write(self.now, id, Bytes::from(bytes));
            assert!(taken || twin.reset || count == 0);
        }
    }

    pub(super) fn shutdown(&mut self, end: usize, id: StreamId) {
        self.streams.get_mut(&id).unwrap().shut[end] = true;
        self.end(end, id.link).shutdown(id);
    }

    pub(super) fn reset(&mut self, end: usize, id: StreamId) {
        self.streams.get_mut(&id).unwrap().reset = true;
        self.end(end, id.link).reset(id, Failure::Denied);
    }

    /// Reads all bytes that are available at `end`, unless the reader has stopped.
    pub(super) fn read(&mut self, end: usize, id: StreamId) {
        let Some(twin) = self.streams.get_mut(&id) else { return };
        let tunnel = at(&mut self.ends, &mut self.old, end, id.link);
        while !twin.stopped[end]
            && let Some(bytes) = tunnel.read(id)
        {
            twin.read[end].extend_from_slice(&bytes);
            let kept = bytes.len() / 3;
            twin.kept[end] += kept;
            tunnel.consumed(self.now, id, bytes.len() - kept);
        }
        if !twin.stopped[end] {
            tunnel.consumed(self.now, id, std::mem::take(&mut twin.kept[end]));
        }
    }

    pub(super) fn handle_events(&mut self) {
        for end in 0..2 {
            let old = |world: &mut World| world.old.as_mut().filter(|_| end == 1)?.poll_event();
            while let Some(event) = self.ends[end].poll_event().or_else(|| old(self)) {
                self.events[end].push(event.clone());
                match event {
                    Event::Opened { id, .. } => {
                        self.end(end, id.link).accept(id);
                        self.streams.get_mut(&id).unwrap().known[end] = true;
                        self.read(end, id);
                    }
                    Event::Readable(id) => self.read(end, id),
                    Event::Finished(id) => {
                        let twin = self.streams.get_mut(&id).unwrap();
                        assert!(!std::mem::replace(&mut twin.finished[end], true), "once");
                    }
                    Event::LinkDown(link, why) => {
                        // The GONE may have been sent on another link, which was also cut.
                        let silent = matches!(why, LinkError::Silent(_));
                        let gone = matches!(why, LinkError::Gone | LinkError::Restarted);
                        assert!(silent || gone, "{link}: {why}");
                        assert!(!self.links.contains_key(&link), "{link}: {why}");
                    }
                    _ => {}
                }
            }
        }
    }

    /// Hands the bytes of each end to the links, as far as their sockets take them.
    pub(super) fn transmit(&mut self) {
        let [near, far] = &mut self.ends;
        let all =
            iter::once((0, near)).chain(iter::once(far).chain(&mut self.old).map(|of| (1, of)));
        for (end, tunnel) in all {
            for (&link, wires) in &self.links {
                tunnel.set_writable(link, wires[end].backlog() < SOCKET);
            }
            let mut out = Vec::new();
            while let Some((link, lane)) = tunnel.poll_transmit(self.now, &mut out) {
                let bytes = std::mem::take(&mut out);
                let len = bytes.len();
                let Some(wires) = self.links.get_mut(&link) else { continue };
                let _ = wires[end].push(self.now, (lane, bytes), len);
                tunnel.set_writable(link, wires[end].backlog() < SOCKET);
            }
        }
    }

    /// Advances time by one step. Returns false if nothing happens before `until`.
    pub(super) fn step(&mut self, until: Instant) -> bool {
        self.handle_events();
        self.transmit();
        let wires = self.links.values().flatten();
        let arrivals = wires.filter_map(Link::poll_timeout);
        let timers = self.ends.iter().chain(&self.old).filter_map(Tunnel::poll_timeout);
        let Some(next) = arrivals.chain(timers).min().filter(|at| *at <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        for (&link, wires) in &mut self.links {
            for (from, wire) in wires.iter_mut().enumerate() {
                while let Some(delivery) = wire.poll(self.now) {
                    let (lane, bytes) = delivery.item;
                    let cut = self.rng.below(bytes.len() as u64 + 1) as usize;
                    let tunnel = at(&mut self.ends, &mut self.old, 1 - from, link);
                    for piece in [&bytes[..cut], &bytes[cut..]] {
                        tunnel.handle_bytes(self.now, link, lane, piece);
                    }
                }
            }
        }
        for end in self.ends.iter_mut().chain(&mut self.old) {
            if end.poll_timeout().is_some_and(|at| at <= self.now) {
                end.handle_timeout(self.now);
            }
        }
        true
    }

    pub(super) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.ends.iter_mut().for_each(Tunnel::check);
    }

    /// Lets every reader continue, and checks that all written bytes arrive.
    pub(super) fn settle(&mut self) {
        for _ in 0..3 {
            for id in self.streams.keys().copied().collect::<Vec<_>>() {
                for end in 0..2 {
                    self.streams.get_mut(&id).unwrap().stopped[end] = false;
                    self.read(end, id);
                }
            }
            self.run(Duration::from_secs(20));
        }
        for (id, twin) in &self.streams {
            for (from, to) in [(0, 1), (1, 0)] {
                let (written, read) = (&twin.written[from], &twin.read[to]);
                assert!(written.starts_with(read), "{id:?}: no byte differs");
                if !twin.reset {
                    assert_eq!(written.len(), read.len(), "{id:?} from {from}");
                    assert_eq!(twin.finished[to], twin.shut[from], "{id:?} from {from}");
                }
            }
        }
        for end in self.ends.iter_mut().chain(&mut self.old) {
            let stats = end.stats();
            assert_eq!((stats.held, stats.active), (0, 0), "all is read and acknowledged");
            assert_eq!(stats.tokens_left + stats.tokens_stranded, stats.tokens);
        }
    }

    pub(super) fn rate(&self, end: usize, id: StreamId, before: usize, time: Duration) -> f64 {
        (self.streams[&id].read[end].len() - before) as f64 / time.as_secs_f64()
    }

    /// Writes as much as possible for `time`, and returns the bytes per second that arrived.
    pub(super) fn bulk(&mut self, ids: &[StreamId], time: Duration) -> Vec<f64> {
        let before: Vec<usize> = ids.iter().map(|id| self.streams[id].read[1].len()).collect();
        let until = self.now + time;
        loop {
            for &id in ids {
                while self.ends[0].may_write(id) {
                    self.write(0, id, 65_536);
                }
            }
            if !self.step(until) {
                break;
            }
        }
        self.ends.iter_mut().for_each(Tunnel::check);
        ids.iter().zip(before).map(|(&id, before)| self.rate(1, id, before, time)).collect()
    }
}

/// Tunnel at `end` that has this link.
fn at<'a>(
    ends: &'a mut [Tunnel; 2],
    old: &'a mut Option<Tunnel>,
    end: usize,
    link: u32,
) -> &'a mut Tunnel {
    match old {
        Some(old) if end == 1 && old.links().any(|own| own == link) => old,
        _ => &mut ends[end],
    }
}
