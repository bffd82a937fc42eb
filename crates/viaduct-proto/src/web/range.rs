//! Range of a file that is requested (RFC 9110, 14).

use std::ops::Range;

/// Result of a `Range` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ByteRange {
    /// The complete file: no header, another unit, several ranges, or invalid syntax.
    Whole,
    Part(Range<u64>),
    /// A part beyond the end of the file.
    Unsatisfiable,
}

/// Range of a file of `size` bytes that `header` requests.
pub(super) fn parse_range(header: Option<&str>, size: u64) -> ByteRange {
    let Some((unit, spec)) = header.and_then(|header| header.trim().split_once('=')) else {
        return ByteRange::Whole;
    };
    if !unit.eq_ignore_ascii_case("bytes") {
        return ByteRange::Whole;
    }
    let Some((first, last)) = spec.trim().split_once('-') else { return ByteRange::Whole };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // Numbers that overflow are beyond the end of any file.
        digits.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), _) if !last.is_empty() && number(last).is_none_or(|last| last < first) => {
            ByteRange::Whole
        }
        (Some(first), _) if first >= size => ByteRange::Unsatisfiable,
        (Some(first), None) => ByteRange::Part(first..size),
        (Some(first), Some(last)) => ByteRange::Part(first..last.saturating_add(1).min(size)),
        (None, Some(_)) if !first.is_empty() => ByteRange::Whole,
        (None, Some(0)) => ByteRange::Unsatisfiable,
        (None, Some(_)) if size == 0 => ByteRange::Unsatisfiable,
        (None, Some(length)) => ByteRange::Part(size.saturating_sub(length)..size),
        (None, None) => ByteRange::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_mean_what_the_standard_says() {
        let of = |header: &str| parse_range(Some(header), 1000);
        assert_eq!(parse_range(None, 1000), ByteRange::Whole);
        assert_eq!(of("bytes=0-499"), ByteRange::Part(0..500));
        assert_eq!(of("Bytes=500-"), ByteRange::Part(500..1000));
        assert_eq!(of("bytes=-1"), ByteRange::Part(999..1000));
        assert_eq!(of("bytes=-5000"), ByteRange::Part(0..1000));
        assert_eq!(of("bytes=999-99999999999999999999999"), ByteRange::Part(999..1000));
        for missing in ["bytes=1000-", "bytes=1000-2000", "bytes=-0"] {
            assert_eq!(of(missing), ByteRange::Unsatisfiable, "{missing}");
        }
        for odd in [
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=a-b",
            "bytes=0-1,4-5",
            "lines=1-2",
            "bytes=x-5",
            "bytes=5-x",
        ] {
            assert_eq!(of(odd), ByteRange::Whole, "{odd}");
        }
        assert_eq!(parse_range(Some("bytes=0-"), 0), ByteRange::Unsatisfiable);
        assert_eq!(parse_range(Some("bytes=-5"), 0), ByteRange::Unsatisfiable);
    }
}
