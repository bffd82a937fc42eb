//! Reload of a gateway's config: all of it takes effect, or none.

use anyhow::{Context as _, Result, bail};
use tracing::{error, info, warn};

use super::config::Config;
use super::control::Control;
use super::listeners::Moved;
use super::site::Site;
use super::split;
use super::system::System;
use crate::notify::{Phase, notify};

impl Control {
    /// Reloads the config, and logs the result.
    pub(super) async fn reload_and_log(&mut self, system: &mut System) {
        notify(Phase::Reloading);
        match self.reload(system).await {
            Ok(()) => info!("reloaded"),
            Err(e) if system.is_complete() && self.workers.are_alike() => {
                error!("not reloaded, nothing has changed: {e:#}");
            }
            Err(e) => {
                error!("not reloaded, and the config in force is only partly applied: {e:#}");
                if !system.is_complete() {
                    self.wan.set_stale();
                }
            }
        }
        notify(Phase::Ready);
    }

    /// Reloads the config if the file differs from the config in force. After an upgrade, the
    /// config in force is that of the old process.
    pub(super) async fn reload_if_changed(&mut self, system: &mut System) {
        // In an upgrade, changes of paths may be queued from before this process took over.
        self.paths.note_waiting(&self.site.config);
        // The rules that the old process has set may not reflect these changes.
        self.paths.is_pending = true;
        if self.source.is_changed() {
            self.reload_and_log(system).await;
        }
    }

    /// Reloads the config. All of it takes effect, or none.
    async fn reload(&mut self, system: &mut System) -> Result<()> {
        let (site, flows, text) = self.source.load()?;
        let fixed = reject_fixed_changes(&self.site.config, &site.config).and_then(|()| {
            if site.forces_fake_tcp() && self.site.fake_tcp.is_empty() {
                bail!("transport: \"fake-tcp\" has no ports since the start; that needs a restart");
            }
            match (&self.flows, &flows) {
                (None, None) => Ok(()),
                (Some(_), Some(_))
                    if split::prefixes(&self.site.config) != split::prefixes(&site.config) =>
                {
                    bail!("prefixes: a change in split mode needs a restart")
                }
                (Some(old), Some(new)) => old.settings().check_change(new).context("[split]"),
                _ => bail!("mode: starting or ending split mode needs a restart"),
            }
        });
        fixed.with_context(|| self.source.path.display().to_string())?;
        self.apply(site, system).await?;
        self.source.text.set(Some(text));
        self.endpoints.watch(&self.site.config);
        self.tls.change(&self.site.config);
        match (&mut self.flows, flows) {
            (Some(running), Some(new)) => running.reload(self.tls.applied(&new)),
            _ => Ok(()),
        }
    }

    /// Applies `site`: all of it, or nothing.
    pub(super) async fn apply(&mut self, mut site: Site, system: &mut System) -> Result<()> {
        self.endpoints.fill(&mut site.config);
        // The ports of fake TCP are opened only at the start.
        site.fake_tcp.clone_from(&self.site.fake_tcp);
        site.is_serving = self.site.is_serving;
        let moved = Moved::open(Some(&self.site.config), &site.config).await?;
        system.apply(&site)?;
        if let Err(error) = self.send_settings(&site).await {
            self.roll_back(&site, system).await;
            return Err(error);
        }
        let warnings = site.warnings();
        for warning in warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            warn!("{warning}");
        }
        self.warnings = warnings;
        if let Err(error) = self.wan.mark_applied(&site) {
            self.wan.set_stale();
            let why = format!("{error:#}");
            if self.wan.record_failure(why.clone()) {
                warn!("{why}; tried again each second");
            }
        }
        self.listeners.replace(moved, &site.config);
        self.slice_routes.set_stale();
        self.site = site;
        self.choose_paths(system);
        Ok(())
    }

    /// Restores the settings in force, after a worker has refused those of `site`.
    async fn roll_back(&mut self, site: &Site, system: &mut System) {
        if let Err(error) = system.apply(&self.site) {
            system.set_incomplete();
            warn!("cannot make the changes of the config in force again: {error:#}");
        }
        if self.workers.are_alike() {
            return;
        }
        let has_new_taps = site.only_observes() != self.site.only_observes();
        if let Err(error) = self.workers.reload(&self.site, has_new_taps).await {
            let why = format!("{error:#}");
            warn!("cannot give the packet threads the config in force again: {why}");
            self.refusal = Some(why);
        }
    }

    /// Gives the packet threads the config in force again, if one of them may not have it. Called
    /// once a second.
    pub(super) async fn align_workers(&mut self) {
        if self.workers.are_alike() {
            self.refusal = None;
            return;
        }
        match self.workers.reload(&self.site, false).await {
            Ok(()) => {
                self.refusal = None;
                info!("all packet threads have the config in force again");
            }
            Err(error) => {
                let why = Some(format!("{error:#}"));
                if self.refusal != why {
                    warn!("a packet thread does not have the config in force: {error:#}");
                    self.refusal = why;
                }
            }
        }
    }
}

/// Rejects changes that need a restart.
fn reject_fixed_changes(old: &Config, new: &Config) -> Result<()> {
    let table = |config: &Config| config.rack.as_ref().map(|rack| rack.route_table);
    let fixed = [
        ("name", new.name == old.name),
        ("key", new.secret == old.secret),
        ("wan", new.wan == old.wan && new.wans == old.wans),
        ("listen", new.listen == old.listen),
        ("tls_listen", new.tls_listen == old.tls_listen),
        ("workers", new.workers == old.workers),
        ("lanes", new.lanes == old.lanes),
        ("memory", new.memory == old.memory),
        ("run_dir", new.run_dir == old.run_dir),
        ("route_table", table(new).zip(table(old)).is_none_or(|(new, old)| new == old)),
    ];
    match fixed.iter().find(|(_, same)| !same) {
        Some((key, _)) => bail!("[site] {key} has changed; that needs a restart"),
        None => Ok(()),
    }
}
