//! Dates in HTTP format (RFC 9110, 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.

use std::time::{Duration, UNIX_EPOCH};

/// End of the year 9999, the last that four digits express.
const LAST: u64 = 253_402_300_799;

/// Formats seconds since 1970.
pub(super) fn emit(seconds: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST)))
}

/// Parses a date in this format or in one of the two obsolete ones; `None` for anything else,
/// because a condition that cannot be parsed is ignored.
pub(super) fn parse(text: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_are_those_of_the_standard() {
        assert_eq!(emit(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(emit(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(emit(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        for form in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(form), Some(784_111_777), "{form}");
        }
        for odd in ["", "Sun, 06 Nov 1994 08:49:37", "Sun, +6 Nov 1994 08:49:37 GMT", "Sün, 06"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn dates_are_parsed_as_emitted(seconds in 0..=LAST) {
            prop_assert_eq!(parse(&emit(seconds)), Some(seconds));
        }

        #[test]
        fn reading_never_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
