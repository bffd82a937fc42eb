//! All experiments: one file each, and one line in the list.

mod cores;
mod lab;
mod lfn;
mod maelstrom;
mod miniproxy;
mod parallel;
mod prelude;
mod scale;
mod site;
mod statistics;
mod tesla;
mod trickles;

use viaduct_proto::link::LinkConfig;

use crate::experiment::{About, Experiment, Run};

/// Experiment of the list: its description and the function that measures.
pub struct Entry {
    /// Description.
    pub about: About,
    run: fn(&mut Run) -> anyhow::Result<()>,
}

const fn entry(about: About, run: fn(&mut Run) -> anyhow::Result<()>) -> Entry {
    Entry { about, run }
}

impl Experiment for Entry {
    fn about(&self) -> About {
        self.about
    }

    fn run(&self, run: &mut Run) -> anyhow::Result<()> {
        (self.run)(run)
    }
}

/// All experiments, in the order of the list and the report.
#[rustfmt::skip] // one line each
pub const ALL: &[Entry] = &[
    entry(lab::forwarding_plain::ABOUT, lab::forwarding_plain::run),
    entry(lab::link::ABOUT, lab::link::run),
    entry(lab::link_capacity::ABOUT, lab::link_capacity::run),
    entry(maelstrom::throughput_loss::ABOUT, maelstrom::throughput_loss::run),
    entry(maelstrom::throughput_delay::ABOUT, maelstrom::throughput_delay::run),
    entry(maelstrom::throughput_gigabit::ABOUT, maelstrom::throughput_gigabit::run),
    entry(maelstrom::throughput_burst::ABOUT, maelstrom::throughput_burst::run),
    entry(maelstrom::adaptive::ABOUT, maelstrom::adaptive::run),
    entry(maelstrom::onset::ABOUT, maelstrom::onset::run),
    entry(maelstrom::fair::ABOUT, maelstrom::fair::run),
    entry(maelstrom::observe::ABOUT, maelstrom::observe::run),
    entry(maelstrom::classes::ABOUT, maelstrom::classes::run),
    entry(maelstrom::split::ABOUT, maelstrom::split::run),
    entry(maelstrom::equal_mtu::ABOUT, maelstrom::equal_mtu::run),
    entry(maelstrom::peers::ABOUT, maelstrom::peers::run),
    entry(maelstrom::latency_loss::ABOUT, maelstrom::latency_loss::run),
    entry(maelstrom::latency_delay::ABOUT, maelstrom::latency_delay::run),
    entry(maelstrom::delivery_trace::ABOUT, maelstrom::delivery_trace::run),
    entry(maelstrom::recovery::ABOUT, maelstrom::recovery::run),
    entry(maelstrom::vs_reed_solomon::ABOUT, maelstrom::vs_reed_solomon::run),
    entry(maelstrom::coprime::ABOUT, maelstrom::coprime::run),
    entry(maelstrom::burst::ABOUT, maelstrom::burst::run),
    entry(maelstrom::interleaves::ABOUT, maelstrom::interleaves::run),
    entry(maelstrom::forwarding::ABOUT, maelstrom::forwarding::run),
    entry(maelstrom::fake_tcp::ABOUT, maelstrom::fake_tcp::run),
    entry(maelstrom::upgrade::ABOUT, maelstrom::upgrade::run),
    entry(miniproxy::ttc::ABOUT, miniproxy::ttc::run),
    entry(miniproxy::off_path::ABOUT, miniproxy::off_path::run),
    entry(miniproxy::start::ABOUT, miniproxy::start::run),
    entry(miniproxy::flood::ABOUT, miniproxy::flood::run),
    entry(miniproxy::throughput::ABOUT, miniproxy::throughput::run),
    entry(miniproxy::connections::ABOUT, miniproxy::connections::run),
    entry(miniproxy::upgrade::ABOUT, miniproxy::upgrade::run),
    entry(lfn::traces::ABOUT, lfn::traces::run),
    entry(lfn::mux::ABOUT, lfn::mux::run),
    entry(lfn::delay::ABOUT, lfn::delay::run),
    entry(lfn::fill::ABOUT, lfn::fill::run),
    entry(tesla::bandwidth::ABOUT, tesla::bandwidth::run),
    entry(tesla::latency::ABOUT, tesla::latency::run),
    entry(tesla::cost::ABOUT, tesla::cost::run),
    entry(tesla::shape::ABOUT, tesla::shape::run),
    entry(tesla::migrate::ABOUT, tesla::migrate::run),
    entry(tesla::congestion::ABOUT, tesla::congestion::run),
    entry(tesla::route::ABOUT, tesla::route::run),
    entry(tesla::handlers::ABOUT, tesla::handlers::run),
    entry(tesla::matrix::ABOUT, tesla::matrix::run),
    entry(trickles::aggregate::ABOUT, trickles::aggregate::run),
    entry(trickles::object_size::ABOUT, trickles::object_size::run),
    entry(trickles::memory::ABOUT, trickles::memory::run),
    entry(trickles::cpu::ABOUT, trickles::cpu::run),
    entry(trickles::friendliness::ABOUT, trickles::friendliness::run),
    entry(trickles::pipelined::ABOUT, trickles::pipelined::run),
    entry(trickles::wan::ABOUT, trickles::wan::run),
    entry(trickles::failover::ABOUT, trickles::failover::run),
    entry(trickles::balance::ABOUT, trickles::balance::run),
    entry(trickles::attacks::ABOUT, trickles::attacks::run),
    entry(trickles::garbage::ABOUT, trickles::garbage::run),
    entry(scale::peers::ABOUT, scale::peers::run),
    entry(scale::hops::ABOUT, scale::hops::run),
    entry(scale::cores::ABOUT, scale::cores::run),
    entry(scale::replicas::ABOUT, scale::replicas::run),
    entry(scale::rack::ABOUT, scale::rack::run),
    entry(scale::paths::ABOUT, scale::paths::run),
    entry(site::all::ABOUT, site::all::run),
];

/// Parses the text of a link in an experiment.
fn link(text: &str) -> LinkConfig {
    text.parse().expect("the link of an experiment")
}

/// Returns the experiments that match `patterns`: a name (`maelstrom/burst`), a system
/// (`maelstrom`), a name with `*`, or `all`. Errors: the first pattern without a match.
pub fn select(patterns: &[String]) -> Result<Vec<&'static dyn Experiment>, &str> {
    let names = |pattern: &str| {
        let fits = |e: &&Entry| fits(pattern, e.about.name);
        ALL.iter().filter(fits).map(|e| e.about.name).collect::<Vec<_>>()
    };
    let mut chosen = Vec::new();
    for pattern in patterns {
        match names(pattern) {
            none if none.is_empty() => return Err(pattern),
            some => chosen.extend(some),
        }
    }
    let is_chosen = |e: &&Entry| chosen.contains(&e.about.name);
    Ok(ALL.iter().filter(is_chosen).map(|e| e as &dyn Experiment).collect())
}

fn fits(pattern: &str, name: &str) -> bool {
    let system = name.split('/').next() == Some(pattern.trim_end_matches('/'));
    pattern == "all" || system || wildcard(pattern.as_bytes(), name.as_bytes())
}

/// Returns whether `text` matches `pattern`, where `*` matches any text.
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
    fn patterns_match_names_and_systems() {
        let fitting = ["maelstrom/burst", "maelstrom", "maelstrom/", "*/burst", "m*r*", "all", "*"];
        assert!(fitting.iter().all(|pattern| fits(pattern, "maelstrom/burst")));
        let others = ["burst", "mael", "maelstrom/bur", "*/burs", ""];
        assert!(!others.iter().any(|pattern| fits(pattern, "maelstrom/burst")));
    }

    #[test]
    fn a_pattern_without_a_match_is_rejected() {
        let patterns = ["lab".to_owned(), "nosuch".to_owned()];
        assert_eq!(select(&patterns).err(), Some("nosuch"));
        assert!(!select(&patterns[..1]).unwrap().is_empty());
    }

    #[test]
    fn names_are_unique_and_have_a_system() {
        let names: Vec<_> = ALL.iter().map(|e| e.about.name).collect();
        for (n, name) in names.iter().enumerate() {
            assert!(name.split('/').count() == 2, "{name}");
            assert!(!names[..n].contains(name), "{name} is listed twice");
        }
    }
}
