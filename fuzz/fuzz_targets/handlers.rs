//! Two ends of a chain, joined by a connection on which the fuzzer carries, alters and forges
//! bytes. Whatever bytes arrive from the peer, the data that waits for an application is bounded, a
//! flow ends once, and with `crypt` in the chain only data that the other end wrote is delivered.
#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, Steps};
use viaduct_proto::flow::{Action, Address, BottomId, Chain, Factory, Half, HandlerSpec};
use viaduct_proto::handlers::{Shell, registry};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};

const LIMIT: usize = 4_096;
/// Bytes that may wait beyond the limit: the data of one call, after decompression.
const SLACK: usize = 192 << 10;

const CHAINS: [&str; 8] = [
    "crypt:key=k",
    "compress",
    "migrate:buffer=64k,within=5s",
    "stripe:paths=3,buffer=64k",
    "socks:via=p:1080,user=u,password=p",
    "migrate:buffer=64k +crypt:key=k",
    "compress +crypt:key=k +stripe:buffer=64k",
    "stripe:buffer=64k +migrate:buffer=64k +compress",
];

#[derive(Arbitrary, Debug)]
struct Input {
    chain: u8,
    /// True if the handshakes are done before the fuzzer begins.
    greeted: bool,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Up to `count` bytes that one end sent arrive.
    Carry {
        from: bool,
        count: u16,
    },
    /// Like `Carry`, with a bit flipped.
    Flip {
        from: bool,
        count: u16,
        bit: u16,
    },
    /// Bytes that neither end sent arrive, on any of an end's connections.
    Raw {
        to: bool,
        bottom: u8,
        bytes: Bytes,
    },
    Write {
        end: bool,
        count: u16,
    },
    Takes {
        end: bool,
        takes: bool,
    },
    Shutdown {
        end: bool,
    },
    Close {
        end: bool,
    },
    Finish {
        end: bool,
        bottom: u8,
    },
    Fail {
        end: bool,
        bottom: u8,
    },
    Control {
        end: bool,
    },
    Wait {
        millis: u16,
    },
}

/// Factories of the chains, created once because key generation is slow.
static FACTORIES: LazyLock<Vec<Arc<[Arc<dyn Factory>]>>> = LazyLock::new(|| {
    let rng = Mutex::new(Rng::from_seed(1));
    let shell = Shell {
        files: Arc::new(|name| match name {
            "k" => Ok(SecretKey::from_bytes([7; 32]).to_text()),
            _ => Ok("word".to_owned()),
        }),
        entropy: Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out)),
        overlays: Arc::new(|_| Arc::new(|| None)),
    };
    let registry = registry(&shell);
    let spec = |text: &str| text.parse::<HandlerSpec>().expect("a handler");
    let specs = |chain: &&str| chain.split(' ').map(spec).collect::<Vec<_>>();
    CHAINS.iter().map(|chain| registry.chain(&specs(chain)).expect("a chain")).collect()
});

struct End {
    chain: Chain,
    bottoms: Vec<BottomId>,
    takes: bool,
    written: Vec<u8>,
    read: Vec<u8>,
    finished: usize,
    failed: usize,
}

impl End {
    fn new(chain: u8) -> End {
        let factories = FACTORIES[usize::from(chain) % CHAINS.len()].clone();
        let chain = Chain::new(factories, LIMIT, Instant::ZERO);
        let bottoms = chain.bottom().into_iter().collect();
        let (written, read) = (Vec::new(), Vec::new());
        End { chain, bottoms, takes: true, written, read, finished: 0, failed: 0 }
    }

    fn bottom(&self, number: u8) -> BottomId {
        self.bottoms[usize::from(number) % self.bottoms.len()]
    }

    /// Performs the chain's actions, and reads.
    fn act(&mut self, now: Instant) {
        loop {
            while let Some(action) = self.chain.poll_action() {
                match action {
                    Action::Connect(bottom, _) => {
                        if !self.bottoms.contains(&bottom) {
                            self.bottoms.push(bottom);
                        }
                        self.chain.connected(now, bottom, Ok(()));
                    }
                    Action::Give(_) => self.chain.unclaimed(now),
                    Action::Finished => self.finished += 1,
                    Action::Failed(_) => self.failed += 1,
                    _ => {}
                }
            }
            let waits = self.chain.incoming().len();
            assert!(waits <= LIMIT + SLACK, "{waits} bytes wait");
            if !self.takes || waits == 0 {
                break;
            }
            self.read.extend(self.chain.incoming().pieces().flatten());
            self.chain.consumed(now, waits);
        }
        assert!(self.finished <= 1 && self.failed <= 1);
    }

    fn send(&mut self, now: Instant, count: usize) -> Vec<u8> {
        let bottom = self.bottoms[0];
        let bytes: Vec<u8> =
            self.chain.outgoing(bottom).pieces().flatten().copied().take(count).collect();
        self.chain.sent(now, bottom, bytes.len());
        self.act(now);
        bytes
    }
}

fn carry(ends: &mut [End; 2], now: Instant, from: usize, count: usize, bit: Option<usize>) {
    let mut bytes = ends[from].send(now, count);
    if let Some(bit) = bit
        && let Some(byte) = bytes.get_mut(bit / 8)
    {
        *byte ^= 1 << (bit % 8);
    }
    let bottom = ends[1 - from].bottoms[0];
    if !bytes.is_empty() {
        ends[1 - from].chain.avail(now, bottom, bytes.into());
        ends[1 - from].act(now);
    }
}

fuzz_target!(|input: Input| {
    let mut now = Instant::ZERO;
    let mut ends = [End::new(input.chain), End::new(input.chain)];
    ends[0].chain.connect(now, Address::Name("server".to_owned(), 80));
    ends[0].act(now);
    ends[1].chain.accepted(now);
    ends[1].act(now);
    if input.greeted {
        for from in [0, 1].repeat(6) {
            for end in &mut ends {
                // Some handlers send only after a timeout.
                end.chain.handle_timeout(now);
                end.act(now);
            }
            carry(&mut ends, now, from, usize::MAX, None);
        }
    }
    for step in input.steps.0 {
        match step {
            Step::Carry { from, count } => carry(&mut ends, now, from.into(), count.into(), None),
            Step::Flip { from, count, bit } => {
                carry(&mut ends, now, from.into(), count.into(), Some(bit.into()));
            }
            Step::Raw { to, bottom, bytes } => {
                let end = &mut ends[usize::from(to)];
                end.chain.avail(now, end.bottom(bottom), bytes.0.into());
            }
            Step::Write { end, count } => {
                let end = &mut ends[usize::from(end)];
                let at = end.written.len();
                let data: Vec<u8> = (at..at + usize::from(count)).map(|n| (n * 7) as u8).collect();
                if end.chain.may_write() && end.chain.write(now, data.clone().into()) {
                    end.written.extend(data);
                }
            }
            Step::Takes { end, takes } => ends[usize::from(end)].takes = takes,
            Step::Shutdown { end } => ends[usize::from(end)].chain.shutdown(now, Half::Write),
            Step::Close { end } => ends[usize::from(end)].chain.close(now),
            Step::Finish { end, bottom } => {
                let end = &mut ends[usize::from(end)];
                end.chain.finished(now, end.bottom(bottom));
            }
            Step::Fail { end, bottom } => {
                let end = &mut ends[usize::from(end)];
                end.chain.failed(now, end.bottom(bottom), viaduct_proto::flow::Failure::Reset);
            }
            Step::Control { end } => {
                for name in ["migrate", "stripe"] {
                    ends[usize::from(end)].chain.control(now, name, b"retry");
                }
            }
            Step::Wait { millis } => now += Duration::from_millis(millis.into()),
        }
        for end in &mut ends {
            end.act(now);
            end.chain.handle_timeout(now);
            end.act(now);
        }
    }
    if CHAINS[usize::from(input.chain) % CHAINS.len()].contains("crypt") {
        for (from, to) in [(0, 1), (1, 0)] {
            assert!(
                ends[from].written.starts_with(&ends[to].read),
                "data is delivered that was not written"
            );
        }
    }
});
