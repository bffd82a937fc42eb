//! Dates as HTTP writes them (RFC 9110, 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY: u64 = 86_400;
/// The end of 9999: four digits of a year are all there are.
const LAST: u64 = 253_402_300_799;

/// Seconds since 1970, in words.
pub(super) fn emit(seconds: u64) -> String {
    let seconds = seconds.min(LAST);
    let (days, rest) = (seconds / DAY, seconds % DAY);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let (name, month) = (DAYS[(days % 7) as usize], MONTHS[month - 1]);
    format!("{name}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT")
}

/// The same read; `None` for the obsolete forms too: a condition that is not understood is not heeded.
pub(super) fn parse(text: &str) -> Option<u64> {
    let rest = text.get(5..).filter(|_| text.is_ascii() && text.as_bytes()[3..5] == *b", ")?;
    let mut words = rest.split(' ');
    let number = |word: &str, digits: usize| {
        let plain = word.len() == digits && word.bytes().all(|byte| byte.is_ascii_digit());
        word.parse::<u64>().ok().filter(|_| plain)
    };
    let day = number(words.next()?, 2)?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year = number(words.next()?, 4).filter(|year| *year >= 1970)?;
    let mut time = words.next()?.split(':');
    let mut next = |most| number(time.next()?, 2).filter(|value| *value <= most);
    let (hour, minute, second) = (next(23)?, next(59)?, next(60)?);
    let whole = words.next()? == "GMT" && words.next().is_none();
    let seconds = days(year, month, day)? * DAY + hour * 3600 + minute * 60 + second;
    whole.then_some(seconds)
}

/// Year, month and day of the month, so many days after 1970 began.
fn civil(days: u64) -> (u64, usize, u64) {
    let mut year = 1970 + days / 366;
    while first_day(year + 1) <= days {
        year += 1;
    }
    let mut left = days - first_day(year);
    for month in 1..=12 {
        let length = length(year, month);
        if left < length {
            return (year, month as usize, left + 1);
        }
        left -= length;
    }
    (year, 12, 31)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let before: u64 = (1..month).map(|month| length(year, month)).sum();
    (1..=length(year, month)).contains(&day).then(|| first_day(year) + before + day - 1)
}

/// Days between 1970 and the first of January of a later year.
fn first_day(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

fn length(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_are_those_of_the_standard() {
        assert_eq!(emit(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(emit(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(emit(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(emit(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        for odd in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Thu, 06 Nov 1969 08:49:37 GMT",
            "Sün, 06",
        ] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0..=LAST) {
            prop_assert_eq!(parse(&emit(seconds)), Some(seconds));
        }

        #[test]
        fn reading_never_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
