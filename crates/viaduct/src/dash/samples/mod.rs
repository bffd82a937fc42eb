//! Readings from the status of a service: its subjects, their counters, and facts about them.

mod agent;
mod gateway;
mod overlay;
mod proxy;
mod serve;
mod spray;

use std::collections::BTreeSet;

use viaduct_proto::history::{Reading, Subject};

use crate::status::client::ServiceStatus;

/// Maximum length of a text that a service reports, in characters.
const MAX_TEXT: usize = 256;

/// Report of a service at one moment.
#[derive(Debug)]
pub(super) struct Sample {
    /// Kind of the service.
    pub kind: &'static str,
    /// Title of the service.
    pub title: String,
    /// Time for which the service has counted, in seconds; `None` if the service does not
    /// report it.
    pub clock: Option<f64>,
    /// Problems, one line each.
    pub troubles: Vec<String>,
    /// Subjects, each with its details.
    pub subjects: Vec<(Subject, Details)>,
}

/// Details of a subject that are not plotted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Details {
    /// State, unless it is good.
    pub state: Option<String>,
    /// Reason of the state.
    pub reason: Option<String>,
    /// Facts: label and text.
    pub facts: Vec<(&'static str, String)>,
}

/// Readings of a subject.
type Readings = Vec<(&'static str, Reading)>;

/// Sample of a service.
pub(super) fn sample(status: &ServiceStatus) -> Sample {
    let mut sample = match status {
        ServiceStatus::Gateway(status) => gateway::sample(status),
        ServiceStatus::Proxy(status) => proxy::sample(status),
        ServiceStatus::Serve(status) => serve::sample(status),
        ServiceStatus::Overlay(table) => overlay::sample(table),
        ServiceStatus::Spray(status) => spray::sample(status),
        ServiceStatus::Agent(status) => agent::sample(status),
    };
    sample.title = clipped(&sample.title);
    sample.troubles.iter_mut().for_each(|text| *text = clipped(text));
    let mut names = BTreeSet::new();
    for (subject, details) in &mut sample.subjects {
        subject.name = unique(&mut names, subject.kind, &clipped(&subject.name));
        let texts = details.facts.iter_mut().map(|(_, text)| text);
        let texts = texts.chain(&mut details.state).chain(&mut details.reason);
        texts.for_each(|text| *text = clipped(text));
    }
    sample
}

/// Returns `text`, cut after [`MAX_TEXT`] characters.
pub(super) fn clipped(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Makes `name` unique: each loop of a proxy reports the same tunnels.
fn unique(names: &mut BTreeSet<(&'static str, String)>, kind: &'static str, name: &str) -> String {
    let numbered = (2..).map(|n| format!("{name} ({n})"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    let free = all.find(|name| !names.contains(&(kind, name.clone())));
    let free = free.expect("there are more numbers than names");
    names.insert((kind, free.clone()));
    free
}

fn gauge(value: f64) -> Reading {
    Reading::Gauge(Some(value))
}

/// Gauge of a count.
fn count(value: u64) -> Reading {
    gauge(value as f64)
}

/// Gauge of bytes in MB.
fn megabytes(bytes: u64) -> Reading {
    gauge(bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use viaduct_proto::history::MAX_SERIES;
    use viaduct_proto::overlay::{NodeEntry, PathQuality, Table};

    use super::super::layout;
    use super::*;
    use crate::engine::hop_stats::Hop;
    use crate::engine::snapshot::ProxyStatus;
    use crate::engine::stats::PolicyStats;
    use crate::gateway::status::{LinkStatus, PeerStatus, Status, TrialStatus};
    use crate::serve::status::{ServeStatus, TricklesStatus};
    use crate::spray::status::{ReplicaStatus, SprayStatus};
    use crate::tunnel::stats::TunnelCounters;

    fn proxy() -> ProxyStatus {
        let mut status = ProxyStatus::default();
        status.counters.hops.push(Hop::default());
        status.counters.policies.push(PolicyStats::default());
        let tunnel = TunnelCounters { links: vec![Default::default()], ..Default::default() };
        status.counters.tunnels = vec![tunnel.clone(), tunnel];
        status
    }

    fn all() -> Vec<Sample> {
        let trial = |code: &&str| TrialStatus { code: (*code).to_owned(), ..Default::default() };
        let trials = viaduct_proto::repair::shadow::TRIED.iter().map(trial).collect();
        let link = LinkStatus { trials, rtt_ms: Some(1.0), ..Default::default() };
        let peer = PeerStatus { link: Some(link), ..Default::default() };
        let peers = vec![peer.clone(), peer];
        let gateway = Status { peers, split: Some(proxy()), ..Status::default() };
        let serve =
            ServeStatus { trickles: Some(TricklesStatus::default()), ..ServeStatus::default() };
        let path = PathQuality { up: Some(true), rtt_ms: 1.0, loss: 0.0 };
        let node = NodeEntry {
            name: "x".repeat(1_000),
            socks: None,
            hop: None,
            serves: vec![],
            path,
            others: vec![],
            routes: vec![],
        };
        let table = Table {
            overlay: "a".to_owned(),
            policy: Default::default(),
            version: 1,
            serves: vec![],
            nodes: vec![node],
            states: vec![],
            stats: Default::default(),
        };
        let spray =
            SprayStatus { replicas: vec![ReplicaStatus::default()], ..SprayStatus::default() };
        let all = [
            ServiceStatus::Gateway(Box::new(gateway)),
            ServiceStatus::Proxy(Box::new(proxy())),
            ServiceStatus::Serve(Box::new(serve)),
            ServiceStatus::Overlay(Box::new(table)),
            ServiceStatus::Spray(Box::new(spray)),
            ServiceStatus::Agent(Box::default()),
        ];
        all.iter().map(sample).collect()
    }

    #[test]
    fn every_series_is_plotted_and_every_plot_has_its_series() {
        let mut kinds = BTreeSet::new();
        for (subject, _) in all().iter().flat_map(|sample| &sample.subjects) {
            let mut names: Vec<_> = subject.readings.iter().map(|(name, _)| *name).collect();
            let mut plotted = layout::series(subject.kind);
            names.sort_unstable();
            plotted.sort_unstable();
            assert_eq!(names, plotted, "{}", subject.kind);
            assert!(names.len() <= MAX_SERIES);
            kinds.insert(subject.kind);
        }
        assert_eq!(kinds.len(), layout::KINDS.len());
    }

    #[test]
    fn names_are_unique_and_texts_are_bounded() {
        for sample in all() {
            let keys: Vec<_> = sample.subjects.iter().map(|(of, _)| (of.kind, &of.name)).collect();
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "{keys:?}");
            assert!(keys.iter().all(|(_, name)| name.chars().count() <= MAX_TEXT + 5));
        }
    }
}
