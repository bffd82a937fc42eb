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

use super::one_way::{Batch, OneWay};
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
/// that a wake-up takes. With a larger margin the thread would often wake early, and have to spin.
const HEAD_START: Duration = Duration::from_micros(40);

/// Maximum working time without sleep. The thread then sleeps for [`BREAK`], which leaves to the
/// core's other threads the 5 % that the kernel reserves for them. Otherwise the kernel would
/// suspend this real-time thread for 50 ms at a time.
const STINT: Duration = Duration::from_millis(1);

/// Sleep after each [`STINT`].
const BREAK: Duration = Duration::from_micros(60);

/// Request executed by the thread between two packets.
pub(super) type Question = Box<dyn FnOnce(&mut Shuttle) + Send>;

/// Both directions and the state of their thread.
#[derive(Debug)]
pub(super) struct Shuttle {
    tuns: Arc<[Tun; 2]>,
    directions: [OneWay; 2],
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
        let directions = [
            OneWay::new(&tuns[0], a_to_b, seed, memory)?,
            OneWay::new(&tuns[1], b_to_a, seed.wrapping_add(1), memory)?,
        ];
        let origin = std::time::Instant::now();
        let pace = Pace::default();
        let (rested, realtime) = (Instant::ZERO, false);
        Ok(Shuttle { tuns, directions, wake, questions, origin, pace, rested, spin, realtime })
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
        self.directions[direction as usize].link.set_config(now, config);
    }

    pub(super) fn take_record(&mut self, direction: Direction) -> DropRecord {
        self.directions[direction as usize].link.take_record()
    }

    pub(super) fn stats(&self) -> EmulatorStats {
        let [a_to_b, b_to_a] = &self.directions;
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

    /// Executes pending requests. Returns false if the channel of requests is closed.
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
    fn turn(&mut self) -> Batch {
        let origin = self.origin;
        let clock = || since(origin);
        let mut all = Batch::default();
        for (i, one_way) in self.directions.iter_mut().enumerate() {
            let (from, to) = (&self.tuns[i], &self.tuns[1 - i]);
            for turn in [one_way.read(from, clock), one_way.write(to, clock())] {
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
        let due = self.directions.iter().filter_map(|one_way| one_way.link.poll_timeout()).min();
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

/// Measured packet rate, which decides whether the thread wakes for each packet or sleeps for a
/// fixed time.
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
