//! Link emulator: a thread that carries IP packets between two TUN interfaces as a long,
//! narrow, lossy link would. (The kernel's `netem` is not available on every machine, and does
//! not report which packets it dropped.)
//!
//! ```text
//!        namespace of site A             emulator thread                namespace of site B
//!   ─── routes ─▶ TUN a ── read ─▶ pool ─▶ Link A→B ─▶ pool ── write ─▶ TUN b ─ routes ───
//!   ─── routes ◀─ TUN a ◀─ write ─ pool ◀─ Link B→A ◀─ pool ◀── read ── TUN b ◀ routes ───
//! ```
//!
//! The fate of a packet is decided by [`viaduct_proto::link`], the model that the simulator
//! uses as well. This module adds the clock: the times of reads, writes and sleeps. A packet
//! stays in one buffer from read to write; the model handles buffer numbers only.
//!
//! | file | contains |
//! |---|---|
//! | `pool` | the buffers of one direction |
//! | `one_way` | one direction: TUN, pool, link, TUN |
//! | `shuttle` | the thread: both directions, its sleep, requests to it |

mod one_way;
mod pool;
mod shuttle;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;
use viaduct_proto::link::{DropRecord, LinkConfig, LinkStats};
use viaduct_sys::route::interface::InterfaceError;
use viaduct_sys::route::tun::{Tun, TunDrops};

use shuttle::{Question, Shuttle};

/// Packets that a TUN's own queue holds until they are read: enough for a stall of 0.2 s at 1
/// Gb/s, so that only the model drops packets.
pub const TUN_QUEUE: u32 = 20_000;

/// Direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first TUN to the second.
    AtoB,
    /// From the second to the first.
    BtoA,
}

/// Link in both directions, and the emulator's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatorConfig {
    /// Link from A to B.
    pub a_to_b: LinkConfig,
    /// Link from B to A.
    pub b_to_a: LinkConfig,
    /// Seed of all randomness; each direction derives its own.
    pub seed: u64,
    /// Busy-waits while a packet is due soon: the highest precision, at the cost of up to one core.
    pub spin: bool,
    /// Memory for the packets of each direction, in bytes. Each packet in flight or queued takes a
    /// buffer of the MTU plus one byte; while none is free, packets that the loss model passes
    /// count as dropped by the queue. Memory is allocated on first use.
    pub memory: usize,
}

impl EmulatorConfig {
    /// Returns the same link in both directions, without busy-waiting, with 128 MB for each (1
    /// Gb/s for a second).
    pub fn symmetric(link: LinkConfig, seed: u64) -> Self {
        let b_to_a = link.clone();
        EmulatorConfig { a_to_b: link, b_to_a, seed, spin: false, memory: 128 << 20 }
    }
}

/// Counters of an emulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulatorStats {
    /// Counters of the model from A to B.
    pub a_to_b: LinkStats,
    /// Counters of the model from B to A.
    pub b_to_a: LinkStats,
    /// Packets dropped by the interface at A outside the model; should stay 0.
    pub tun_a: TunDrops,
    /// Packets dropped by the interface at B outside the model; should stay 0.
    pub tun_b: TunDrops,
    /// Due packets that a TUN device rejected (because its interface was down, for instance).
    pub unwritable: u64,
    /// Processor time used by the thread.
    pub cpu: Duration,
    /// True if the thread runs at real-time priority.
    pub realtime: bool,
}

/// Errors of starting or querying an emulator.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// A TUN device could not be set up.
    #[error(transparent)]
    Tun(#[from] InterfaceError),
    /// A thread or descriptor could not be created.
    #[error("cannot start the emulator")]
    Start(#[source] io::Error),
    /// A counter could not be read.
    #[error("cannot read the interface's counters")]
    Counters(#[source] io::Error),
    /// The thread ended before it answered.
    #[error("the emulator's thread has ended; its panic message is above")]
    Ended,
}

/// Running emulator. Dropping it stops the thread and removes the interfaces.
#[derive(Debug)]
pub struct Emulator {
    questions: Option<Sender<Question>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    tuns: Arc<[Tun; 2]>,
}

impl Emulator {
    /// Starts to carry packets between `a` and `b`. Their MTUs must not be raised afterwards.
    pub fn start(a: Tun, b: Tun, config: EmulatorConfig) -> Result<Emulator, EmulatorError> {
        for tun in [&a, &b] {
            if tun.interface().queue_len()? < TUN_QUEUE {
                tun.interface().set_queue_len(TUN_QUEUE)?;
            }
        }
        let tuns = Arc::new([a, b]);
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let wake = rustix::event::eventfd(0, flags).map_err(|e| EmulatorError::Start(e.into()))?;
        let wake = Arc::new(wake);
        let (questions, asked) = channel();
        let shuttle = Shuttle::new(tuns.clone(), wake.clone(), asked, config)?;
        let thread = std::thread::Builder::new()
            .name("link".into())
            .spawn(move || shuttle.run())
            .map_err(EmulatorError::Start)?;
        Ok(Emulator { questions: Some(questions), wake, thread: Some(thread), tuns })
    }

    /// Changes the configuration of one direction; packets in flight are unaffected.
    pub fn set(&self, direction: Direction, config: LinkConfig) -> Result<(), EmulatorError> {
        self.ask(move |shuttle| shuttle.set(direction, config))
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Result<EmulatorStats, EmulatorError> {
        let stats = self.ask(|shuttle| shuttle.stats())?;
        let drops = |tun: &Tun| tun.drops().map_err(EmulatorError::Counters);
        Ok(EmulatorStats { tun_a: drops(&self.tuns[0])?, tun_b: drops(&self.tuns[1])?, ..stats })
    }

    /// Returns and clears the record of packets dropped in a direction since the last call.
    pub fn take_record(&self, direction: Direction) -> Result<DropRecord, EmulatorError> {
        self.ask(move |shuttle| shuttle.take_record(direction))
    }

    /// Runs `question` in the thread between two batches of packets, and returns the answer.
    fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Shuttle) -> R + Send + 'static,
    ) -> Result<R, EmulatorError> {
        let (answer, answered) = channel();
        let question: Question = Box::new(move |shuttle| drop(answer.send(question(shuttle))));
        let questions = self.questions.as_ref().ok_or(EmulatorError::Ended)?;
        questions.send(question).map_err(|_| EmulatorError::Ended)?;
        self.wake();
        answered.recv().map_err(|_| EmulatorError::Ended)
    }

    /// Wakes the thread. The write fails only if the eventfd's counter is full; then the thread has
    /// been woken already.
    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.questions = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}
