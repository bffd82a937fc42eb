//! Numbers with units, as people write them in a config.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A span of time: `"8ms"`, `"2s"`, `"1m 30s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

/// An amount of memory: `"48MiB"`, `"512KiB"`, `"1GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        humantime::parse_duration(&text).map(Span).map_err(|_| {
            de::Error::custom(format!("{text:?} is no time; write it like \"8ms\" or \"2m\""))
        })
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse_bytes(&text).map(Bytes).ok_or_else(|| {
            de::Error::custom(format!("{text:?} is no size; write it like \"48MiB\" or \"1GiB\""))
        })
    }
}

fn parse_bytes(text: &str) -> Option<usize> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    number.trim().parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_their_unit() {
        assert_eq!(parse_bytes("48MiB"), Some(48 << 20));
        assert_eq!(parse_bytes("1 GiB"), Some(1 << 30));
        assert_eq!(parse_bytes("100"), None);
        assert_eq!(parse_bytes("99999999999GiB"), None);
    }
}
