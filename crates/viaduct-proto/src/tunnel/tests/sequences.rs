//! Random sequences of operations, at both ends, on links that break.

use proptest::prelude::*;

use super::small;
use super::world::World;
use crate::time::Duration;
use crate::tunnel::{Carrier, StreamId, Tunnel};

#[derive(Clone, Debug)]
enum Op {
    Open { end: usize },
    Write { end: usize, which: usize, count: usize },
    Shutdown { end: usize, which: usize },
    Reset { end: usize, which: usize },
    Stop { end: usize, which: usize, stopped: bool },
    Run { millis: u64 },
    Dial,
    Cut { which: usize, first: usize },
    HandOver,
}

fn op() -> impl Strategy<Value = Op> {
    let (end, which) = (0..2_usize, 0..1_000_usize);
    let at = (end.clone(), which.clone());
    prop_oneof![
        3 => end.clone().prop_map(|end| Op::Open { end }),
        8 => (at.clone(), 0..30_000_usize)
            .prop_map(|((end, which), count)| Op::Write { end, which, count }),
        2 => at.clone().prop_map(|(end, which)| Op::Shutdown { end, which }),
        1 => at.clone().prop_map(|(end, which)| Op::Reset { end, which }),
        2 => (at, any::<bool>())
            .prop_map(|((end, which), stopped)| Op::Stop { end, which, stopped }),
        6 => (0..200_u64).prop_map(|millis| Op::Run { millis }),
        1 => Just(Op::Dial),
        1 => (which, end).prop_map(|(which, first)| Op::Cut { which, first }),
        1 => Just(Op::HandOver),
    ]
}

impl World {
    /// Picks a stream that `end` knows.
    fn pick(&self, end: usize, which: usize) -> Option<StreamId> {
        let known = || self.streams.iter().filter(|(_, twin)| twin.known[end]);
        known().nth(which % known().count().max(1)).map(|(id, _)| *id)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Open { end } => drop(self.open(end)),
            Op::Write { end, which, count } => {
                if let Some(id) = self.pick(end, which) {
                    self.write(end, id, count);
                }
            }
            Op::Shutdown { end, which } => {
                if let Some(id) = self.pick(end, which) {
                    self.shutdown(end, id);
                }
            }
            Op::Reset { end, which } => {
                if let Some(id) = self.pick(end, which) {
                    self.reset(end, id);
                }
            }
            Op::Stop { end, which, stopped } => {
                if let Some(id) = self.pick(end, which) {
                    self.streams.get_mut(&id).unwrap().stopped[end] = stopped;
                    self.read(end, id);
                }
            }
            Op::Run { millis } => self.run(Duration::from_millis(millis)),
            Op::Dial => {
                if self.links.len() < 4 {
                    self.dial();
                }
            }
            Op::Cut { which, first } => self.cut_any(which, first),
            Op::HandOver => {
                if self.old.is_none() {
                    self.hand_over(&small());
                    // A link that is dialled before LEAVE arrives looks like a restart.
                    self.run(Duration::from_millis(200));
                }
            }
        }
    }

    /// Cuts a link if there are others. One end detects this immediately, the other when the peer
    /// reports it.
    fn cut_any(&mut self, which: usize, first: usize) {
        if self.links.len() > 1 {
            let link = *self.links.keys().nth(which % self.links.len()).unwrap();
            self.cut(link);
            self.end(first, link).remove_link(link);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_sequence_no_byte_is_lost_repeated_or_reordered(
        ops in prop::collection::vec(op(), 1..80),
        streams in any::<bool>(),
        links in 1..3_usize,
    ) {
        let carrier = if streams { Carrier::Streams } else { Carrier::Stream };
        let mut world = World::new(&small(), "rate=20M,delay=5ms,jitter=2ms", carrier, links);
        for op in &ops {
            world.apply(op);
            world.ends.iter_mut().chain(&mut world.old).for_each(Tunnel::check);
        }
        world.settle();
    }
}
