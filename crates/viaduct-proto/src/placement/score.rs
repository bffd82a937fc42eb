//! Cost of a route by the segments between its nodes.

use serde::{Deserialize, Serialize};

/// Minimum loss that is assumed for a segment: a smaller loss cannot be measured.
const MIN_LOSS: f64 = 1e-4;

/// Path between two neighbours of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Round trip in milliseconds.
    pub rtt_ms: f64,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
}

/// Criterion by which routes are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// Time to the first byte.
    #[default]
    FirstByte,
    /// Throughput of a long flow.
    Bulk,
}

impl Preference {
    /// Cost of a route of these segments; the lowest is the best.
    ///
    /// - First byte: milliseconds from the client's SYN to the first byte of the response. With
    ///   SYNs forwarded early the handshakes run in parallel, and the longest segment alone adds
    ///   its round trip (Miniproxy, equation 3).
    /// - Bulk: the cost of the slowest segment: the round trip, in milliseconds, at which a segment
    ///   with the minimum loss would have the same throughput. TCP's throughput is proportional to
    ///   1 / (round trip × √loss) (Mathis et al.).
    pub fn cost(self, segments: impl Iterator<Item = Segment>) -> f64 {
        match self {
            Preference::FirstByte => {
                let add = |(sum, longest): (f64, f64), segment: Segment| {
                    (sum + segment.rtt_ms, longest.max(segment.rtt_ms))
                };
                let (sum, longest) = segments.fold((0.0, 0.0), add);
                sum + longest
            }
            Preference::Bulk => {
                let inverse = |of: Segment| of.rtt_ms * (of.loss / MIN_LOSS).max(1.0).sqrt();
                segments.map(inverse).fold(0.0, f64::max)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(preference: Preference, segments: &[(f64, f64)]) -> f64 {
        preference.cost(segments.iter().map(|&(rtt_ms, loss)| Segment { rtt_ms, loss }))
    }

    #[test]
    fn the_first_byte_comes_as_early_as_in_the_paper() {
        // Sections of equal length of a path of 100 ms: 25, 33.3 and 37.5 % earlier.
        let even = |hops: usize| vec![(100.0 / (hops + 1) as f64, 0.0); hops + 1];
        let saved = |hops| 1.0 - cost(Preference::FirstByte, &even(hops)) / 200.0;
        for (hops, expected) in [(0, 0.0), (1, 0.25), (2, 1.0 / 3.0), (3, 0.375)] {
            assert!((saved(hops) - expected).abs() < 1e-9, "{hops} hops: {}", saved(hops));
        }
    }

    #[test]
    fn bulk_is_limited_by_the_worst_segment() {
        let bulk = |segments: &[(f64, f64)]| cost(Preference::Bulk, segments);
        assert!(bulk(&[(50.0, 0.01), (60.0, 0.0)]) < bulk(&[(100.0, 0.01)]));
        assert_eq!(bulk(&[(50.0, 0.04), (5.0, 0.0)]), bulk(&[(50.0, 0.04), (90.0, 0.0)]));
        // A short segment with losses is no worse than a long one without any.
        assert!(bulk(&[(1.0, 0.01), (100.0, 0.0)]) == bulk(&[(100.0, 0.0)]));
    }
}
