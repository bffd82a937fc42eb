//! Settings of an engine: made from options and tables, or for wrapped programs. All of them are
//! checked before anything on the machine is changed.

mod args;
mod checks;
mod programs;
mod report;
mod tables;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Result, anyhow, bail};
use tracing::warn;
use viaduct_proto::flow::Registry;
use viaduct_sys::nft::intercept::Intercept;
use viaduct_sys::process::raise_fd_limit;
use viaduct_sys::socket::tcp::{Mirrored, TcpOptions};

use super::commands::Limits;
use super::destination::Target;
use super::hop_signalling::HopSignalling;
use super::negotiation::Negotiation;
use super::outbound::Outbound;
use super::parent_master::ParentMaster;
use super::policy::{Plan, Policies};
use super::trickles::TricklesTarget;
use crate::access_log::AccessLogArgs;
use crate::text;
use crate::tunnel::settings::{TunnelName, TunnelSettings, TunnelTable};
use crate::value_parser::MAX_BUFFER;
use args::Accept;
pub use args::ProxyArgs;
use checks::{far, has_effect, holds, intercept, leads_on, limits, metrics_apart, target, workers};
pub use programs::ProgramTimes;
use tables::chain;
pub use tables::{PolicyTable, parse_options};

/// Descriptors for other uses than flows: pipes, taps, listeners, the status socket. Half of
/// all descriptors where there are few.
const SPARE_DESCRIPTORS: u64 = 256;
/// Descriptors of a flow over TCP.
const DESCRIPTORS_EACH: u64 = 2;

/// Complete settings of a proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the proxy.
    pub name: String,
    /// Addresses to listen at.
    pub listen: Vec<SocketAddr>,
    /// Destinations of flows.
    pub target: Target,
    /// Policies: which flows may pass, and how.
    pub policies: Policies,
    /// Form in which hops are sent a flow's addresses.
    pub hop_signalling: Option<HopSignalling>,
    /// Negotiation with far ends, if there is one.
    pub negotiation: Option<Arc<Negotiation>>,
    /// Parent master that carries outbound flows, instead of the kernel.
    pub parent: Option<Arc<dyn ParentMaster>>,
    /// Options of the flows' sockets.
    pub options: TcpOptions,
    /// Resource limits and timeouts.
    pub limits: Limits,
    /// Event loops that share the flows.
    pub workers: u32,
    /// Tunnels of the proxy.
    pub tunnels: Option<TunnelSettings>,
    /// Traffic that the kernel is to divert to the proxy.
    pub intercept: Option<Intercept>,
    /// True if the kernel holds SYNs until their server has answered.
    pub holds: bool,
    /// True if flows may be forwarded late where this process lacks the right to see SYNs.
    pub may_be_late: bool,
    /// True if the proxy process is started on demand.
    pub on_demand: bool,
    /// Directory of the status socket and the journal.
    pub run_dir: PathBuf,
    /// Address of the Prometheus endpoint.
    pub metrics: Option<SocketAddr>,
    /// Requests of users that a master refused because of their limits.
    pub over_limit: Option<Arc<AtomicU64>>,
    /// Access log.
    pub access_log: AccessLogArgs,
}

impl Settings {
    /// Lowers the flow limit to the available descriptors. Clients beyond that would hang.
    pub fn fitted(mut self) -> Settings {
        let most = raise_fd_limit();
        // By Trickles, sockets of both formats are held open.
        let each = DESCRIPTORS_EACH + u64::from(self.policies.trickles().next().is_some());
        let fit = (most - SPARE_DESCRIPTORS.min(most / 2)) / each;
        let (fit, wanted) = (usize::try_from(fit).unwrap_or(usize::MAX), self.limits.flows);
        if wanted == usize::MAX {
            self.limits.flows = fit;
        } else if fit < wanted {
            warn!(
                "{most} descriptors are allowed, enough for {fit} flows and not for {wanted}: \
                    raise \
                 the limit (ulimit -n, LimitNOFILE=), or ask for fewer flows"
            );
            self.limits.flows = fit;
            self.limits.early = self.limits.early.map(|(most, wait)| (most.min(fit / 2), wait));
        }
        self
    }

    /// Reserves `descriptors` for other uses than flows.
    pub fn leave_descriptors(&mut self, descriptors: usize) {
        let flows = descriptors.div_ceil(DESCRIPTORS_EACH as usize);
        self.limits.flows = self.limits.flows.saturating_sub(flows).max(1);
    }

    /// Settings from a table of options and tables of policies.
    ///
    /// # Errors
    /// A line with the mistake and a correct form.
    pub fn of_tables(
        options: &toml::Table,
        policies: &[PolicyTable],
        registry: &Registry,
    ) -> Result<Settings> {
        Self::of(&parse_options(options).map_err(|what| anyhow!(what))?, policies, &[], registry)
    }

    /// Settings from options, and tables of policies and tunnels.
    ///
    /// # Errors
    /// As [`Settings::of_tables`].
    pub fn of(
        args: &ProxyArgs,
        policies: &[PolicyTable],
        tunnels: &[TunnelTable],
        registry: &Registry,
    ) -> Result<Settings> {
        let first = args.listen.first().or(args.tunnel.tunnel_listen.as_ref());
        let port = first.map_or(0, SocketAddr::port);
        let tunnels = args.tunnel.settings(tunnels, &args.allow_to)?;
        let dials = tunnels.iter().flat_map(|of| &of.dials);
        let tunnelled = dials.clone().next().is_some() || args.tunnel.tunnel_listen.is_some();
        let names: Vec<TunnelName> = dials.map(|dial| dial.name.clone()).collect();
        let asked = !args.expect.is_empty() || args.tunnel.tunnel_listen.is_some();
        if !args.allow_to.is_empty() && !asked {
            bail!("allow-to: clients name no destination; give expect or tunnel-listen");
        }
        if args.on_demand && args.tunnel.tunnel_listen.is_some() {
            bail!("on-demand: it waits for connections, and tunnel-listen is served all the time");
        }
        let name = args.name.clone().unwrap_or_else(|| format!("proxy-{port}"));
        text::check_name(&name).map_err(|what| anyhow!("name: {what}"))?;
        has_effect(args, policies)?;
        leads_on(args, policies)?;
        metrics_apart(args)?;
        let target = target(args)?;
        let otherwise = Plan {
            deny: false,
            by: match (args.next, args.tunnel.tunnel, args.trickles) {
                (Some(at), ..) => Outbound::Hop(at),
                (None, Some(_), _) => Outbound::Tunnel(String::new()),
                (None, None, Some(formats)) => {
                    let key = args.trickles_key;
                    Outbound::Trickles(TricklesTarget { formats, key, ..TricklesTarget::default() })
                }
                (None, None, None) => Outbound::Direct,
            },
            handlers: chain(&args.handler, registry).map_err(|e| anyhow!("handler: {e}"))?,
            accepts: false,
            rate: args.rate,
        };
        let policy = |(n, table): (usize, &PolicyTable)| {
            let made = table.policy(&otherwise, &names, registry);
            made.map_err(|what| anyhow!("[[policy]] number {}: {what}", n + 1))
        };
        let list = policies.iter().enumerate().map(policy).collect::<Result<_>>()?;
        let holds = holds(args, &target)?;
        let policies = Policies { list, otherwise, far: far(args)? };
        if args.keep_client && policies.trickles().next().is_some() {
            bail!("keep-client: a connection of Trickles has this machine's address");
        }
        let workers = workers(args, holds, tunnelled, &policies)?;
        let waits = args.accept == Accept::AfterConnect;
        Ok(Settings {
            options: TcpOptions {
                transparent: target.is_transparent(),
                // One window of unacknowledged bytes, and as many bytes still to be sent.
                send_buffer: args
                    .send_buffer
                    .or(args.receive_buffer.map(|bytes| (2 * bytes).min(MAX_BUFFER))),
                save_syn: target.uses_options(),
                receive_buffer: args.receive_buffer,
                shared: false,
                inside: false,
                mirrored: Mirrored::default(),
            },
            tunnels: tunnels.map(|mut of| {
                (of.waits, of.core.queue) = (waits, of.core.queue.min(args.chain_buffer));
                of.dead_after(args.dead_after.limit())
            }),
            holds,
            may_be_late: args.forward.is_none() && !holds && !args.on_demand,
            on_demand: args.on_demand,
            name,
            listen: args.listen.clone(),
            target,
            policies,
            hop_signalling: args.tell,
            negotiation: None,
            parent: None,
            limits: limits(args)?,
            workers,
            intercept: intercept(args, port)?,
            run_dir: args.run_dir.path(),
            metrics: args.metrics,
            over_limit: None,
            access_log: args.access_log.clone(),
        })
    }

    /// Settings of each event loop: its share of the limits.
    pub fn part(&self) -> Settings {
        let most = |all: usize| all.div_ceil(self.workers as usize);
        let early = self.limits.early.map(|(all, wait)| (most(all), wait));
        let limits = Limits { flows: most(self.limits.flows), early, ..self.limits };
        Settings { limits, ..self.clone() }
    }

    /// Path of the status socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.name))
    }

    /// Path of the journal of changes to the machine.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("{}.changes.json", self.name))
    }

    /// Refuses changes that need a restart.
    pub fn check_change(&self, new: &Settings) -> Result<()> {
        let fixed = [
            ("listen", self.listen == new.listen),
            ("name", self.name == new.name),
            ("intercept, ports", self.intercept == new.intercept),
            ("to, expect", self.target.is_alike(&new.target)),
            ("tell", self.hop_signalling == new.hop_signalling),
            ("run-dir", self.run_dir == new.run_dir),
            ("metrics", self.metrics == new.metrics),
            ("access-log, access-log-format", self.access_log == new.access_log),
            ("accept, on-demand", (self.holds, self.on_demand) == (new.holds, new.on_demand)),
            (
                "flows, workers",
                self.limits.flows == new.limits.flows && self.workers == new.workers,
            ),
            ("tunnel", TunnelSettings::is_alike(&self.tunnels, &new.tunnels)),
            ("forward, max-early, early-wait", self.limits.early == new.limits.early),
            ("trickles-buffer", self.limits.trickles_buffer == new.limits.trickles_buffer),
        ];
        match fixed.iter().find(|(_, same)| !same) {
            Some((key, _)) => bail!("{key}: has changed; that needs a restart"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listen: Vec<_> = self.listen.iter().map(ToString::to_string).collect();
        match listen.is_empty() {
            true => writeln!(f, "proxy {}:", self.name)?,
            false => writeln!(f, "proxy {}: {} to {}", self.name, listen.join(", "), self.target)?,
        }
        self.write_interception(f)?;
        self.tunnels.iter().try_for_each(|tunnels| write!(f, "{tunnels}"))?;
        for (n, policy) in self.policies.list.iter().enumerate() {
            writeln!(f, "  policy {}: {policy}", n + 1)?;
        }
        writeln!(f, "  otherwise: {}", self.policies.otherwise)
    }
}
