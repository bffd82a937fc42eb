//! State of the dashboard: history, and the current list of services.

use std::collections::BTreeMap;

use serde::Serialize;
use viaduct_proto::history::{Chunk, History, Key};

use super::collect::Answers;
use super::layout;
use super::samples::{self, Details, Sample};

/// State of the dashboard.
#[derive(Debug, Default)]
pub(super) struct Board {
    history: History,
    services: BTreeMap<String, Head>,
    /// Details of the subjects that were present in the last sample.
    details: BTreeMap<Key, Details>,
    /// Event with the list of services.
    list: String,
}

/// Description of a service.
#[derive(Debug, Default)]
struct Head {
    kind: &'static str,
    title: String,
    troubles: Vec<String>,
}

/// List of services, as the page gets it.
#[derive(Serialize)]
struct List<'a> {
    services: Vec<Service<'a>>,
    trouble: Option<&'a str>,
    /// Number of subjects that are not in the list, because there are too many.
    left_out: usize,
}

#[derive(Serialize)]
struct Service<'a> {
    name: &'a str,
    kind: &'a str,
    title: &'a str,
    troubles: &'a [String],
    subjects: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: u64,
    kind: &'a str,
    name: &'a str,
    /// State, unless it is good.
    state: Option<&'a str>,
    /// Reason of the state.
    reason: Option<&'a str>,
    /// Values of the kind's headline.
    values: Vec<f32>,
}

/// News of a subject, as the page gets them.
#[derive(Serialize)]
struct News<'a> {
    id: u64,
    service: &'a str,
    kind: &'a str,
    name: &'a str,
    facts: &'a [(&'static str, String)],
    #[serde(flatten)]
    chunk: Chunk,
}

impl Board {
    /// Records the sample that was taken at `now`, in seconds of Unix time.
    pub(super) fn sample(&mut self, now: f64, answers: Answers) {
        self.history.tick(now);
        self.details.clear();
        for head in self.services.values_mut() {
            head.troubles = vec!["has ended".to_owned()];
        }
        for (name, answer) in answers.services {
            match answer {
                Ok(status) => self.record(now, name, samples::sample(&status)),
                Err(trouble) => {
                    let head = self.services.entry(name).or_default();
                    head.troubles = vec![samples::clipped(&trouble)];
                }
            }
        }
        let history = &self.history;
        self.services.retain(|name, head| {
            head.troubles != ["has ended"] || history.keys().any(|(service, ..)| service == name)
        });
        self.list = self.draw(answers.trouble.as_deref());
    }

    fn record(&mut self, now: f64, name: String, sample: Sample) {
        let Sample { kind, title, clock, troubles, subjects } = sample;
        let mut readings = Vec::new();
        for (subject, details) in subjects {
            let key = (name.clone(), subject.kind, subject.name.clone());
            self.details.insert(key, details);
            readings.push(subject);
        }
        self.history.record(&name, clock.unwrap_or(now), readings);
        self.services.insert(name, Head { kind, title, troubles });
    }

    /// Number of the current tick.
    pub(super) fn now(&self) -> u64 {
        self.history.now()
    }

    /// Number of the subject that is shown first: a peer, if there is one.
    pub(super) fn first(&self) -> Option<u64> {
        let rank = |key: &&Key| layout::rank(key.1);
        self.history.keys().min_by_key(rank).and_then(|key| self.history.id(key))
    }

    /// Returns whether there is a subject number `id`.
    pub(super) fn knows(&self, id: u64) -> bool {
        self.history.key(id).is_some()
    }

    /// Event with the list of services.
    pub(super) fn list(&self) -> &str {
        &self.list
    }

    /// Event with the samples of the subject number `id` starting at tick `from`. Empty if there is
    /// no such subject.
    pub(super) fn news(&self, id: u64, from: u64) -> String {
        let Some(key) = self.history.key(id) else { return String::new() };
        let Some(chunk) = self.history.since(key, from) else { return String::new() };
        let (service, kind, name) = key;
        let facts = self.details.get(key).map_or(&[][..], |details| &details.facts);
        event("news", &News { id, service, kind, name, facts, chunk })
    }

    fn draw(&self, trouble: Option<&str>) -> String {
        let services = self.services.iter().map(|(name, head)| Service {
            name,
            kind: head.kind,
            title: if head.title.is_empty() { name } else { &head.title },
            troubles: &head.troubles,
            subjects: self
                .history
                .keys()
                .filter(|(service, ..)| service == name)
                .filter_map(|key| self.entry(key))
                .collect(),
        });
        let left_out = self.history.left_out();
        event("list", &List { services: services.collect(), trouble, left_out })
    }

    fn entry<'a>(&'a self, key: &'a Key) -> Option<Entry<'a>> {
        let details = self.details.get(key);
        let headline = layout::headline(key.1);
        Some(Entry {
            id: self.history.id(key)?,
            kind: key.1,
            name: &key.2,
            state: match details {
                Some(details) => details.state.as_deref(),
                None => Some("gone"),
            },
            reason: details.and_then(|details| details.reason.as_deref()),
            values: headline.iter().map(|series| self.history.latest(key, series)).collect(),
        })
    }
}

/// Server-sent event with `data` as JSON.
pub(super) fn event(name: &str, data: &impl Serialize) -> String {
    let json = serde_json::to_string(data).expect("maps have text as keys");
    format!("event: {name}\ndata: {json}\n\n")
}
