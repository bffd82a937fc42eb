//! Config of an engine, built by the command that runs it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::Result;
use tracing::warn;
use viaduct_sys::process::raise_fd_limit;
use viaduct_sys::socket::tcp::TcpOptions;

use super::commands::Limits;
use super::destination::Target;
use super::listen_set::{ListenSet, SynSourceConfig};
use super::negotiation::Negotiation;
use super::outbound::{HopSignalling, Outbound};
use super::policy::Policies;
use crate::tunnel::settings::TunnelSettings;

/// Default limit, in bytes, of data that flows over Trickles have requested and not yet passed on.
pub const TRICKLES_BUFFER: usize = 256 << 20;
/// Descriptors reserved for uses other than flows: pipes, taps, listeners, the status socket. At
/// most half of all descriptors are reserved.
const SPARE_DESCRIPTORS: u64 = 256;
/// Descriptors of a flow over TCP.
const DESCRIPTORS_EACH: u64 = 2;

/// Config of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Name, also of the status socket.
    pub name: String,
    /// Directory of the status socket and the journal.
    pub run_dir: PathBuf,
    /// Event loops that share the flows.
    pub workers: u32,
    /// Addresses to listen at.
    pub listen: Vec<SocketAddr>,
    /// Destinations of flows.
    pub target: Target,
    /// Policies: which flows may pass, and how.
    pub policies: Policies,
    /// Resource limits and timeouts.
    pub limits: Limits,
    /// Options of the flows' sockets.
    pub options: TcpOptions,
    /// Form in which a flow's addresses are sent to hops.
    pub hop_signalling: Option<HopSignalling>,
    /// Negotiation with far ends, if there is one.
    pub negotiation: Option<Arc<Negotiation>>,
    /// Parent master that opens outbound connections, in place of the kernel.
    pub parent: Option<Arc<dyn Outbound>>,
    /// Tunnels, if there are any.
    pub tunnels: Option<TunnelSettings>,
    /// Number of requests that a master refused because a user had reached a limit.
    pub over_limit: Option<Arc<AtomicU64>>,
}

impl EngineConfig {
    /// Returns the config of an engine of one event loop that listens nowhere and connects all
    /// flows directly to their servers.
    pub fn new(name: String, run_dir: PathBuf, target: Target, limits: Limits) -> EngineConfig {
        EngineConfig {
            name,
            run_dir,
            workers: 1,
            listen: Vec::new(),
            target,
            policies: Policies::default(),
            limits,
            options: TcpOptions::default(),
            hop_signalling: None,
            negotiation: None,
            parent: None,
            tunnels: None,
            over_limit: None,
        }
    }

    /// Lowers the flow limit to the number that the available descriptors allow: further clients
    /// would hang. If this lowers a configured limit, early connections get at most half of the new
    /// limit.
    pub fn fitted(mut self) -> EngineConfig {
        let most = raise_fd_limit();
        // A flow over Trickles holds two sockets, one for each packet format.
        let each = DESCRIPTORS_EACH + u64::from(self.policies.trickles().next().is_some());
        let fit = (most - SPARE_DESCRIPTORS.min(most / 2)) / each;
        let (fit, wanted) = (usize::try_from(fit).unwrap_or(usize::MAX), self.limits.flows);
        if wanted == usize::MAX {
            self.limits.flows = fit;
        } else if fit < wanted {
            warn!(
                "the limit of {most} descriptors is enough for {fit} flows, not for {wanted}: \
                 raise it (ulimit -n, LimitNOFILE=), or lower the flow limit"
            );
            self.limits.flows = fit;
            self.limits.early = self.limits.early.map(|(most, wait)| (most.min(fit / 2), wait));
        }
        self
    }

    /// Returns whether round trips to servers are measured: a policy chooses hops by them, or other
    /// proxies may ask for them.
    pub fn measures_servers(&self) -> bool {
        let is_hop = matches!(&self.target, Target::Requested(terms) if terms.protocols.proxy);
        is_hop || self.chooses_hops()
    }

    /// Returns whether a policy chooses hops by measurements.
    pub fn chooses_hops(&self) -> bool {
        self.policies.outbounds().any(|by| by.auto().is_some())
    }

    /// Reserves `descriptors` for uses other than flows.
    pub fn leave_descriptors(&mut self, descriptors: usize) {
        let flows = descriptors.div_ceil(DESCRIPTORS_EACH as usize);
        self.limits.flows = self.limits.flows.saturating_sub(flows).max(1);
    }

    /// Returns the config of one event loop, with its share of the limits on flows and on early
    /// connections.
    pub fn part(&self) -> EngineConfig {
        let most = |all: usize| all.div_ceil(self.workers as usize);
        let early = self.limits.early.map(|(all, wait)| (most(all), wait));
        let limits = Limits { flows: most(self.limits.flows), early, ..self.limits };
        EngineConfig { limits, ..self.clone() }
    }

    /// Opens the listen sets of all event loops, with the source of SYNs that `syns` describes.
    /// Errors: an address cannot be used, or SYNs cannot be seen.
    pub fn listen_sets(&self, syns: Option<SynSourceConfig<'_>>) -> Result<Vec<ListenSet>> {
        ListenSet::open_for(self.workers, &self.listen, syns, self.options)
    }

    /// Path of the status socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.name))
    }

    /// Path of the socket for requests to upgrade.
    pub fn upgrade_socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.upgrade", self.name))
    }

    /// Path of the journal of changes to the machine.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("{}.changes.json", self.name))
    }
}
