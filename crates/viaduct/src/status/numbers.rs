//! Formatting of numbers.

use viaduct_proto::repair::stats::LOSS_BUCKETS;

use crate::gateway::status::TrialStatus;

/// Formats with separators: `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn bytes(number: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(size, _)| number >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", number as f64 / *size as f64),
        None => format!("{number} B"),
    }
}

/// Formats a share, with enough digits to tell 99.99 % from 100 %; `-` if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    format!("{share:.2} %")
}

/// Formats a time as its two greatest units: `3d 4h`, `1m 1s`, `5s`.
pub(super) fn short_time(seconds: f64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let whole = seconds as u64;
    let Some(at) = units.iter().position(|(size, _)| whole >= *size) else {
        return "0s".to_owned();
    };
    let mut left = whole;
    let parts = units[at..].iter().take(2).map(|(size, unit)| {
        let part = left / size;
        left %= size;
        format!("{part}{unit}")
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Formats the results that a code would have achieved.
pub fn trial(trial: &TrialStatus) -> String {
    let TrialStatus { code, recovered, in_time, overhead, .. } = trial;
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    format!(
        "{code:<12} recovered {}, in time {}, by {} more packets",
        percent(*recovered),
        percent(*in_time),
        percent(*overhead)
    )
}

/// Burst lengths that bucket `bucket` of the burst histogram counts.
pub(super) fn lengths(bucket: usize) -> String {
    match bucket {
        0 => "1".to_owned(),
        1 => "2".to_owned(),
        _ if bucket == LOSS_BUCKETS - 1 => format!("{}+", (1 << (bucket - 1)) + 1),
        _ => format!("{}-{}", (1 << (bucket - 1)) + 1, 1 << bucket),
    }
}

/// Quantile `q` of a histogram, interpolated linearly within its bucket; `-` if the histogram is
/// empty. `bounds` are the upper bounds of the buckets, in microseconds.
pub(super) fn quantile(histogram: &[u64], bounds: &[u64], q: f64) -> String {
    let wanted = histogram.iter().sum::<u64>() as f64 * q;
    let mut below = 0.0;
    for (bucket, &count) in histogram.iter().enumerate() {
        let here = count as f64;
        if below + here >= wanted && count > 0 {
            let lower = if bucket == 0 { 0 } else { bounds[bucket - 1] } as f64;
            return match bounds.get(bucket) {
                Some(&upper) => micros(lower + (upper as f64 - lower) * (wanted - below) / here),
                None => format!("over {}", micros(lower)),
            };
        }
        below += here;
    }
    "-".to_owned()
}

pub(super) fn micros(time: f64) -> String {
    match time {
        t if t >= 1e6 => format!("{:.1} s", t / 1e6),
        t => format!("{:.1} ms", t / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_names() {
        let names: Vec<_> = (0..LOSS_BUCKETS).map(lengths).collect();
        assert_eq!(names[..4], ["1", "2", "3-4", "5-8"]);
        assert_eq!(names[10..], ["513-1024", "1025+"]);
    }

    #[test]
    fn times_have_two_units() {
        let times = [0.4, 59.9, 61.0, 3_600.0, 90_061.0].map(short_time);
        assert_eq!(times, ["0s", "59s", "1m 1s", "1h 0m", "1d 1h"]);
    }
}
