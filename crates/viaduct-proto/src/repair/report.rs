//! Report of a site to its peer on the path from that peer: sent at the start of a session, every
//! second, and more often while packets are missing.
//!
//! ```text
//!   next 8 | flags 1 | stamp 4 | echo 4 | held 4 | wait 4
//!   | highest 8 | covered 8 | lost 8 | recovered 8 | bursts 12 x 8
//!   | known 8 | congested 8 | visible 8 | random bursts 16 x 8
//! ```
//!
//! Numbers in the drawing are lengths in bytes; times are in microseconds. A report to a peer that
//! only observes is accompanied by the outcomes of trial codes:
//!
//! ```text
//!   for each code, as in [`TRIED`]: packets 8 | lost 8 | recovered 8 | in time 8 | repairs 8
//! ```

use super::control;
use super::control::bursts::{BUCKETS, Counts};
use super::control::queue::micros;
use super::shadow::{Outcome, TRIED};
use super::stats::{LOSS_BUCKETS, LossReport};
use crate::fec::Seq;
use crate::reader::Reader;
use crate::time::{Duration, Instant};

/// Kind of the section with a report.
pub const REPORT: u8 = 4;
/// Kind of the section with the outcomes of trial codes.
pub const TRIALS: u8 = 7;
/// Upper limit of packet numbers and packet counts: a peer with valid keys may be malicious.
const MAX_COUNT: u64 = 1 << 56;
const LEN: usize = 8 + 1 + 4 * 4 + 8 * (4 + LOSS_BUCKETS + 3 + BUCKETS);

const WITH_ECHO: u8 = 1;
const QUEUE_FULL: u8 = 2;
const IN_DOUBT: u8 = 4;

/// Report to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of the first packet that leaves the reporting site after this report.
    pub next: Seq,
    /// Send time.
    pub stamp: u32,
    /// Send time of the newest report from the peer, and the time since that report's arrival.
    pub echo: Option<(u32, u32)>,
    /// Time for which flows can wait for a packet of the reporting site.
    pub wait: u32,
    /// Losses among the peer's packets.
    pub loss: LossReport,
    /// Measurements of the path from the peer.
    pub path: control::Report,
}

impl Report {
    /// Parses a section's body; `None` if it is malformed.
    pub fn parse(body: &[u8]) -> Option<Report> {
        let mut rest = Reader(body);
        let (next, flags) = (count(&mut rest)?, rest.u8()?);
        if body.len() != LEN || flags > WITH_ECHO | QUEUE_FULL | IN_DOUBT {
            return None;
        }
        let (stamp, echo, held, wait) = (rest.u32()?, rest.u32()?, rest.u32()?, rest.u32()?);
        let mut loss = LossReport {
            highest: count(&mut rest)?,
            covered: count(&mut rest)?,
            lost: count(&mut rest)?,
            recovered: count(&mut rest)?,
            bursts: [0; LOSS_BUCKETS],
        };
        for bucket in &mut loss.bursts {
            *bucket = count(&mut rest)?;
        }
        let (packets, congested, visible) =
            (count(&mut rest)?, count(&mut rest)?, count(&mut rest)?);
        let mut random = Counts { packets, bursts: [0; BUCKETS] };
        for bucket in &mut random.bursts {
            *bucket = count(&mut rest)?;
        }
        let (queue_full, in_doubt) = (flags & QUEUE_FULL != 0, flags & IN_DOUBT != 0);
        let echo = (flags & WITH_ECHO != 0).then_some((echo, held));
        let path = control::Report { random, congested, visible, queue_full, in_doubt };
        Some(Report { next, stamp, echo, wait, loss, path })
    }

    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let Report { next, stamp, echo, wait, loss, path } = self;
        out.extend(next.to_be_bytes());
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags = flag(echo.is_some(), WITH_ECHO) | flag(path.queue_full, QUEUE_FULL);
        out.push(flags | flag(path.in_doubt, IN_DOUBT));
        let (echo, held) = echo.unwrap_or_default();
        out.extend([*stamp, echo, held, *wait].iter().flat_map(|number| number.to_be_bytes()));
        let first = [loss.highest, loss.covered, loss.lost, loss.recovered];
        let second = [path.random.packets, path.congested, path.visible];
        let numbers = first.iter().chain(&loss.bursts).chain(&second).chain(&path.random.bursts);
        numbers.for_each(|number| out.extend(number.to_be_bytes()));
    }

    /// Round-trip time if the report arrives `now`; `None` if the report echoes no send time, or an
    /// old one.
    pub fn rtt(&self, now: Instant) -> Option<Duration> {
        const LONGEST: u32 = 5_000_000;
        let (echo, held) = self.echo?;
        let passed = micros(now).wrapping_sub(echo).checked_sub(held)?;
        (passed <= LONGEST).then(|| Duration::from_micros(passed.into()))
    }

    /// Time for which flows can wait for a packet of the reporting site.
    pub fn wait(&self) -> Duration {
        Duration::from_micros(self.wait.into())
    }
}

/// Parses the outcomes of trial codes; `None` if they are malformed.
pub fn parse_trials(body: &[u8]) -> Option<[Outcome; TRIED.len()]> {
    let mut rest = Reader(body);
    let mut outcomes = [Outcome::default(); TRIED.len()];
    for Outcome { packets, lost, recovered, in_time, repairs } in &mut outcomes {
        for number in [packets, lost, recovered, in_time, repairs] {
            *number = count(&mut rest)?;
        }
    }
    rest.is_empty().then_some(outcomes)
}

/// Reads a number or count of packets; `None` if it is [`MAX_COUNT`] or more, so that sums do not
/// overflow.
fn count(rest: &mut Reader<'_>) -> Option<u64> {
    rest.u64().filter(|count| *count < MAX_COUNT)
}

/// Appends the outcomes of trial codes.
pub fn emit_trials(outcomes: &[Outcome; TRIED.len()], out: &mut Vec<u8>) {
    for Outcome { packets, lost, recovered, in_time, repairs } in outcomes {
        let numbers = [packets, lost, recovered, in_time, repairs];
        numbers.iter().for_each(|number| out.extend(number.to_be_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_are_refused() {
        for far in [MAX_COUNT, u64::MAX] {
            let mut bytes = Vec::new();
            Report { next: far, ..Report::default() }.emit(&mut bytes);
            assert_eq!(Report::parse(&bytes), None);
            let trials = [Outcome { lost: far, ..Outcome::default() }; TRIED.len()];
            bytes.clear();
            emit_trials(&trials, &mut bytes);
            assert_eq!(parse_trials(&bytes), None);
        }
    }

    #[test]
    fn a_report_round_trips_and_has_one_length() {
        let loss = LossReport {
            highest: 9,
            covered: 8,
            lost: 3,
            recovered: 2,
            bursts: std::array::from_fn(|n| n as u64),
        };
        let random = Counts { packets: 77, bursts: std::array::from_fn(|n| 3 * n as u64) };
        let path =
            control::Report { random, congested: 5, visible: 6, queue_full: true, in_doubt: true };
        let report = Report { next: 1 << 50, stamp: 1, echo: Some((2, 3)), wait: 4, loss, path };
        for report in [report, Report { echo: None, ..report }] {
            let mut bytes = Vec::new();
            report.emit(&mut bytes);
            assert_eq!((bytes.len(), Report::parse(&bytes)), (LEN, Some(report)));
            bytes.push(0);
            assert_eq!(Report::parse(&bytes), None);
            assert_eq!(Report::parse(&bytes[..30]), None);
        }
    }

    #[test]
    fn outcomes_of_trial_codes_round_trip() {
        let of = |n| Outcome { packets: n, lost: 2, recovered: 3, in_time: 4, repairs: 5 };
        let (outcomes, mut bytes) = ([of(1), of(2), of(3), of(4)], Vec::new());
        emit_trials(&outcomes, &mut bytes);
        assert_eq!(parse_trials(&bytes), Some(outcomes));
        assert_eq!(parse_trials(&bytes[1..]), None);
        bytes.push(0);
        assert_eq!(parse_trials(&bytes), None);
    }

    #[test]
    fn the_round_trip_time_excludes_the_time_at_the_peer() {
        let now = Instant::ZERO + Duration::from_millis(500);
        let of = |echo| Report { echo, ..Report::default() }.rtt(now);
        assert_eq!(of(Some((300_000, 150_000))), Some(Duration::from_millis(50)));
        assert_eq!(
            (of(None), of(Some((300_000, 250_000))), of(Some((600_000, 0)))),
            (None, None, None)
        );
    }
}
