//! The accepting end of a connection that `mux` shares, whose other end sends frames and bytes of
//! any kind. The data that waits for applications is bounded, every flow ends once, and the chains
//! do not wake each other endlessly.
#![no_main]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::frames::{FrameKind, emitted, greeting};
use viaduct_fuzz::{Bytes, Steps};
use viaduct_proto::flow::{Action, BottomId, Chain, Failure, Half, HandlerSpec};
use viaduct_proto::handlers::{Shell, registry};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::tunnel::wire::{Frame, Parser};

const LIMIT: usize = 4_096;
/// Bytes that may wait beyond the limit: the data of one call.
const SLACK: usize = 192 << 10;
/// Maximum number of chains; requests for more are refused.
const MAX_CHAINS: usize = 12;
/// Maximum number of actions that one step may cause.
const MAX_ACTIONS: usize = 100_000;

#[derive(Arbitrary, Debug)]
struct Input {
    /// True if the other end begins with a valid greeting.
    greeted: bool,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Raw { bytes: Bytes },
    Frame { stream: u8, frame: FrameKind },
    Write { chain: u8, count: u16 },
    Takes { chain: u8, takes: bool },
    Shutdown { chain: u8 },
    Close { chain: u8 },
    Finish,
    Fail,
    Wait { millis: u16 },
}

/// Chain, and how often its flow has finished and failed.
struct End {
    chain: Chain,
    takes: bool,
    finished: usize,
    failed: usize,
}

impl End {
    fn new(chain: Chain) -> End {
        End { chain, takes: true, finished: 0, failed: 0 }
    }
}

/// The chains of one loop: the first owns the connection.
struct World {
    now: Instant,
    ends: Vec<End>,
    bottom: BottomId,
    claims: HashMap<Vec<u8>, usize>,
    /// Parser of the frames to the other end, and the last ping among them.
    parser: Parser,
    pinged: u64,
}

impl World {
    fn new() -> World {
        let rng = Mutex::new(Rng::from_seed(1));
        let shell = Shell {
            files: Arc::new(|_| Err("there is no such file".to_owned())),
            entropy: Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out)),
            overlays: Arc::new(|_| Arc::new(|| None)),
        };
        let spec = "mux:buffer=64k,silence=30s".parse::<HandlerSpec>().expect("a handler");
        let factories = registry(&shell).chain(&[spec]).expect("a chain");
        let mut chain = Chain::new(factories, LIMIT, Instant::ZERO);
        chain.accepted(Instant::ZERO);
        let bottom = chain.bottom().expect("a new chain has one connection");
        World {
            now: Instant::ZERO,
            ends: vec![End::new(chain)],
            bottom,
            claims: HashMap::new(),
            parser: Parser::default(),
            pinged: 0,
        }
    }

    fn end(&mut self, chain: u8) -> &mut End {
        let count = self.ends.len();
        &mut self.ends[usize::from(chain) % count]
    }

    fn hear(&mut self, bytes: Vec<u8>) {
        self.ends[0].chain.avail(self.now, self.bottom, bytes.into());
    }

    /// Takes all frames of a chain's connection.
    fn send(&mut self, key: usize, bottom: BottomId) {
        let chain = &mut self.ends[key].chain;
        let bytes = chain.outgoing(bottom).pieces().flatten().copied().collect::<Vec<u8>>();
        chain.sent(self.now, bottom, bytes.len());
        if bottom != self.bottom || key != 0 {
            return;
        }
        let mut rest = &bytes[..];
        while let Some((_, frame)) = self.parser.next(&mut rest).expect("frames") {
            if let Frame::Ping(any) = frame {
                self.pinged = any;
            }
        }
    }

    /// Performs the chains' actions until none is left.
    fn act(&mut self) {
        let now = self.now;
        let mut left = MAX_ACTIONS;
        let mut turns: VecDeque<usize> = (0..self.ends.len()).collect();
        while let Some(key) = turns.pop_front() {
            while let Some(action) = self.ends[key].chain.poll_action() {
                left = left.checked_sub(1).expect("the chains come to rest");
                match action {
                    Action::Claim(name) => drop(self.claims.insert(name, key)),
                    Action::Release(name) => drop(self.claims.remove(&name)),
                    Action::Wake(name) => {
                        if let Some(&other) = self.claims.get(&name) {
                            self.ends[other].chain.wake(&name, now);
                            turns.push_back(other);
                        }
                    }
                    Action::Spawn(spawn) if self.ends.len() < MAX_CHAINS => {
                        let chain = Chain::spawned(&self.ends[key].chain, &spawn, now);
                        turns.push_front(self.ends.len());
                        self.ends.push(End::new(chain));
                    }
                    Action::Spawn(spawn) => self.ends[key].chain.unspawned(&spawn, now),
                    Action::Give(_) => self.ends[key].chain.unclaimed(now),
                    Action::Connect(bottom, _) => {
                        self.ends[key].chain.connected(now, bottom, Err(Failure::Refused));
                    }
                    Action::Send(bottom) => self.send(key, bottom),
                    Action::Finished => self.ends[key].finished += 1,
                    Action::Failed(_) => self.ends[key].failed += 1,
                    _ => {}
                }
            }
            let end = &mut self.ends[key];
            let waits = end.chain.incoming().len();
            assert!(waits <= LIMIT + SLACK, "{waits} bytes wait");
            assert!(end.finished <= 1 && end.failed <= 1);
            if end.takes && waits > 0 {
                end.chain.consumed(now, waits);
                turns.push_back(key);
            }
        }
    }
}

fuzz_target!(|input: Input| {
    let mut world = World::new();
    world.act();
    if input.greeted {
        world.hear(greeting(1, 100_000));
        world.act();
    }
    for step in input.steps.0 {
        let now = world.now;
        match step {
            Step::Raw { bytes } => world.hear(bytes.0),
            Step::Frame { stream, frame } => {
                world.hear(emitted(frame.stream(stream), &frame.framed(1, world.pinged)));
            }
            Step::Write { chain, count } => {
                let chain = &mut world.end(chain).chain;
                if chain.may_write() {
                    chain.write(now, vec![7; usize::from(count)].into());
                }
            }
            Step::Takes { chain, takes } => world.end(chain).takes = takes,
            Step::Shutdown { chain } => world.end(chain).chain.shutdown(now, Half::Write),
            Step::Close { chain } => world.end(chain).chain.close(now),
            Step::Finish => {
                let bottom = world.bottom;
                world.ends[0].chain.finished(now, bottom);
            }
            Step::Fail => {
                let bottom = world.bottom;
                world.ends[0].chain.failed(now, bottom, Failure::Reset);
            }
            Step::Wait { millis } => world.now += Duration::from_millis(millis.into()),
        }
        world.act();
        let now = world.now;
        world.ends.iter_mut().for_each(|end| end.chain.handle_timeout(now));
        world.act();
    }
});
