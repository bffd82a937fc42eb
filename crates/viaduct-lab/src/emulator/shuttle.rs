//! Thread that carries packets in both directions.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};
use viaduct_proto::link::{DropRecord, LinkConfig};
use viaduct_proto::time::Instant;
use viaduct_sys::route::interface::InterfaceError;
use viaduct_sys::route::tun::Tun;

use super::lane::{Lane, Turn};
use super::{Direction, EmulatorConfig, EmulatorStats};

/// Real-time priority above ordinary threads and below the kernel's urgent ones.
const PRIORITY: i32 = 10;

/// Sleep intervals at high packet rates. From this many packets per millisecond, reads and
/// writes together, the thread sleeps for a fixed time instead of waking for each packet.
const NAPS: [(u128, Duration); 2] =
    [(100, Duration::from_micros(100)), (20, Duration::from_micros(50))];

/// Margin by which a spinning thread wakes before a packet is due: longer than a wake-up takes.
const LEAD: Duration = Duration::from_micros(150);

/// Margin by which a thread that does not spin is woken before a packet is due: the shortest time
/// that a wake-up takes. With a larger margin the thread would often be early, and have to spin.
const HEAD_START: Duration = Duration::from_micros(40);

/// Maximum working time without sleep. Afterwards this thread sleeps for [`BREAK`], which leaves
/// other threads of the core the 5 % that the kernel guarantees them. Otherwise the kernel would
/// suspend this real-time thread for 50 ms at a time.
const STINT: Duration = Duration::from_millis(1);

/// Sleep after each [`STINT`].
const BREAK: Duration = Duration::from_micros(60);

/// Request executed by the thread between two packets.
pub(super) type Question = Box<dyn FnOnce(&mut Shuttle) + Send>;

/// Both lanes and the state of their thread.
#[derive(Debug)]
pub(super) struct Shuttle {
    tuns: Arc<[Tun; 2]>,
    lanes: [Lane; 2],
    wake: Arc<OwnedFd>,
    questions: Receiver<Question>,
    origin: std::time::Instant,
    pace: Pace,
    /// Time of the last wake-up.
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

    /// Carries packets until the channel of requests is closed.
    pub(super) fn run(mut self) {
        // Fails only without permission; `EmulatorStats::realtime` reports the result.
        self.realtime = viaduct_sys::process::thread::set_fifo(PRIORITY);
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

    /// Executes pending requests; false if the channel is closed.
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

    /// Sleeps until a packet is due or arrives; at high packet rates, for a fixed short time.
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

    /// Sleeps until `timeout` has passed, a request is pending, or, if all three descriptors
    /// are `watched`, a packet can be read. A signal ends the sleep early without harm.
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
        // The descriptor of a deleted interface is always ready but delivers nothing.
        if fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
            self.sleep(1, Some(STINT));
        }
    }

    fn now(&self) -> Instant {
        since(self.origin)
    }
}

/// Packet rate, to decide whether waking for each packet costs too much.
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
