//! Control side of a gateway: signals, the status socket, metrics and the packet cache's service.
//! The control side carries no packets and may be slow.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::net::UnixListener;
use tracing::{info, warn};

use super::ConfigSource;
use super::clocks::ClockFile;
use super::endpoints::Endpoints;
use super::listeners::{Listeners, Moved};
use super::metrics;
use super::misroutes::Misroutes;
use super::path_choice::PathChoice;
use super::peers::PeerStates;
use super::site::Site;
use super::slice_routes::SliceRoutes;
use super::snapshot::Details;
use super::status::Status;
use super::stray_warning::StrayWarning;
use super::system::System;
use super::ticks::{Tick, Ticks};
use super::tls::TlsTunnels;
use super::upgrade::UpgradeState;
use super::wan::WanWatch;
use super::workers::Workers;
use crate::handover::{self, Upgrader};
use crate::metrics::PageCache;
use crate::notify::{Phase, notify};
use crate::settings::thread::ProxyThread;
use crate::signals::{SignalStreams, Signals, either};
use crate::status_socket::{self, Name};
use crate::watchdog::Watchdog;

/// Interval between checks for the end of the last flow of split mode.
pub(super) const DRAIN_POLL: Duration = Duration::from_millis(50);

/// Control side of a gateway: everything except packets.
pub struct Control {
    pub(super) source: ConfigSource,
    pub(super) site: Site,
    pub(super) workers: Workers,
    /// Paths that packets take, if there are two WANs.
    pub(super) paths: PathChoice,
    /// Proxy of split mode.
    pub(super) flows: Option<ProxyThread>,
    /// Tunnels over TLS of that proxy.
    pub(super) tls: TlsTunnels,
    started: Instant,
    pub(super) wan: WanWatch,
    peers: PeerStates,
    misroutes: Misroutes,
    clocks: Option<ClockFile>,
    pub(super) endpoints: Endpoints,
    /// Reason, as logged, why some packet threads do not have the config in force.
    pub(super) refusal: Option<String>,
    /// Logged warnings about the config and the machine.
    pub(super) warnings: Vec<String>,
    pub(super) listeners: Listeners,
    pub(super) slice_routes: SliceRoutes,
    pub(super) upgrade: UpgradeState,
}

impl Control {
    /// Creates the control side of the gateway whose config comes from `source`. With `inherited`
    /// listeners, this process continues the gateway of another one.
    pub fn new(
        source: ConfigSource,
        site: Site,
        (workers, paths): (Workers, PathChoice),
        (flows, tls): (Option<ProxyThread>, TlsTunnels),
        inherited: Option<[Option<OwnedFd>; 2]>,
    ) -> Result<Self> {
        let parts = (workers.to_all(), flows.as_ref());
        let upgrade = UpgradeState::new(&site, &source, parts, inherited)?;
        Ok(Control {
            upgrade,
            wan: WanWatch::new(&site)?,
            peers: PeerStates::default(),
            misroutes: Misroutes::default(),
            clocks: site.config.clocks().map(ClockFile::new),
            endpoints: Endpoints::default(),
            refusal: None,
            warnings: site.warnings(),
            started: Instant::now(),
            listeners: Listeners::new(workers.to_all()),
            slice_routes: SliceRoutes::default(),
            source,
            site,
            workers,
            paths,
            flows,
            tls,
        })
    }

    /// Runs until SIGTERM, SIGINT, the end of the packet threads, or until another process has
    /// taken over. SIGHUP reloads the config, or upgrades. The returned upgrader may still be
    /// running.
    pub fn run(mut self, system: &mut System, signals: Signals) -> (Arc<Upgrader>, Result<()>) {
        let (runtime, signals) = signals.into_parts();
        let done = runtime.block_on(self.serve(system, signals));
        if !self.upgrade.is_left() {
            notify(Phase::Stopping);
        }
        (self.upgrade.upgrader(), done)
    }

    async fn serve(&mut self, system: &mut System, mut signals: SignalStreams) -> Result<()> {
        let (listener, _names) = self.begin(system).await?;
        let (mut stray_warning, mut watchdog) = (StrayWarning::default(), Watchdog::new());
        let (mut ticks, mut pages) = (Ticks::new(), PageCache::default());
        let mut draining = false;
        while !self.is_over(draining) {
            tokio::select! {
                tick = ticks.next(self.site.config.rack.is_some()) => {
                    self.handle_tick(tick, &mut stray_warning, system).await;
                }
                () = watchdog.due() => watchdog.answer(self.age()),
                () = either(&mut signals.terminate, &mut signals.interrupt) => {
                    if self.drain(&mut draining, system) { break }
                }
                _ = tokio::time::sleep(DRAIN_POLL), if draining => {}
                () = self.paths.changed(&self.site.config) => self.choose_paths(system),
                end = self.workers.ended() => self.workers.handle_end(end, &self.site),
                _ = signals.hangup.recv() => self.handle_hangup(system).await,
                event = self.upgrade.next() => self.handle_upgrade(event, draining, system).await,
                _ = signals.user1.recv() => self.reopen_log(),
                () = self.endpoints.changed() => self.update_endpoints().await,
                client = status_socket::accept(&listener) => {
                    status_socket::show(client, &self.status(system).await)?;
                }
                client = self.listeners.accept() => {
                    let page = pages.get(async { metrics::page(&self.status(system).await) }).await;
                    self.listeners.answer(client, page);
                }
            }
        }
        self.stop(system, &mut signals).await
    }

    async fn begin(&mut self, system: &mut System) -> Result<(UnixListener, [Name; 2])> {
        let opened = self.open().await?;
        notify(Phase::Ready);
        self.endpoints.watch(&self.site.config);
        self.reload_if_changed(system).await;
        Ok(opened)
    }

    async fn handle_tick(
        &mut self,
        tick: Tick,
        stray_warning: &mut StrayWarning,
        system: &mut System,
    ) {
        match tick {
            Tick::Check => self.check(stray_warning, system).await,
            Tick::Rack => self.announce().await,
        }
    }

    /// Checks the peers and the machine. Called once a second.
    async fn check(&mut self, stray_warning: &mut StrayWarning, system: &mut System) {
        self.check_peers(stray_warning).await;
        self.check_system(system).await;
    }

    async fn stop(&mut self, system: &mut System, signals: &mut SignalStreams) -> Result<()> {
        if self.upgrade.is_released() {
            self.finish_flows(system, signals).await;
        }
        if !self.upgrade.is_left() {
            info!("stopping");
            if let Some(clocks) = &mut self.clocks {
                clocks.write(&self.workers.details().clocks);
            }
        }
        let ended = self.flows.take().map_or(Ok(()), |flows| flows.engine.end());
        self.workers.take_failure().and(ended)
    }

    /// Opens the listeners of this process, or uses the inherited ones. Then opens the sockets for
    /// status and for upgrades, and publishes both names before the first status is sent: a client
    /// that has received the status must also find the socket for upgrades.
    async fn open(&mut self) -> Result<(UnixListener, [Name; 2])> {
        let path = self.site.config.socket();
        let inherited = self.upgrade.take_inherited();
        let takes_over = inherited.is_some();
        let opened = match inherited {
            None => Moved::open(None, &self.site.config).await?,
            Some(inherited) => Moved::inherited(inherited)?,
        };
        self.listeners.replace(opened, &self.site.config);
        let (requests, of_requests) = handover::bind(&self.site.config.upgrade_socket())?;
        if takes_over {
            handover::serve(requests, self.upgrade.upgrader())?;
            let of_requests = of_requests.publish()?;
            let (listener, name) = status_socket::beside(&path, |path| UnixListener::bind(path))?;
            return Ok((listener, [name.publish()?, of_requests]));
        }
        let (listener, name) = status_socket::open(&path)?;
        handover::serve(requests, self.upgrade.upgrader())?;
        Ok((listener, [name, of_requests.publish()?]))
    }

    /// Age of the oldest heartbeat: of the packet thread, or of a loop of split mode.
    fn age(&self) -> Duration {
        let flows = self.flows.as_ref().map(|flows| flows.engine.handle.age());
        self.workers.age().max(flows.unwrap_or_default())
    }

    /// Passes the current addresses of endpoints to the packet thread.
    async fn update_endpoints(&mut self) {
        self.endpoints.fill(&mut self.site.config);
        if let Err(error) = self.workers.reload(&self.site, false).await {
            warn!("an endpoint's new address is not in use: {error:#}");
        }
    }

    pub(super) async fn send_settings(&mut self, site: &Site) -> Result<()> {
        let is_other = site.only_observes() != self.site.only_observes();
        self.workers.reload(site, is_other).await
    }

    /// Makes packets take the paths that are up.
    pub(super) fn choose_paths(&mut self, system: &mut System) {
        if self.site.config.wans.is_empty() {
            return;
        }
        if self.upgrade.is_active() {
            self.paths.is_pending = true;
            return;
        }
        let failure = system.choose_paths(self.paths.rules(&self.site.config)).err();
        self.paths.is_pending = failure.is_some();
        self.log_paths(failure);
    }

    /// Logs the reason why the choice of paths is not in force.
    fn log_paths(&mut self, failure: Option<anyhow::Error>) {
        if self.paths.record(failure.map(|error| format!("{error:#}"))) {
            let why = self.paths.trouble().unwrap_or_default();
            warn!("packets may take a wrong path: {why}; tried again each second");
        }
    }

    /// Restores missing rules and routes of the paths. Called once a second.
    fn keep_paths(&mut self, system: &mut System) {
        if self.paths.is_pending {
            self.choose_paths(system);
        } else {
            let failure = system.keep_paths().err();
            self.log_paths(failure);
        }
    }

    /// Updates the peers' states, logs changes, and saves the data that a restart needs. Called
    /// once a second.
    async fn check_peers(&mut self, stray_warning: &mut StrayWarning) {
        let (seen, details) = (self.workers.snapshot(), self.details());
        self.tls.follow(self.flows.as_mut(), &seen, &details).await;
        // With two WANs, the peers' states show whether both WANs are down.
        let trouble = self.wan.down().filter(|_| self.site.config.wans.is_empty());
        self.peers.update(now(), &seen, &details, trouble.as_deref(), &self.tls);
        // Datagrams of another version are stray, too, but the keys are not the reason.
        if details.facts.values().all(|facts| facts.other_version.is_none()) {
            stray_warning.check(&seen);
        }
        let table = self.site.config.rack.as_ref().map(|rack| rack.route_table);
        self.misroutes.check(&self.site.tun_name(), table);
        if let Some(clocks) = &mut self.clocks {
            clocks.update(&details.clocks);
        }
    }

    /// Restores changes to the machine, and settings of packet threads, that are no longer in
    /// force. Does nothing during an upgrade. Called once a second.
    async fn check_system(&mut self, system: &mut System) {
        if !self.upgrade.is_active() {
            self.align_workers().await;
            self.follow_wan(system).await;
            match self.site.config.wans.is_empty() {
                true => system.restore_rules(),
                false => self.keep_paths(system),
            }
        }
    }

    /// Upgrades if an upgrade is due, and otherwise reloads the config.
    async fn handle_hangup(&mut self, system: &mut System) {
        self.reopen_log();
        if !self.upgrade.begin_if_due() {
            self.reload_and_log(system).await;
        }
    }

    pub(super) fn reopen_log(&self) {
        self.flows.iter().for_each(|flows| flows.engine.handle.reopen_log());
    }

    /// Stops accepting flows of split mode, and lets the existing ones finish. Returns true if the
    /// gateway is to end immediately: if there is no split mode, if this is not the first call, or
    /// during an upgrade, because the new process uses the same listeners and rules.
    fn drain(&self, draining: &mut bool, system: &mut System) -> bool {
        if self.upgrade.is_active() {
            return true;
        }
        if let Some(flows) = &self.flows {
            if let Err(error) = system.stop_intercepting() {
                warn!("new flows are still redirected here: {error:#}");
            }
            flows.engine.handle.drain();
        }
        std::mem::replace(draining, true) || self.flows.is_none()
    }

    /// Returns whether another process has taken over, the packet threads have failed, or all flows
    /// have finished after [`Control::drain`].
    fn is_over(&self, draining: bool) -> bool {
        self.upgrade.is_released()
            || self.workers.have_failed()
            || draining && self.flows.as_ref().is_none_or(|flows| flows.engine.is_over())
    }

    async fn status(&self, system: &System) -> Status {
        let split = match &self.flows {
            Some(flows) => Some(flows.engine.handle.status().await),
            None => None,
        };
        let mut status = Status {
            split,
            uptime: self.started.elapsed().as_secs_f64(),
            cache: self.listeners.cache_stats(),
            trouble: self.trouble(system),
            ..Status::new(&self.site, &self.workers)
        }
        .with_peers(now(), &self.details(), self.peers.get());
        self.tls.show(&mut status.peers);
        status
    }

    /// Details that the packet threads have published about the peers, and the reasons why
    /// endpoints' names are not resolved.
    fn details(&self) -> Details {
        let mut details = self.workers.details();
        for peer in &self.site.config.peers {
            if let Some(facts) = details.facts.get_mut(&peer.name) {
                facts.unresolved = self.endpoints.unresolved(peer);
            }
        }
        details
    }

    fn trouble(&self, system: &System) -> Option<String> {
        let missing =
            "rules of nftables or ip rule are missing, and cannot be restored: the log says why";
        let missing = system.has_missing_rules().then_some(missing);
        let paths = self
            .paths
            .trouble()
            .map(|why| format!("rules or routes of the paths are missing: {why}"));
        let trouble = self.wan.trouble().or(missing).map(str::to_owned).or(paths);
        let trouble = trouble.or_else(|| {
            let why = self.refusal.as_ref()?;
            Some(format!("a packet thread does not have the config in force: {why}"))
        });
        trouble.or_else(|| self.misroutes.trouble(&self.site.tun_name()))
    }
}

fn now() -> viaduct_proto::time::Instant {
    viaduct_proto::time::Instant::from_nanos(viaduct_sys::clock::now())
}
