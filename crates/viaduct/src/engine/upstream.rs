//! Part of an event loop that connects to servers: outbounds of flows, and the tunnels, Trickles
//! ports and resolver that they use.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use mio::{Registry, Token, Waker};
use tracing::error;
use viaduct_proto::time::Instant;

use super::config::EngineConfig;
use super::destination::Target;
use super::listen_set::ListenSet;
use super::outbound::{HopSignaller, Outbounds};
use super::resolve::{Requester, Resolver};
use super::trickles::Trickles;
use super::worker::time;
use crate::tunnel::Tunnels;

/// Outbounds, resolver, tunnels, and ports of Trickles.
pub(super) struct Upstream {
    pub(super) outbounds: Outbounds,
    signaller: Arc<HopSignaller>,
    /// `None` if no client can name a host.
    pub(super) resolver: Option<Resolver>,
    pub(super) tunnels: Option<Tunnels>,
    /// Client ports (sockets and taps) of flows over Trickles.
    pub(super) trickles: Trickles,
}

impl Upstream {
    /// Returns the upstream part of the event loop of `listen_set`, and takes the set's sockets
    /// for links of tunnels. `waker` wakes the loop for resolved names; packets of Trickles are
    /// reported under `token`. Errors: the TCP option for hops is configured and cannot be written,
    /// or a port of a tunnel or of Trickles cannot be opened.
    pub(super) fn new(
        config: &EngineConfig,
        listen_set: &mut ListenSet,
        registry: &Registry,
        waker: &Arc<Waker>,
        token: Token,
    ) -> Result<Upstream> {
        // Streams that arrive over tunnels may request a host name, even if the config's target
        // needs no resolver.
        let arrive = config.tunnels.as_ref().is_some_and(|of| of.listen.is_some());
        let resolver = match config.target {
            Target::Fixed(_) | Target::Original { .. } | Target::Program if !arrive => None,
            _ => Some(Resolver::new(waker)),
        };
        let (tunnels, inherited) = (config.tunnels.clone(), listen_set.tunnels.take());
        let is_continued = inherited.is_some();
        let tunnels = tunnels.map(|of| Tunnels::new(of, inherited, registry.try_clone()?, time()));
        let tunnels = tunnels.transpose()?;
        // Each loop installs firewall rules of its own, so with several loops the name includes the
        // loop's number. A process that hands over uses the name until its last flow has ended.
        let name = match config.workers {
            _ if is_continued => format!("takeover_{}_{}", std::process::id(), listen_set.number),
            1 => config.name.clone(),
            _ => format!("{}_{}", config.name, listen_set.number),
        };
        let buffer = config.limits.trickles_buffer / config.workers.max(1) as usize;
        let run_dir = config.run_dir.clone();
        let trickles = Trickles::new(registry.try_clone()?, token, &name, run_dir, buffer);
        let (outbounds, signaller) =
            (Outbounds::default(), HopSignaller::new(config.hop_signalling));
        let mut upstream =
            Upstream { outbounds, signaller: signaller.into(), resolver, tunnels, trickles };
        upstream.prepare(config)?;
        Ok(upstream)
    }

    /// Prepares the outbounds that policies name. The flows of an outbound that cannot be opened
    /// are refused. If the TCP option for hops cannot be written, hops get the flows' addresses as
    /// data of the SYN.
    fn prepare(&mut self, config: &EngineConfig) -> Result<()> {
        let signalled = self.signaller.prepare(&config.policies);
        let opened = self.trickles.open(config.policies.trickles());
        let outlets = self.tunnels.as_ref().map(Tunnels::outlets).unwrap_or_default();
        self.outbounds = Outbounds::new(config, &self.signaller, &outlets, &self.trickles);
        signalled.and(opened)
    }

    /// Applies a new config; failures are logged.
    pub(super) fn reload(&mut self, config: &EngineConfig, now: Instant) {
        if let (Some(running), Some(new)) = (&mut self.tunnels, &config.tunnels) {
            running.set_links(&new.dials, now);
        }
        if let Err(error) = self.prepare(config) {
            error!("{error:#}");
        }
    }

    /// Drops the look-up for a client that has disconnected, if the look-up has not started.
    pub(super) fn forget(&self, requester: Requester) {
        if let Some(resolver) = &self.resolver {
            resolver.forget(requester);
        }
    }

    /// Returns whether a tunnel has work to do without waiting for an event.
    pub(super) fn is_busy(&self) -> bool {
        self.tunnels.as_ref().is_some_and(Tunnels::is_busy)
    }

    /// Returns whether tunnels and Trickles have delivered all bytes of ended flows.
    pub(super) fn is_done(&self) -> bool {
        self.tunnels.as_ref().is_none_or(Tunnels::are_done) && self.trickles.are_done()
    }

    /// Time until the next timer of a tunnel or of Trickles, if any runs.
    pub(super) fn poll_timeout(&mut self, now: Instant) -> Option<Duration> {
        let tunnels = self.tunnels.as_mut().and_then(Tunnels::poll_timeout);
        let tunnels = tunnels.map(|at| at.since(now));
        tunnels.into_iter().chain(self.trickles.poll_timeout(now)).min()
    }
}
