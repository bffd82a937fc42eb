//! What a site tells its peer every second, and when a session begins.
//!
//! ```text
//!   next 8 | highest 8 | covered 8 | lost 8 | recovered 8 | bursts 12 x 8
//! ```

use super::stats::{LOSS_BUCKETS, LossReport};
use crate::fec::Seq;

/// Kind of the section.
pub const REPORT: u8 = 4;
const LEN: usize = 8 * (5 + LOSS_BUCKETS);

/// A report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What it lost of the peer's packets.
    pub loss: LossReport,
    /// The number of its own next packet: those from here on leave after this report.
    pub next: Seq,
}

impl Report {
    /// Reads a section's body; `None` if it is malformed.
    pub fn parse(body: &[u8]) -> Option<Report> {
        let numbers = body.as_chunks::<8>().0;
        let (&[next, highest, covered, lost, recovered], bursts) = numbers.split_first_chunk()?;
        let number = u64::from_be_bytes;
        let mut loss = LossReport {
            highest: number(highest),
            covered: number(covered),
            lost: number(lost),
            recovered: number(recovered),
            bursts: [0; LOSS_BUCKETS],
        };
        for (bucket, &told) in loss.bursts.iter_mut().zip(bursts) {
            *bucket = number(told);
        }
        (body.len() == LEN).then_some(Report { loss, next: number(next) })
    }

    /// Appends the body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let Report { loss, next } = self;
        for number in [*next, loss.highest, loss.covered, loss.lost, loss.recovered] {
            out.extend(number.to_be_bytes());
        }
        loss.bursts.iter().for_each(|bucket| out.extend(bucket.to_be_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_round_trips_and_has_one_length() {
        let bursts = std::array::from_fn(|n| n as u64);
        let loss = LossReport { highest: 9, covered: 8, lost: 3, recovered: 2, bursts };
        let report = Report { loss, next: 1 << 50 };
        let mut bytes = Vec::new();
        report.emit(&mut bytes);
        assert_eq!((bytes.len(), Report::parse(&bytes)), (LEN, Some(report)));
        bytes.push(0);
        assert_eq!(Report::parse(&bytes), None);
        assert_eq!(Report::parse(&bytes[..30]), None);
    }
}
