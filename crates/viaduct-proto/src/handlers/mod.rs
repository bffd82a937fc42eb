//! The handlers that Viaduct brings along, one a file. Others join by a [`Registry`] entry; see
//! `examples/handler`.

mod count;
mod lane;
mod latency;
mod paced;
mod shape;

use crate::flow::Registry;

/// All of them.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.add("count", count::build);
    registry.add("latency", latency::build);
    registry.add("shape", shape::build);
    registry
}

/// A number of bits a second: `2M`, `500k`, `1G`, `9600`.
pub fn rate(text: &str) -> Option<u64> {
    let units = [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    let unit = units.iter().find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (number, unit) = unit.unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|&rate| rate > 0)
}

#[cfg(test)]
mod tests;
