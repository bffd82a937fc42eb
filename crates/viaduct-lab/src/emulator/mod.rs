//! The link emulator: one thread that carries IP packets between two TUN interfaces as a long,
//! narrow, lossy link would. (The kernel's own `netem` is not on every machine, and does not say
//! which packets it dropped.)
//!
//! ```text
//!        namespace of site A             emulator thread                namespace of site B
//!   ─── routes ─▶ TUN a ── read ─▶ pool ─▶ Link A→B ─▶ pool ── write ─▶ TUN b ─ routes ───
//!   ─── routes ◀─ TUN a ◀─ write ─ pool ◀─ Link B→A ◀─ pool ◀── read ── TUN b ◀ routes ───
//! ```
//!
//! What happens to a packet is decided by [`viaduct_proto::link`], the same model that the
//! simulator runs. This room adds the clock: when to read, when to write, when to sleep. Packets
//! stay in one buffer from read to write; the model moves their numbers.
//!
//! | file | noun |
//! |---|---|
//! | `pool` | the buffers of one direction |
//! | `lane` | one direction: TUN, pool, link, TUN |
//! | `shuttle` | the thread: both lanes, its sleep, the questions it is asked |

mod lane;
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
use viaduct_sys::interface::InterfaceError;
use viaduct_sys::tun::{Tun, TunDrops};

use shuttle::{Question, Shuttle};

/// Packets that may wait in a TUN's own queue until they are read: enough for a stall of 0.2 s at
/// 1 Gb/s, so that only the model drops.
pub const TUN_QUEUE: u32 = 20_000;

/// One of the two directions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first TUN to the second.
    AtoB,
    /// From the second to the first.
    BtoA,
}

/// A link in both directions, and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatorConfig {
    /// What the link does from A to B.
    pub a_to_b: LinkConfig,
    /// What it does from B to A.
    pub b_to_a: LinkConfig,
    /// Decides all randomness; each direction draws its own from it.
    pub seed: u64,
    /// Do not sleep while a packet is due soon: the most precise, at the price of up to a core.
    pub spin: bool,
    /// Bytes of packets that each direction may hold, in flight and queued; more count as dropped
    /// by the queue. Memory is taken as it is needed.
    pub memory: usize,
}

impl EmulatorConfig {
    /// The same link in both directions, sleeping, with 128 MB for each (1 Gb/s for a second).
    pub fn symmetric(link: LinkConfig, seed: u64) -> Self {
        let b_to_a = link.clone();
        EmulatorConfig { a_to_b: link, b_to_a, seed, spin: false, memory: 128 << 20 }
    }
}

/// What an emulator has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulatorStats {
    /// From A to B, as the model counts.
    pub a_to_b: LinkStats,
    /// From B to A.
    pub b_to_a: LinkStats,
    /// What the interface at A dropped outside the model; should stay 0.
    pub tun_a: TunDrops,
    /// What the interface at B dropped outside the model; should stay 0.
    pub tun_b: TunDrops,
    /// Packets due that a TUN did not take (its interface was down, for instance).
    pub unwritable: u64,
    /// Processor time that the thread has used.
    pub cpu: Duration,
    /// Whether the thread runs at real-time priority.
    pub realtime: bool,
}

/// An emulator that could not start, or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// A TUN could not be set up.
    #[error(transparent)]
    Tun(#[from] InterfaceError),
    /// No thread or no descriptor could be had.
    #[error("cannot start the emulator")]
    Start(#[source] io::Error),
    /// A counter could not be read.
    #[error("cannot read the interface's counters")]
    Counters(#[source] io::Error),
    /// The thread ended before it answered.
    #[error("the emulator's thread has ended; see its panic message above")]
    Ended,
}

/// A running emulator. It stops when this is dropped, and its interfaces go with it.
#[derive(Debug)]
pub struct Emulator {
    questions: Option<Sender<Question>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    tuns: Arc<[Tun; 2]>,
}

impl Emulator {
    /// Starts to carry packets between `a` and `b`. Their MTUs must not be raised from here on.
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

    /// Changes one direction from now on; packets in flight stay.
    pub fn set(&self, direction: Direction, config: LinkConfig) -> Result<(), EmulatorError> {
        self.ask(move |shuttle| shuttle.set(direction, config))
    }

    /// The counters so far.
    pub fn stats(&self) -> Result<EmulatorStats, EmulatorError> {
        let stats = self.ask(|shuttle| shuttle.stats())?;
        let drops = |tun: &Tun| tun.drops().map_err(EmulatorError::Counters);
        Ok(EmulatorStats { tun_a: drops(&self.tuns[0])?, tun_b: drops(&self.tuns[1])?, ..stats })
    }

    /// Takes which packets of a direction were dropped since the last call.
    pub fn take_record(&self, direction: Direction) -> Result<DropRecord, EmulatorError> {
        self.ask(move |shuttle| shuttle.take_record(direction))
    }

    /// Has the thread answer between two packets.
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

    /// Ends the thread's sleep. An eventfd that cannot count further is awake already.
    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.questions = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}
