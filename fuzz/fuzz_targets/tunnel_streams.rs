//! Two ends of a tunnel under any sequence of operations: tokens are conserved, a receiver never
//! holds more data than it has granted, and each stream's bytes arrive completely, once and in
//! order.
#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::Steps;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::tunnel::{Carrier, Event, Lane, Settings, StreamId, Tunnel};

#[derive(Arbitrary, Debug)]
struct Input {
    streams: bool,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Open {
        end: bool,
    },
    Write {
        end: bool,
        which: u8,
        count: u16,
    },
    Read {
        end: bool,
        which: u8,
        most: u8,
    },
    Consume {
        end: bool,
        which: u8,
        count: u16,
    },
    Shutdown {
        end: bool,
        which: u8,
    },
    Reset {
        end: bool,
        which: u8,
    },
    /// Up to `bytes` bytes that one end has sent arrive, on each lane of a link.
    Carry {
        from: bool,
        link: u8,
        bytes: u16,
    },
    Wait {
        millis: u16,
    },
    Dial,
    /// A link breaks; one end is notified immediately, the other at the end of the run.
    Cut {
        link: u8,
        first: bool,
    },
    Leave {
        end: bool,
        link: u8,
    },
}

/// A stream's bytes: those written at each end, those read at each end, and those read but not yet
/// consumed.
#[derive(Default)]
struct Twin {
    written: [Vec<u8>; 2],
    read: [Vec<u8>; 2],
    kept: [usize; 2],
    known: [bool; 2],
    shut: [bool; 2],
    finished: [bool; 2],
    broken: bool,
}

struct World {
    now: Instant,
    ends: [Tunnel; 2],
    /// Bytes in flight, by link, sender and lane.
    wires: BTreeMap<u32, [BTreeMap<Lane, Vec<u8>>; 2]>,
    /// Links that were cut.
    cut: Vec<u32>,
    carrier: Carrier,
    streams: BTreeMap<StreamId, Twin>,
}

fuzz_target!(|input: Input| {
    let settings = Settings {
        initial: 5_000,
        limit: 20_000,
        least_window: 50,
        mss: 700,
        queue: 3_000,
        streams: 6,
        ..Settings::default()
    };
    let mut world = World {
        now: Instant::ZERO,
        ends: [1, 2].map(|instance| Tunnel::new(settings.clone(), instance)),
        wires: BTreeMap::new(),
        cut: Vec::new(),
        carrier: if input.streams { Carrier::Streams } else { Carrier::Stream },
        streams: BTreeMap::new(),
    };
    world.dial();
    for step in &input.steps.0 {
        world.apply(step);
        world.settle_events();
        world.ends.iter_mut().for_each(Tunnel::check);
    }
    world.finish();
});

impl World {
    fn dial(&mut self) {
        if self.wires.len() < 4 {
            let number = self.ends[0].dial(self.now, self.carrier);
            assert!(self.ends[1].accept_link(self.now, number, self.carrier));
            self.wires.insert(number, Default::default());
        }
    }

    fn apply(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Open { end } => {
                let end = usize::from(end);
                if let Some(id) = self.ends[end].open(Address::Name("a".into(), 80), None) {
                    let mut twin = Twin::default();
                    twin.known[end] = true;
                    twin.broken = !self.wires.contains_key(&id.link);
                    assert!(self.streams.insert(id, twin).is_none(), "the number is new");
                }
            }
            Step::Write { end, which, count } => self.at(end, which, |tunnel, twin, end, id| {
                let start = twin.written[end].len();
                let bytes: Vec<u8> =
                    (start..start + usize::from(count)).map(|n| (n * 31 >> 3) as u8).collect();
                if tunnel.may_write(id) && tunnel.write(now, id, bytes.clone().into()) {
                    twin.written[end].extend(bytes);
                }
            }),
            Step::Read { end, which, most } => self.at(end, which, |tunnel, twin, end, id| {
                for _ in 0..most {
                    let Some(bytes) = tunnel.read(id) else { break };
                    twin.kept[end] += bytes.len();
                    twin.read[end].extend_from_slice(&bytes);
                }
            }),
            Step::Consume { end, which, count } => self.at(end, which, |tunnel, twin, end, id| {
                let count = twin.kept[end].min(usize::from(count));
                twin.kept[end] -= count;
                tunnel.consumed(now, id, count);
            }),
            Step::Shutdown { end, which } => self.at(end, which, |tunnel, twin, end, id| {
                tunnel.shutdown(id);
                twin.shut[end] = true;
            }),
            Step::Reset { end, which } => self.at(end, which, |tunnel, twin, _, id| {
                tunnel.reset(id, Failure::Denied);
                twin.broken = true;
            }),
            Step::Carry { from, link, bytes } => {
                self.transmit();
                let count = self.wires.len().max(1);
                if let Some(&link) = self.wires.keys().nth(usize::from(link) % count) {
                    self.carry(usize::from(from), link, usize::from(bytes));
                }
            }
            Step::Wait { millis } => {
                // Not long enough for a link to time out.
                self.now += Duration::from_millis(u64::from(millis % 50));
                self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
            }
            Step::Dial => self.dial(),
            Step::Cut { link, first } => self.cut(link, usize::from(first)),
            Step::Leave { end, link } => {
                let link = u32::from(link % 4);
                self.ends[usize::from(end)].leave(link);
            }
        }
    }

    /// Calls `act` for one of the streams that `end` knows, if there are any.
    fn at(
        &mut self,
        end: bool,
        which: u8,
        act: impl FnOnce(&mut Tunnel, &mut Twin, usize, StreamId),
    ) {
        let end = usize::from(end);
        let count = self.streams.values().filter(|twin| twin.known[end]).count().max(1);
        let mut known = self.streams.iter_mut().filter(|(_, twin)| twin.known[end]);
        if let Some((&id, twin)) = known.nth(usize::from(which) % count) {
            act(&mut self.ends[end], twin, end, id);
        }
    }

    fn transmit(&mut self) {
        for (end, tunnel) in self.ends.iter_mut().enumerate() {
            let mut out = Vec::new();
            while let Some((link, lane)) = tunnel.poll_transmit(self.now, &mut out) {
                let bytes = std::mem::take(&mut out);
                if let Some(wires) = self.wires.get_mut(&link) {
                    wires[end].entry(lane).or_default().extend(bytes);
                }
            }
        }
    }

    fn carry(&mut self, from: usize, link: u32, most: usize) {
        let Some(wires) = self.wires.get_mut(&link) else { return };
        for (&lane, wire) in &mut wires[from] {
            let rest = wire.split_off(most.min(wire.len()));
            let bytes = std::mem::replace(wire, rest);
            self.ends[1 - from].handle_bytes(self.now, link, lane, &bytes);
        }
    }

    fn cut(&mut self, link: u8, first: usize) {
        if self.wires.len() > 1
            && let Some(&link) = self.wires.keys().nth(usize::from(link) % self.wires.len())
        {
            self.wires.remove(&link);
            self.cut.push(link);
            self.ends[first].remove_link(link);
            let on = self.streams.iter_mut().filter(|(id, _)| id.link == link);
            on.for_each(|(_, twin)| twin.broken = true);
        }
    }

    fn settle_events(&mut self) {
        for (end, tunnel) in self.ends.iter_mut().enumerate() {
            while let Some(event) = tunnel.poll_event() {
                match event {
                    Event::Opened { id, .. } => {
                        self.streams.get_mut(&id).expect("by the other end").known[end] = true;
                        tunnel.accept(id);
                    }
                    Event::Finished(id) => {
                        let twin = self.streams.get_mut(&id).expect("a stream");
                        assert!(!std::mem::replace(&mut twin.finished[end], true), "once");
                        assert!(twin.shut[1 - end] && twin.read[end] == twin.written[1 - end]);
                    }
                    Event::Reset(id, _) => assert!(self.streams[&id].broken, "{id:?}"),
                    Event::LinkDown(link, why) => {
                        assert!(!self.wires.contains_key(&link), "{link}: {why}");
                    }
                    _ => {}
                }
            }
        }
    }

    /// Notifies both ends of all broken links; everything else arrives and is read.
    fn finish(&mut self) {
        for end in &mut self.ends {
            self.cut.iter().for_each(|&link| end.remove_link(link));
        }
        // If all tokens are stranded, a stream proceeds slowly, with only its least window.
        for _ in 0..2_000 {
            if self.has_arrived() {
                break;
            }
            self.transmit();
            for link in self.wires.keys().copied().collect::<Vec<_>>() {
                (0..2).for_each(|from| self.carry(from, link, usize::MAX));
            }
            self.settle_events();
            for (&id, twin) in &mut self.streams {
                for end in 0..2 {
                    while let Some(bytes) = self.ends[end].read(id) {
                        twin.kept[end] += bytes.len();
                        twin.read[end].extend_from_slice(&bytes);
                    }
                    let kept = std::mem::take(&mut twin.kept[end]);
                    self.ends[end].consumed(self.now, id, kept);
                }
            }
            self.now += Duration::from_millis(10);
            self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
            self.settle_events();
            self.ends.iter_mut().for_each(Tunnel::check);
        }
        for (id, twin) in &self.streams {
            for (from, to) in [(0, 1), (1, 0)] {
                assert!(twin.written[from].starts_with(&twin.read[to]), "{id:?}");
                assert!(twin.broken || twin.read[to].len() == twin.written[from].len(), "{id:?}");
                assert!(twin.broken || twin.finished[to] == twin.shut[from], "{id:?}");
            }
        }
    }

    /// Returns whether every stream that is not broken has arrived in full, its end included.
    fn has_arrived(&self) -> bool {
        let whole = |twin: &Twin, from: usize, to: usize| {
            twin.read[to].len() == twin.written[from].len() && twin.finished[to] == twin.shut[from]
        };
        self.streams.values().all(|t| t.broken || whole(t, 0, 1) && whole(t, 1, 0))
    }
}
