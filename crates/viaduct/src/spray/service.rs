//! Event loop of a spray: probes, rules, the status socket, signals.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Interval, interval, timeout};
use tracing::{error, info, warn};
use viaduct_proto::health::{Checker, Counters, Probe, State};
use viaduct_proto::spray::slots;
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::packet::{Role, mark};
use viaduct_sys::capture::filter::OptionMark;
use viaduct_sys::clock;
use viaduct_sys::nft::spray::Spray;
use viaduct_sys::route::next_hop::NextHopLookup;

use super::config::{Config, Replica, share};
use super::drain::DrainList;
use super::hops::{self, ReplicaHops};
use super::metrics::encode;
use super::probe::probe;
use super::rules::Rules;
use super::status::{ReplicaStatus, SprayStatus};
use crate::metrics::{self, Metrics, Page, PageCache};
use crate::notify::{Phase, notify};
use crate::signals::{SignalStreams, Signals};
use crate::status_socket;
use crate::watchdog::Watchdog;

/// Interval between checks of the list of drained replicas.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between checks of the rules and routes.
const REPAIR_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time for which the start waits for the answers to the first probes.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Mark of packets of Trickles' clients.
const REQUESTS: OptionMark = OptionMark { word: mark::WORD, byte: Role::Request.byte() };

/// Result of a probe, and the generation of the config under which it was sent.
type Answer = (u64, Probe, Result<(), String>);

/// State of the service, apart from its sockets.
struct Service<'a> {
    path: &'a Path,
    config: Config,
    checker: Checker,
    lookup: NextHopLookup,
    hops: Vec<ReplicaHops>,
    drained: DrainList,
    answers: UnboundedSender<Answer>,
    generation: u64,
    started: Instant,
    /// State of each replica when it was last logged, by name: true if the replica was up.
    logged: HashMap<String, bool>,
}

/// Runs the service until a signal terminates it.
pub fn run(path: &Path, config: Config) -> Result<()> {
    let (runtime, signals) = Signals::register()?.into_parts();
    let done = runtime.block_on(async {
        let (status, _name) = status_socket::open(&config.socket())?;
        let metrics = config.metrics.map(metrics::listen).transpose()?;
        let (answers, mut results) = unbounded_channel();
        let mut service = Service::new(path, config, answers)?;
        // After this wait the first rules are usually correct. Replicas whose state is still
        // unknown get no packets yet.
        let _ = timeout(SETTLE_TIMEOUT, service.settle(&mut results)).await;
        let rules = Rules::open(&service.config.journal())?;
        service.serve(rules, results, (&status, metrics.as_ref()), signals).await
    });
    notify(Phase::Stopping);
    done
}

impl Service<'_> {
    fn new(path: &Path, config: Config, answers: UnboundedSender<Answer>) -> Result<Service<'_>> {
        let (lookup, now) = (NextHopLookup::new()?, now());
        let checker = Checker::new(config.replicas.iter().map(|_| config.check.timing), now);
        let drained = DrainList::open(&config.run_dir, &config.name);
        let mut service = Service {
            path,
            config,
            checker,
            lookup,
            hops: Vec::new(),
            drained,
            answers,
            generation: 0,
            started: now,
            logged: HashMap::new(),
        };
        service.find_hops();
        Ok(service)
    }

    /// Probes the replicas until the state of each is known.
    async fn settle(&mut self, results: &mut UnboundedReceiver<Answer>) {
        while !self.checker.is_settled() {
            self.send_probes();
            self.wait(results).await;
        }
    }

    /// Waits for the result of a probe, or for the checker's next deadline.
    async fn wait(&mut self, results: &mut UnboundedReceiver<Answer>) {
        let wait = self.checker.poll_timeout().map_or(REPAIR_INTERVAL, |at| at.since(now()));
        tokio::select! {
            () = tokio::time::sleep(wait) => self.checker.handle_timeout(now()),
            answer = results.recv() => {
                if let Some((generation, probe, result)) = answer
                    && generation == self.generation
                {
                    self.checker.handle_result(now(), probe, result);
                }
            }
        }
    }

    async fn serve(
        mut self,
        mut rules: Rules,
        mut results: UnboundedReceiver<Answer>,
        (status_listener, metrics_listener): (&UnixListener, Option<&TcpListener>),
        mut signals: SignalStreams,
    ) -> Result<()> {
        let (mut watchdog, metrics) = (Watchdog::new(), Metrics::default());
        let mut pages = PageCache::default();
        let mut ticks: [Interval; 2] = [DRAIN_INTERVAL, REPAIR_INTERVAL].map(interval);
        let [drain_ticks, repair_ticks] = &mut ticks;
        self.log_states();
        rules.install(self.distribution(), self.names())?;
        info!("{}", self.config.to_string().trim_end());
        notify(Phase::Ready);
        loop {
            tokio::select! {
                () = self.wait(&mut results) => {}
                _ = drain_ticks.tick() => if self.drained.reload() {
                    info!("the list of drained replicas has changed");
                    self.update(&mut rules);
                },
                _ = repair_ticks.tick() => {
                    self.find_hops();
                    rules.repair();
                    self.update(&mut rules);
                }
                () = watchdog.due() => watchdog.answer(Duration::ZERO),
                client = status_socket::accept(status_listener) => {
                    status_socket::show(client, &self.status(&rules))?;
                }
                client = metrics::accept(metrics_listener) => {
                    let page = pages.get(async { self.page(&rules) }).await;
                    metrics.answer(client, page);
                }
                _ = signals.hangup.recv() => self.reload_and_log(&mut rules),
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
            }
            self.send_probes();
            if self.checker.poll_changed().is_some() {
                // The rules are updated before the log, because packets to a dead replica are lost
                // until the update.
                self.update(&mut rules);
                self.log_states();
            }
        }
        info!("stopping");
        rules.restore()
    }

    /// Sends the probes that are due.
    fn send_probes(&mut self) {
        while let Some(sent) = self.checker.poll_probe(now()) {
            let (check, generation) = (self.config.check.clone(), self.generation);
            let ip = self.config.replicas[sent.target].addresses[0];
            let answers = self.answers.clone();
            tokio::spawn(async move {
                // The checker counts a probe without an answer as failed.
                if let Ok(result) = timeout(check.timing.timeout, probe(&check, ip)).await {
                    // If the service is ending, the receiver may be gone.
                    let _ = answers.send((generation, sent, result));
                }
            });
        }
    }

    /// Looks up the next hops of the replicas.
    fn find_hops(&mut self) {
        let find = |replica| hops::find(&self.lookup, replica);
        self.hops = self.config.replicas.iter().map(find).collect();
    }

    fn is_drained(&self, replica: usize) -> bool {
        let known = &self.config.replicas[replica];
        known.is_drained || self.drained.has(&known.name)
    }

    /// Returns the distribution for the current states of the replicas. If no replica is up, all
    /// replicas that are not drained get packets, because the checks may be wrong.
    fn distribution(&self) -> Spray {
        let Config { replicas, addresses, ports, interfaces, .. } = &self.config;
        let weights: Vec<_> = replicas.iter().map(|replica| replica.weight).collect();
        let of_family = |is_ipv4: bool| {
            let usable = |n: usize| {
                let reaches = self.hops[n].hops.iter().any(|hop| hop.address.is_ipv4() == is_ipv4);
                reaches && !self.is_drained(n)
            };
            let usable: Vec<bool> = (0..replicas.len()).map(usable).collect();
            let is_up = |(n, usable): (usize, &bool)| *usable && self.checker.is_up(n);
            let up: Vec<bool> = usable.iter().enumerate().map(is_up).collect();
            match slots(&weights, &up) {
                none if none.is_empty() => slots(&weights, &usable),
                some => some,
            }
        };
        Spray {
            instance: self.config.instance(),
            interfaces: interfaces.clone(),
            addresses: addresses.clone(),
            ports: ports.clone(),
            mark: REQUESTS,
            replicas: self.hops.iter().map(|of| of.hops.clone()).collect(),
            slots: [of_family(true), of_family(false)],
        }
    }

    /// Updates the rules to the current distribution.
    fn update(&self, rules: &mut Rules) {
        rules.update(self.distribution(), self.names());
    }

    fn names(&self) -> Vec<String> {
        self.config.replicas.iter().map(|replica| replica.name.clone()).collect()
    }

    /// Logs the replicas whose state has changed.
    fn log_states(&mut self) {
        for (n, replica) in self.config.replicas.iter().enumerate() {
            let is_up = self.checker.is_up(n);
            if self.logged.insert(replica.name.clone(), is_up) == Some(is_up) {
                continue;
            }
            match self.state(n) {
                State::Up => info!(replica = replica.name, "up"),
                state => warn!(replica = replica.name, "{state}"),
            }
        }
    }

    fn state(&self, n: usize) -> State {
        let ReplicaHops { hops, missing } = &self.hops[n];
        match (self.checker.state(n), missing.first()) {
            (_, Some(why)) if hops.is_empty() => State::Down(why.clone()),
            (State::Up, Some(why)) => State::Degraded(why.clone()),
            (state, _) => state,
        }
    }

    fn status(&self, rules: &Rules) -> SprayStatus {
        let (sent, slots) = (rules.sent(), rules.slots());
        let replica = |(n, config): (usize, &Replica)| {
            let Counters { probes, failures, falls } = self.checker.counters(n);
            let sent = sent.get(&config.name).copied().unwrap_or_default();
            ReplicaStatus {
                name: config.name.clone(),
                addresses: config.addresses.clone(),
                weight: config.weight,
                state: self.state(n),
                is_drained: self.is_drained(n),
                is_drained_by_config: config.is_drained,
                share: share(slots, n),
                packets: sent.packets,
                bytes: sent.bytes,
                probes,
                failures,
                falls,
            }
        };
        let replicas = self.config.replicas.iter().enumerate().map(replica);
        SprayStatus {
            spray: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: now().since(self.started).as_secs_f64(),
            addresses: self.config.addresses.clone(),
            ports: self.config.ports.clone(),
            replicas: replicas.collect(),
            changes: rules.changes,
            repairs: rules.repairs,
            fault: rules.fault().cloned(),
            drain_fault: self.drained.fault().cloned(),
        }
    }

    fn page(&self, rules: &Rules) -> Page {
        let status = self.status(rules);
        Page { counters: encode(&status), trouble: status.unfit() }
    }

    fn reload_and_log(&mut self, rules: &mut Rules) {
        notify(Phase::Reloading);
        match self.reload(rules) {
            Ok(()) => info!("the config was read again"),
            Err(error) => error!("not reloaded, nothing has changed: {error:#}"),
        }
        notify(Phase::Ready);
    }

    /// Reloads the config. After an error, the config is unchanged.
    fn reload(&mut self, rules: &mut Rules) -> Result<()> {
        let new = Config::load(self.path)?;
        let same = |what: &str, same: bool| match same {
            true => Ok(()),
            false => bail!("{what}: has changed; that needs a restart"),
        };
        same("name, run_dir", new.socket() == self.config.socket())?;
        same("metrics", new.metrics == self.config.metrics)?;
        let is_same = |a: &Replica, b: &Replica| (&a.name, &a.addresses) == (&b.name, &b.addresses);
        let old = |new| self.config.replicas.iter().position(|old| is_same(old, new));
        let old: Vec<_> = new.replicas.iter().map(|of| (new.check.timing, old(of))).collect();
        self.checker = self.checker.reload(&old, now());
        self.generation += 1;
        self.config = new;
        self.find_hops();
        self.update(rules);
        self.log_states();
        Ok(())
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
