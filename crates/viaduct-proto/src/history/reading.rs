//! Readings of counters and gauges, and the values computed from two of them.

/// Reading of a series at one moment. All counts are since the start of the service.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// Value at this moment, if it is known.
    Gauge(Option<f64>),
    /// Counter, shown as its increase per second.
    Rate {
        /// Events so far.
        count: u64,
        /// Factor, such as 8e-6 for bytes that are shown in Mb/s.
        scale: f64,
    },
    /// Counter as a share of another.
    Share {
        /// Events of the share so far.
        part: u64,
        /// Events among `part` that do not belong to the share.
        except: u64,
        /// Events of the whole so far.
        whole: u64,
        /// Factor, such as 100 for percent.
        scale: f64,
    },
    /// Quantile of the events since an earlier reading.
    Quantile {
        /// Events so far, by bucket.
        counts: Box<[u64]>,
        /// Upper bounds of all buckets except the last.
        bounds: &'static [u64],
        /// Quantile, 0 to 1.
        q: f64,
        /// Factor of the result.
        scale: f64,
    },
}

impl Reading {
    /// Increase of `count` per second.
    pub fn per_second(count: u64) -> Reading {
        Reading::Rate { count, scale: 1.0 }
    }

    /// Increase of `bytes` in Mb/s.
    pub fn megabits(bytes: u64) -> Reading {
        Reading::Rate { count: bytes, scale: 8e-6 }
    }

    /// Increase of `part` in percent of that of `whole`.
    pub fn percent(part: u64, whole: u64) -> Reading {
        Reading::Share { part, except: 0, whole, scale: 100.0 }
    }

    /// Mean time in milliseconds of the events counted by `events`, whose sum is `micros`.
    pub fn mean_millis(micros: u64, events: u64) -> Reading {
        Reading::Share { part: micros, except: 0, whole: events, scale: 1e-3 }
    }

    /// Value of this reading, `seconds` after the reading `before`. `None` if it is unknown: a
    /// counter has no earlier reading or has fallen, or the whole of a share has not grown.
    pub(super) fn value(&self, before: Option<&Reading>, seconds: f64) -> Option<f64> {
        let value = match (self, before) {
            (Reading::Gauge(value), _) => *value,
            (&Reading::Rate { count, scale }, Some(&Reading::Rate { count: old, .. })) => {
                Some(count.checked_sub(old)? as f64 / seconds * scale)
            }
            (
                &Reading::Share { part, except, whole, scale },
                Some(&Reading::Share { part: old_part, except: old_except, whole: old, .. }),
            ) => {
                let (part, except) = (part.checked_sub(old_part)?, except.checked_sub(old_except)?);
                let whole = whole.checked_sub(old).filter(|&whole| whole > 0)?;
                Some(part.saturating_sub(except) as f64 / whole as f64 * scale)
            }
            (
                Reading::Quantile { counts, bounds, q, scale },
                Some(Reading::Quantile { counts: old, .. }),
            ) => {
                let pairs = counts.iter().zip(old);
                let new: Option<Vec<u64>> = pairs.map(|(new, old)| new.checked_sub(*old)).collect();
                Some(quantile(&new?, bounds, *q)? * scale)
            }
            _ => None,
        };
        value.filter(|value| value.is_finite())
    }
}

/// Quantile of a histogram, interpolated within its bucket. In the last bucket, which has no upper
/// bound, the result is its lower bound. `None` without events.
fn quantile(counts: &[u64], bounds: &[u64], q: f64) -> Option<f64> {
    let all = counts.iter().fold(0u64, |sum, &count| sum.saturating_add(count));
    let wanted = all as f64 * q;
    let mut below = 0.0;
    for (bucket, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let lower = bucket.checked_sub(1).and_then(|under| bounds.get(under)).copied();
        let (lower, here) = (lower.unwrap_or(0) as f64, count as f64);
        if below + here >= wanted {
            let upper = bounds.get(bucket).map_or(lower, |&upper| upper as f64);
            return Some(lower + (upper - lower) * (wanted - below) / here);
        }
        below += here;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_readings_and_a_lower_one_is_a_restart() {
        let reading = Reading::per_second;
        assert_eq!(reading(7).value(None, 1.0), None);
        assert_eq!(reading(9).value(Some(&reading(5)), 2.0), Some(2.0));
        assert_eq!(reading(4).value(Some(&reading(5)), 1.0), None);
        assert_eq!(Reading::megabits(250_000).value(Some(&Reading::megabits(0)), 1.0), Some(2.0));
    }

    #[test]
    fn a_share_has_a_whole_and_is_never_negative() {
        let share = |part, except, whole| Reading::Share { part, except, whole, scale: 100.0 };
        assert_eq!(share(4, 1, 300).value(Some(&share(1, 0, 200)), 1.0), Some(2.0));
        assert_eq!(share(2, 9, 300).value(Some(&share(1, 0, 200)), 1.0), Some(0.0));
        assert_eq!(share(2, 0, 200).value(Some(&share(1, 0, 200)), 1.0), None);
    }

    #[test]
    fn a_quantile_lies_in_the_bucket_of_its_event() {
        let bounds = &[10, 20];
        assert_eq!(quantile(&[0, 4, 0], bounds, 0.5), Some(15.0));
        assert_eq!(quantile(&[2, 0, 2], bounds, 0.99), Some(20.0));
        assert_eq!(quantile(&[0, 0, 0], bounds, 0.5), None);
    }
}
