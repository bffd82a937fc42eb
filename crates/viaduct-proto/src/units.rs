//! Sizes and rates as text, for command lines, files, handlers and links: `64KiB`, `16M`,
//! `2Mbit/s`.
//!
//! ```text
//! size = number [unit]         bytes: k, K or KiB, M or MiB, G or GiB, T or TiB, powers of
//!                              1024; B, kB or KB, MB, GB, TB, powers of 1000
//! rate = number [unit]         bits a second: k or K, M, G, T, powers of 1000; optionally
//!                              followed by bit or bit/s
//! ```

/// Name of a unit, and its value in bytes or bits a second.
pub(crate) type Unit = (&'static str, u64);

/// Units of sizes; formatting uses the first five.
const SIZES: [Unit; 16] = [
    ("", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("B", 1),
    ("k", 1 << 10),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];
/// Units of rates. If two units have the same value, formatting uses the later one.
const RATES: [Unit; 6] = [
    ("", 1),
    ("K", 1_000),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// Parses a size in bytes. `None` if `text` is not a size.
pub fn size(text: &str) -> Option<u64> {
    scaled(text, &SIZES)
}

/// Formats a size in the syntax of [`size`]: `256K`.
pub fn size_text(bytes: u64) -> String {
    unscaled(bytes, &SIZES[..5])
}

/// Parses a rate in bits a second. `None` if `text` is not a rate.
pub fn rate(text: &str) -> Option<u64> {
    let bits = text.strip_suffix("bit/s").or_else(|| text.strip_suffix("bit"));
    scaled(bits.unwrap_or(text).trim_end(), &RATES)
}

/// Formats a rate in the syntax of [`rate`]: `2M`.
pub fn rate_text(bits: u64) -> String {
    unscaled(bits, &RATES)
}

/// Parses a number and one of `units`; fractions are rounded to the nearest whole value.
pub(crate) fn scaled(text: &str, units: &[Unit]) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, unit) = units.iter().find(|(name, _)| *name == &text[digits.len()..])?;
    let digits = digits.trim_end();
    match digits.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*unit),
        Err(_) => {
            let value = number(digits)? * *unit as f64;
            (0.0..u64::MAX as f64).contains(&value).then(|| value.round() as u64)
        }
    }
}

/// Formats a value with the largest unit of which it is a whole multiple.
pub(crate) fn unscaled(value: u64, units: &[Unit]) -> String {
    let fits = units.iter().rev().find(|(_, unit)| value != 0 && value.is_multiple_of(*unit));
    let (name, unit) = fits.unwrap_or(&units[0]);
    format!("{}{name}", value / unit)
}

/// Parses a decimal number without a sign or an exponent.
pub(crate) fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("100B", 100),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("64KiB", 64 << 10),
            ("64 KiB", 64 << 10),
            ("256kB", 256_000),
            ("16M", 16 << 20),
            ("1.5MiB", 3 << 19),
            ("10MB", 10_000_000),
            ("1GiB", 1 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "x", "-1", "1m", "2Mbit", "1 K x", "1e3", "99999999999G", "é"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, bits) in [
            ("0", 0),
            ("9600", 9_600),
            ("500k", 500_000),
            ("500K", 500_000),
            ("500kbit/s", 500_000),
            ("2M", 2_000_000),
            ("2Mbit", 2_000_000),
            ("2Mbit/s", 2_000_000),
            ("2 Mbit/s", 2_000_000),
            ("8000bit/s", 8_000),
            ("8000 bit/s", 8_000),
            ("1.5G", 1_500_000_000),
        ] {
            assert_eq!(rate(text), Some(bits), "{text}");
        }
        for text in ["", "fast", "-5M", "2m", "2MB/s", "2Mb", "2M/s", "2MiB", "99999999999G"] {
            assert_eq!(rate(text), None, "{text}");
        }
    }

    #[test]
    fn a_formatted_value_is_read_as_itself() {
        let sizes =
            [(0, "0"), (100, "100"), (4 << 10, "4K"), (64 << 20, "64M"), (3 << 29, "1536M")];
        for (bytes, text) in sizes {
            assert_eq!((size_text(bytes), size(text)), (text.to_owned(), Some(bytes)));
        }
        for (bits, text) in [(0, "0"), (999, "999"), (1_500, "1500"), (200_000_000, "200M")] {
            assert_eq!((rate_text(bits), rate(text)), (text.to_owned(), Some(bits)));
        }
        assert_eq!(rate_text(2_000), "2k");
    }
}
