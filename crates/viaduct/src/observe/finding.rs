//! Results computed from the fates of packets: losses, bursts, and the recoveries that codes would
//! have achieved.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use viaduct_proto::repair::control::bursts::{BUCKETS, bucket, length};
use viaduct_proto::repair::shadow::{Fate, Shadows};
use viaduct_proto::time::Instant;

use crate::gateway::status::TrialStatus;
use crate::status::numbers::{self, percent, thousands};

/// Packets in one direction.
#[derive(Clone, Debug)]
pub struct Path {
    /// Source and destination, for display.
    pub name: String,
    /// Time and fate of each packet, in the order in which they were sent.
    pub fates: Vec<(Instant, Fate)>,
}

/// Results for all paths.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// Round-trip time of flows in milliseconds: given, measured or assumed.
    rtt_ms: f64,
    /// True if losses in full queues are distinguished from random losses, which requires captures
    /// of both ends.
    congestion_is_known: bool,
    paths: Vec<Finding>,
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    path: String,
    packets: u64,
    seconds: f64,
    lost_by_chance: u64,
    lost_in_full_queues: u64,
    /// Bursts of random losses by length: pairs of the maximum length and the number of bursts. A
    /// maximum of 512 represents all lengths above 256.
    bursts: Vec<(u64, u64)>,
    trials: Vec<TrialStatus>,
}

impl Findings {
    /// Computes the results for `paths` over a link with the round-trip time `rtt`.
    pub fn new(paths: &[Path], rtt: Duration, congestion_is_known: bool) -> Findings {
        let rtt_ms = rtt.as_secs_f64() * 1e3;
        let paths = paths.iter().map(|path| Finding::new(path, rtt)).collect();
        Findings { rtt_ms, congestion_is_known, paths }
    }
}

impl Finding {
    fn new(path: &Path, rtt: Duration) -> Finding {
        let (mut shadows, mut bursts, mut run) = (Shadows::new(rtt), [0; BUCKETS], 0);
        let (mut lost, mut congested) = (0, 0);
        for &(at, fate) in &path.fates {
            shadows.step(at, fate);
            match fate {
                Fate::Lost => (lost, run) = (lost + 1, run + 1),
                _ if run > 0 => {
                    bursts[bucket(run)] += 1;
                    run = 0;
                }
                _ => {}
            }
            congested += u64::from(fate == Fate::Congested);
        }
        if run > 0 {
            bursts[bucket(run)] += 1;
        }
        let ends = path.fates.first().zip(path.fates.last());
        let time = ends.map_or(Duration::ZERO, |((first, _), (last, _))| last.since(*first));
        let bursts = bursts.iter().enumerate().filter(|(_, many)| **many > 0);
        Finding {
            path: path.name.clone(),
            packets: path.fates.len() as u64,
            seconds: time.as_secs_f64(),
            lost_by_chance: lost,
            lost_in_full_queues: congested,
            bursts: bursts.map(|(n, many)| (length(n) as u64, *many)).collect(),
            trials: TrialStatus::all(&shadows.outcomes()),
        }
    }
}

/// Text for the lengths of the bursts that are counted with this maximum length.
fn lengths(longest: u64) -> String {
    let bucket = bucket(longest);
    let shorter = bucket.checked_sub(1).map_or(0, |before| length(before) as u64);
    match longest {
        _ if bucket == BUCKETS - 1 => format!("more than {shorter}"),
        _ if longest - shorter == 1 => longest.to_string(),
        _ => format!("{} to {longest}", shorter + 1),
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in &self.paths {
            writeln!(
                f,
                "\n{}: {} packets in {:.1} s",
                path.path,
                thousands(path.packets),
                path.seconds
            )?;
            let lost = path.lost_by_chance;
            write!(f, "  lost by chance   {} ({})", thousands(lost), percent(lost, path.packets))?;
            let burst = |(longest, many): &(u64, u64)| format!("{many} of {}", lengths(*longest));
            let bursts: Vec<String> = path.bursts.iter().map(burst).collect();
            if bursts.is_empty() {
                writeln!(f)?;
            } else {
                writeln!(f, ", in bursts: {}", bursts.join(", "))?;
            }
            if self.congestion_is_known {
                let lost = path.lost_in_full_queues;
                let share = percent(lost, path.packets);
                writeln!(f, "  in full queues   {} ({share})", thousands(lost))?;
            }
            for trial in path.trials.iter().filter(|_| lost > 0) {
                writeln!(f, "  would have       {}", numbers::trial(trial))?;
            }
        }
        let hint = if self.congestion_is_known {
            ""
        } else {
            " One capture cannot show which losses are in full queues; captures of both ends can."
        };
        writeln!(f, "\nIn time: within a quarter of the round trip of {:.0} ms.{hint}", self.rtt_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_in_bursts_and_codes_are_tried() {
        let at = |n: u64| Instant::ZERO + Duration::from_micros(100 * n);
        let fate = |n: u64| match n % 1_000 {
            10 | 500..503 => Fate::Lost,
            900 => Fate::Congested,
            _ => Fate::Arrived,
        };
        let fates = (0..20_000).map(|n| (at(n), fate(n))).collect();
        let path = Path { name: "10.1.0.1 to 10.2.0.1".to_owned(), fates };
        let findings = Findings::new(&[path], Duration::from_millis(100), true);
        let of = &findings.paths[0];
        assert_eq!((of.lost_by_chance, of.lost_in_full_queues), (80, 20));
        assert_eq!(of.bursts, [(1, 20), (3, 20)]);
        assert!(of.trials[1].recovered > 0.9, "{:?}", of.trials);
        let text = findings.to_string();
        assert!(text.contains("80 (0.40 %), in bursts: 20 of 1, 20 of 3"), "{text}");
        assert!(text.contains("would have       auto"), "{text}");
    }

    #[test]
    fn bursts_of_similar_lengths_are_shown_as_ranges() {
        let fate = |n: u64| match n {
            100..105 | 1_000..1_300 => Fate::Lost,
            _ => Fate::Arrived,
        };
        let at = |n: u64| Instant::ZERO + Duration::from_micros(100 * n);
        let fates = (0..2_000).map(|n| (at(n), fate(n))).collect();
        let path = Path { name: "10.1.0.1 to 10.2.0.1".to_owned(), fates };
        let text = Findings::new(&[path], Duration::from_millis(100), true).to_string();
        assert!(text.contains("in bursts: 1 of 5 to 6, 1 of more than 256\n"), "{text}");
    }
}
