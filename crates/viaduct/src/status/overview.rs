//! View model of `viaduct top`: all watched services, with the rates of the last second and the
//! history of the last two minutes. The model does no I/O: names, answers and the time are
//! arguments.
//!
//! ```text
//!   names of the sockets ──handle_names────▶ Overview ──services()──▶ rows of the list
//!   status of a service  ──handle_answer───▶          ──service()───▶ its page and its peers
//! ```

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::client::{ServiceStatus, Unread};
use super::summary::{Counts, Summary};
use super::trend::{SPAN, Sample, Trend};

/// Time for which a service that has stopped is still listed.
const STOPPED_TTL: Duration = Duration::from_secs(60);

/// All watched services.
#[derive(Debug, Default)]
pub struct Overview {
    services: BTreeMap<String, Service>,
    /// Reason why the run directory cannot be read.
    pub trouble: Option<String>,
}

/// Service that is or was running.
#[derive(Debug, Default)]
pub struct Service {
    /// Last status; `None` before the first one, after a failed attempt to read it, and if the
    /// service has stopped.
    pub now: Option<ServiceStatus>,
    /// Status before the last one.
    pub before: Option<ServiceStatus>,
    /// Summary of the last status.
    pub summary: Summary,
    /// Reason why there is no status.
    pub unread: Option<String>,
    /// Time at which the service's socket was found to be gone.
    pub stopped: Option<Duration>,
    /// Rates of the service.
    pub rates: Rates,
    /// Rates of each peer of a gateway.
    pub peers: BTreeMap<String, Rates>,
}

/// Rates between the last two statuses, and their history.
#[derive(Debug, Default)]
pub struct Rates {
    last: Option<(Duration, Counts)>,
    /// Seconds between the last two statuses, and the increase of the counters. `None` before the
    /// second status and after a restart.
    pub change: Option<(f64, Counts)>,
    /// History.
    pub trend: Trend,
}

impl Overview {
    /// Handles the names of the services whose sockets exist.
    pub fn handle_names(&mut self, now: Duration, names: &[String]) {
        for name in names {
            let service = self.services.entry(name.clone()).or_default();
            service.stopped = None;
        }
        self.services.retain(|name, service| {
            if names.contains(name) {
                return true;
            }
            let since = *service.stopped.get_or_insert(now);
            service.forget_present();
            now.saturating_sub(since) < STOPPED_TTL
        });
    }

    /// Handles the status of a service, or the reason why it cannot be read. The status of a
    /// service that has stopped in the meantime is ignored.
    pub fn handle_answer(
        &mut self,
        now: Duration,
        name: &str,
        answer: Result<ServiceStatus, Unread>,
    ) {
        let Some(service) = self.services.get_mut(name) else { return };
        if service.stopped.is_some() {
            return;
        }
        match answer {
            Ok(status) => service.update(now, status),
            Err(reason) => {
                service.unread = Some(reason.to_string());
                service.forget_present();
            }
        }
    }

    /// Names of all services, in order.
    pub fn names(&self) -> Vec<&str> {
        self.services.keys().map(String::as_str).collect()
    }

    /// All services with their names, in order.
    pub fn services(&self) -> impl Iterator<Item = (&str, &Service)> {
        self.services.iter().map(|(name, service)| (name.as_str(), service))
    }

    /// Service of this name.
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.get(name)
    }
}

impl Service {
    fn update(&mut self, now: Duration, status: ServiceStatus) {
        self.unread = None;
        self.summary = status.summary();
        if status.hangs() {
            // Counters of a loop that does not answer are old: there is no rate until the loop
            // answers again.
            self.rates.change = None;
        } else {
            self.rates.update(now, self.summary.counts);
        }
        if let Some(gateway) = status.gateway() {
            let peers = &gateway.counters.peers;
            let names: HashSet<&String> = peers.iter().map(|(name, _)| name).collect();
            self.peers.retain(|name, _| names.contains(name));
            for (name, stats) in peers {
                let rates = self.peers.entry(name.clone()).or_default();
                rates.update(now, Counts::of_peer(stats));
            }
        }
        self.before = self.now.replace(status);
    }

    /// Drops the current status and rates, because the service does not answer.
    fn forget_present(&mut self) {
        (self.now, self.before) = (None, None);
        self.summary = Summary { kind: self.summary.kind, ..Summary::default() };
        self.rates.change = None;
        self.peers.values_mut().for_each(|rates| rates.change = None);
    }

    /// Reason why the service is not up, if it is not.
    pub fn trouble(&self, now: Duration) -> Option<String> {
        if let Some(since) = self.stopped {
            return Some(format!("stopped {} s ago", now.saturating_sub(since).as_secs()));
        }
        if let Some(reason) = &self.unread {
            return Some(reason.clone());
        }
        self.summary.trouble()
    }
}

impl Rates {
    fn update(&mut self, now: Duration, counts: Counts) {
        let last = self.last.replace((now, counts));
        self.change = last.and_then(|(then, before)| {
            let seconds = now.saturating_sub(then).as_secs_f64();
            Some((seconds, counts.since(before)?)).filter(|_| seconds > 0.0)
        });
        // Seconds without an answer have no sample.
        let passed = last.map_or(1.0, |(then, _)| now.saturating_sub(then).as_secs_f64().round());
        (1..(passed as usize).min(SPAN)).for_each(|_| self.trend.push(None));
        self.trend.push(self.change.map(|(seconds, change)| Sample {
            rate: (change.activity() as f64 / seconds) as f32,
            lost: u32::try_from(change.lost()).unwrap_or(u32::MAX),
            covered: u32::try_from(change.covered()).unwrap_or(u32::MAX),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::snapshot::ProxyStatus;
    use crate::gateway::status::Status;
    use crate::status::summary::Count;
    use viaduct_proto::repair::stats::PeerStats;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn gateway(bytes: u64, peers: &[&str]) -> ServiceStatus {
        let mut stats = PeerStats { up: true, ..PeerStats::default() };
        stats.sender.bytes = bytes;
        let mut status = Status { uptime: 1.0, ..Status::default() };
        status.counters.peers = peers.iter().map(|name| ((*name).to_owned(), stats)).collect();
        ServiceStatus::Gateway(Box::new(status))
    }

    #[test]
    fn a_proxy_that_hangs_has_no_rate_and_no_spike_afterwards() {
        let mut overview = Overview::default();
        overview.handle_names(at(0), &names(&["proxy-1"]));
        let mut sent = |now, bytes, hangs| {
            let mut status = ProxyStatus { hangs, uptime: 1.0, ..ProxyStatus::default() };
            status.counters.bytes = [bytes, 0];
            let status = ServiceStatus::Proxy(Box::new(status));
            overview.handle_answer(at(now), "proxy-1", Ok(status));
            let change = overview.service("proxy-1").unwrap().rates.change;
            change.map(|(seconds, counts)| counts[Count::Sent] as f64 / seconds)
        };
        assert_eq!(sent(1, 1_000_000_000_000, false), None);
        assert_eq!(sent(2, 0, true), None);
        assert_eq!(sent(4, 1_000_000_003_000, false), Some(1_000.0));
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn rates_cover_the_time_between_two_statuses_and_no_restart() {
        let mut overview = Overview::default();
        overview.handle_names(at(0), &names(&["rome"]));
        let mut rate = |now, bytes, peers: &[&str]| {
            overview.handle_answer(now, "rome", Ok(gateway(bytes, peers)));
            let service = overview.service("rome").unwrap();
            assert_eq!(service.peers.keys().collect::<Vec<_>>(), peers);
            let of = |rates: &Rates| Some(rates.change?.1[Count::Sent] as f64 / rates.change?.0);
            (of(&service.rates), peers.last().and_then(|last| of(&service.peers[*last])))
        };
        assert_eq!(rate(at(1), 1_000, &["a"]), (None, None));
        assert_eq!(rate(at(2), 1_500, &["a"]), (Some(500.0), Some(500.0)));
        assert_eq!(rate(at(4), 3_500, &["a"]), (Some(1_000.0), Some(1_000.0)), "two seconds");
        assert_eq!(rate(at(5), 10, &["a"]), (None, None), "restarted");
        assert_eq!(rate(at(6), 20, &["a", "b"]), (Some(30.0), None), "a peer was added");
        assert_eq!(rate(at(7), 30, &[]), (None, None), "the peers were removed");
        let trend = &overview.service("rome").unwrap().rates.trend;
        assert_eq!(trend.rates(SPAN).trim_start(), "▅ █ ▂".to_owned() + " ");
    }

    #[test]
    fn services_start_stop_and_refuse_while_they_are_watched() {
        let mut overview = Overview::default();
        overview.handle_names(at(0), &names(&["rome", "serve-80"]));
        let served = || Ok(ServiceStatus::Serve(Box::default()));
        overview.handle_answer(at(0), "serve-80", served());
        overview.handle_answer(at(0), "rome", Err(Unread::Denied));
        let trouble =
            |overview: &Overview, now, name| overview.service(name).unwrap().trouble(at(now));
        assert_eq!(trouble(&overview, 0, "serve-80"), None);
        assert!(trouble(&overview, 0, "rome").unwrap().contains("root may read"));

        overview.handle_answer(at(1), "rome", Ok(gateway(1_000, &["a"])));
        overview.handle_answer(at(2), "rome", Ok(gateway(3_000, &["a"])));
        assert!(overview.service("rome").unwrap().rates.change.is_some());
        overview.handle_answer(at(3), "rome", Err(Unread::Silent));
        let rome = overview.service("rome").unwrap();
        assert!(rome.rates.change.is_none() && rome.peers["a"].change.is_none(), "no old rates");
        assert_eq!((rome.summary.kind, rome.summary.peers), ("gateway", None));

        overview.handle_names(at(10), &names(&["rome"]));
        overview.handle_answer(at(10), "serve-80", served());
        assert_eq!(trouble(&overview, 15, "serve-80").unwrap(), "stopped 5 s ago");
        assert!(overview.service("serve-80").unwrap().now.is_none(), "a late answer is ignored");
        overview.handle_names(at(20), &names(&["rome", "serve-80"]));
        overview.handle_answer(at(20), "serve-80", served());
        assert_eq!(trouble(&overview, 20, "serve-80"), None, "it runs again");
        overview.handle_names(at(30), &names(&["rome"]));
        overview.handle_names(at(90), &names(&["rome"]));
        assert_eq!(overview.names(), ["rome"]);
        overview.handle_answer(at(90), "serve-80", served());
        assert_eq!(overview.names(), ["rome"]);
    }
}
