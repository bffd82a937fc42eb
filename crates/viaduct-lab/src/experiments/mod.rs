//! All experiments: one file each, and one line in the list.

mod cores;
mod lab;
mod lfn;
mod maelstrom;
mod miniproxy;
mod site;
mod statistics;
mod tesla;
mod trickles;

use crate::experiment::Experiment;

/// All experiments, in the order of the list and the report.
#[rustfmt::skip] // one line each
pub const ALL: &[&dyn Experiment] = &[
    &lab::forwarding_plain::ForwardingPlain,
    &lab::link::Link,
    &lab::link_capacity::LinkCapacity,
    &maelstrom::throughput_loss::ThroughputLoss,
    &maelstrom::throughput_delay::ThroughputDelay,
    &maelstrom::throughput_gigabit::ThroughputGigabit,
    &maelstrom::throughput_burst::ThroughputBurst,
    &maelstrom::adaptive::Adaptive,
    &maelstrom::onset::Onset,
    &maelstrom::fair::Fair,
    &maelstrom::observe::Observe,
    &maelstrom::classes::Classes,
    &maelstrom::split::Split,
    &maelstrom::equal_mtu::EqualMtu,
    &maelstrom::peers::Peers,
    &maelstrom::latency_loss::LatencyLoss,
    &maelstrom::latency_delay::LatencyDelay,
    &maelstrom::delivery_trace::DeliveryTrace,
    &maelstrom::recovery::Recovery,
    &maelstrom::vs_reed_solomon::VsReedSolomon,
    &maelstrom::coprime::Coprime,
    &maelstrom::burst::Burst,
    &maelstrom::interleaves::Interleaves,
    &maelstrom::forwarding::Forwarding,
    &miniproxy::ttc::Ttc,
    &miniproxy::off_path::OffPath,
    &miniproxy::start::Start,
    &miniproxy::flood::SynFlood,
    &miniproxy::throughput::Throughput,
    &miniproxy::connections::Connections,
    &lfn::traces::Traces,
    &lfn::mux::Mux,
    &lfn::delay::Delay,
    &lfn::fill::Fill,
    &tesla::bandwidth::Bandwidth,
    &tesla::latency::Latency,
    &tesla::cost::Cost,
    &tesla::shape::Shape,
    &tesla::migrate::Migrate,
    &tesla::congestion::Congestion,
    &tesla::route::Route,
    &tesla::handlers::Handlers,
    &tesla::matrix::Matrix,
    &trickles::aggregate::Aggregate,
    &trickles::object_size::ObjectSize,
    &trickles::memory::Memory,
    &trickles::cpu::Cpu,
    &trickles::friendliness::Friendliness,
    &trickles::pipelined::Pipelined,
    &trickles::wan::WideArea,
    &trickles::failover::Failover,
    &trickles::balance::Balance,
    &trickles::attacks::Attacks,
    &trickles::garbage::Garbage,
    &site::all::All,
];

/// Returns the experiments that match `patterns`: a name (`maelstrom/burst`), a system
/// (`maelstrom`), a name with `*`, or `all`.
///
/// # Errors
/// The first pattern without a match.
pub fn select(patterns: &[String]) -> Result<Vec<&'static dyn Experiment>, &str> {
    let names = |pattern: &str| {
        let fits = move |e: &&dyn Experiment| fits(pattern, e.about().name);
        ALL.iter().copied().filter(fits).map(|e| e.about().name).collect::<Vec<_>>()
    };
    let mut chosen = Vec::new();
    for pattern in patterns {
        match names(pattern) {
            none if none.is_empty() => return Err(pattern),
            some => chosen.extend(some),
        }
    }
    Ok(ALL.iter().copied().filter(|e| chosen.contains(&e.about().name)).collect())
}

/// Returns whether `pattern` matches `name`.
fn fits(pattern: &str, name: &str) -> bool {
    let system = name.split('/').next() == Some(pattern.trim_end_matches('/'));
    pattern == "all" || system || wildcard(pattern.as_bytes(), name.as_bytes())
}

/// Returns whether `text` matches `pattern`, where `*` stands for anything.
pub(crate) fn wildcard(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => wildcard(rest, text),
        (Some((b'*', rest)), Some((_, tail))) => wildcard(rest, text) || wildcard(pattern, tail),
        (Some((p, rest)), Some((t, tail))) => p == t && wildcard(rest, tail),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_what_they_should() {
        let fitting = ["maelstrom/burst", "maelstrom", "maelstrom/", "*/burst", "m*r*", "all", "*"];
        assert!(fitting.iter().all(|pattern| fits(pattern, "maelstrom/burst")));
        let others = ["burst", "mael", "maelstrom/bur", "*/burs", ""];
        assert!(!others.iter().any(|pattern| fits(pattern, "maelstrom/burst")));
    }

    #[test]
    fn a_pattern_that_names_nothing_is_refused() {
        let patterns = ["lab".to_owned(), "nosuch".to_owned()];
        assert_eq!(select(&patterns).err(), Some("nosuch"));
        assert!(!select(&patterns[..1]).unwrap().is_empty());
    }

    #[test]
    fn names_are_unique_and_have_a_system() {
        let names: Vec<_> = ALL.iter().map(|e| e.about().name).collect();
        for (n, name) in names.iter().enumerate() {
            assert!(name.split('/').count() == 2, "{name}");
            assert!(!names[..n].contains(name), "{name} is there twice");
        }
    }
}
