//! Dates in UTC in the formats of access logs.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Point in time in UTC, by the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    year: u64,
    /// Month, from 0.
    month: usize,
    day: u64,
    /// Seconds of the day.
    seconds: u64,
    millis: u32,
}

impl Moment {
    /// Converts a time. One before 1970 becomes 1970.
    pub(super) fn of(time: SystemTime) -> Moment {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        let mut year = 1970;
        while days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        let mut month = 0;
        while days >= days_of_month(year, month) {
            days -= days_of_month(year, month);
            month += 1;
        }
        Moment { year, month, day: days + 1, seconds, millis: since.subsec_millis() }
    }

    /// Formats as `26/Nov/2026:03:07:03 +0000`.
    pub(super) fn common(&self) -> String {
        let (h, m, s) = self.clock();
        let month = MONTHS[self.month];
        format!("{:02}/{month}/{:04}:{h:02}:{m:02}:{s:02} +0000", self.day, self.year)
    }

    /// Formats as `2026-11-26T03:07:03.125Z` (RFC 3339).
    pub(super) fn rfc3339(&self) -> String {
        let (h, m, s) = self.clock();
        let (year, month, day, millis) = (self.year, self.month + 1, self.day, self.millis);
        format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{millis:03}Z")
    }

    fn clock(&self) -> (u64, u64, u64) {
        (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60)
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn seconds_since_1970_are_dates() {
        for (seconds, common, rfc) in [
            (0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00.007Z"),
            (951_827_696, "29/Feb/2000:12:34:56 +0000", "2000-02-29T12:34:56.007Z"),
            (951_868_800, "01/Mar/2000:00:00:00 +0000", "2000-03-01T00:00:00.007Z"),
            (1_798_761_599, "31/Dec/2026:23:59:59 +0000", "2026-12-31T23:59:59.007Z"),
        ] {
            let moment = Moment::of(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
            assert_eq!((&*moment.common(), &*moment.rfc3339()), (common, rfc));
        }
    }
}
