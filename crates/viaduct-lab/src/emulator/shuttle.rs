//! The thread that carries packets both ways.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};
use viaduct_proto::link::{DropRecord, LinkConfig};
use viaduct_proto::time::Instant;
use viaduct_sys::interface::InterfaceError;
use viaduct_sys::tun::Tun;

use super::lane::{Lane, Turn};
use super::{Direction, EmulatorConfig, EmulatorStats};

/// Above ordinary threads, below the kernel's own urgent ones.
const PRIORITY: i32 = 10;

/// Where many packets pass (this many a millisecond, reads and writes together), the thread does
/// not wake for each, but after a nap of this length.
const NAPS: [(u128, Duration); 2] =
    [(100, Duration::from_micros(100)), (20, Duration::from_micros(50))];

/// A spinning thread wakes this long before a packet is due: longer than waking takes.
const LEAD: Duration = Duration::from_micros(150);

/// One that sleeps, so long: what waking takes at least, so that it hardly ever spins.
const HEAD_START: Duration = Duration::from_micros(40);

/// After working this long without sleep the thread takes a break, so that others of its core get
/// the twentieth that the kernel grants them; else it would take it from us, 50 ms at once.
const STINT: Duration = Duration::from_millis(1);

/// That break.
const BREAK: Duration = Duration::from_micros(60);

/// What the thread is asked to do between two packets.
pub(super) type Question = Box<dyn FnOnce(&mut Shuttle) + Send>;

/// Both lanes and what their thread needs.
#[derive(Debug)]
pub(super) struct Shuttle {
    tuns: Arc<[Tun; 2]>,
    lanes: [Lane; 2],
    wake: Arc<OwnedFd>,
    questions: Receiver<Question>,
    origin: std::time::Instant,
    pace: Pace,
    /// When it last woke.
    rested: Instant,
    spin: bool,
    realtime: bool,
}

impl Shuttle {
    pub(super) fn new(
        tuns: Arc<[Tun; 2]>,
        wake: Arc<OwnedFd>,
        questions: Receiver<Question>,
        config: EmulatorConfig,
    ) -> Result<Shuttle, InterfaceError> {
        let EmulatorConfig { a_to_b, b_to_a, seed, spin, memory } = config;
        let lanes = [
            Lane::new(&tuns[0], a_to_b, seed, memory)?,
            Lane::new(&tuns[1], b_to_a, seed.wrapping_add(1), memory)?,
        ];
        let origin = std::time::Instant::now();
        let pace = Pace::default();
        let (rested, realtime) = (Instant::ZERO, false);
        Ok(Shuttle { tuns, lanes, wake, questions, origin, pace, rested, spin, realtime })
    }

    /// Carries packets until nobody can ask questions any more.
    pub(super) fn run(mut self) {
        // Refused only where the machine does not allow it; stats tell.
        self.realtime = viaduct_sys::thread::set_fifo(PRIORITY);
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        while self.answer() {
            let turn = self.turn();
            self.pace.note(self.now(), turn.packets);
            self.rest(turn.more);
        }
    }

    pub(super) fn set(&mut self, direction: Direction, config: LinkConfig) {
        let now = self.now();
        self.lanes[direction as usize].link.set_config(now, config);
    }

    pub(super) fn take_record(&mut self, direction: Direction) -> DropRecord {
        self.lanes[direction as usize].link.take_record()
    }

    pub(super) fn stats(&self) -> EmulatorStats {
        let [a_to_b, b_to_a] = &self.lanes;
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        EmulatorStats {
            a_to_b: a_to_b.link.stats(),
            b_to_a: b_to_a.link.stats(),
            unwritable: a_to_b.unwritable + b_to_a.unwritable,
            cpu: Duration::new(cpu.tv_sec.unsigned_abs(), cpu.tv_nsec as u32),
            realtime: self.realtime,
            ..EmulatorStats::default()
        }
    }

    /// Answers what was asked; false once nobody is left to ask.
    fn answer(&mut self) -> bool {
        loop {
            match self.questions.try_recv() {
                Ok(question) => question(self),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Reads and writes a batch in both directions.
    fn turn(&mut self) -> Turn {
        let origin = self.origin;
        let clock = || since(origin);
        let mut all = Turn::default();
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            let (from, to) = (&self.tuns[i], &self.tuns[1 - i]);
            for turn in [lane.read(from, clock), lane.write(to, clock())] {
                all.packets += turn.packets;
                all.more |= turn.more;
            }
        }
        all
    }

    /// Sleeps until a packet is due or one arrives; where packets are many, a fixed short while.
    fn rest(&mut self, more: bool) {
        let now = self.now();
        let tired = now.since(self.rested) >= STINT;
        let due = self.lanes.iter().filter_map(|lane| lane.link.poll_timeout()).min();
        let mut left = due.map(|due| due.since(now));
        let early = if self.spin { LEAD } else { HEAD_START };
        left = left.map(|left| left.saturating_sub(early));
        match left {
            _ if tired && (more || self.spin) => self.sleep(1, Some(BREAK)),
            _ if more => return,
            _ => match self.pace.nap.filter(|_| !self.spin) {
                Some(nap) => self.sleep(1, Some(nap)),
                None if left == Some(Duration::ZERO) => return,
                None => self.sleep(3, left),
            },
        }
        self.rested = self.now();
    }

    /// Sleeps until `timeout` has passed, a question is asked, or, with all three `watched`, a
    /// packet can be read. A signal ends it early, which does no harm.
    fn sleep(&self, watched: usize, timeout: Option<Duration>) {
        let timeout = timeout.map(timespec);
        let [a, b] = &*self.tuns;
        let mut fds = [self.wake.as_fd(), a.as_fd(), b.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if poll(&mut fds[..watched], timeout.as_ref()).is_err() {
            return;
        }
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        // An interface that somebody deleted is always ready, and has nothing.
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            self.sleep(1, Some(STINT));
        }
    }

    fn now(&self) -> Instant {
        since(self.origin)
    }
}

/// Whether packets are so many that waking for each costs more than it is worth.
#[derive(Debug, Default)]
struct Pace {
    began: Instant,
    packets: usize,
    nap: Option<Duration>,
}

impl Pace {
    fn note(&mut self, now: Instant, packets: usize) {
        self.packets += packets;
        let took = now.since(self.began);
        if took >= Duration::from_millis(1) {
            let rate = self.packets as u128 * 1_000_000 / took.as_nanos();
            self.nap = NAPS.iter().find(|(from, _)| rate >= *from).map(|(_, nap)| *nap);
            (self.began, self.packets) = (now, 0);
        }
    }
}

fn since(origin: std::time::Instant) -> Instant {
    Instant::ZERO + origin.elapsed()
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
