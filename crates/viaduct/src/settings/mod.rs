//! Settings of a proxy, made from options and tables: the config of its engine, interception, the
//! access log and metrics. All of them are checked before anything on the machine is changed. Three
//! services run a proxy: `viaduct proxy`, a gateway (`[split]`), and an overlay node (`[socks]`).
//!
//! ```text
//!   command line ──▶ args ──┐
//!   [proxy], [split], [socks] ──▶ tables ──▶ args ──▶ checks ──▶ Settings ──▶ thread, or proxy
//!   [[policy]] ──▶ tables ──┘                                      └─▶ report: --check
//! ```

mod args;
mod checks;
pub mod file;
mod listen;
mod next;
mod report;
mod tables;
pub mod thread;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use anyhow::{Result, anyhow, bail};
use viaduct_proto::flow::Registry;
use viaduct_sys::nft::intercept::Intercept;
use viaduct_sys::socket::tcp::TcpOptions;

use crate::access_log::AccessLogArgs;
use crate::engine::config::EngineConfig;
use crate::engine::destination::Target;
use crate::engine::outbound::{HopSignaller, OutboundSpec};
use crate::engine::policy::{Plan, Policies};
use crate::engine::trickles::TricklesTarget;
use crate::text;
use crate::tunnel::settings::{TunnelName, TunnelSettings, TunnelTable};
use crate::value_parser::MAX_BUFFER;
use args::Accept;
pub use args::{ClientProtocol, ProxyArgs};
use checks::{
    far, fit_together, has_effect, holds, intercept, leads_on, limits, metrics_apart, target,
    workers,
};
use next::NextSettings;
use tables::{OTHERWISE, chain};
pub use tables::{OptionsTable, PolicyTable};

/// Complete settings of a proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Config of the engine.
    pub engine: EngineConfig,
    /// Traffic that the kernel is to divert to the proxy.
    pub intercept: Option<Intercept>,
    /// True if the kernel holds a client's SYN until the server has answered.
    pub holds: bool,
    /// True if, without the privilege to see SYNs, connections to servers are begun after the
    /// client's handshake; if false, the missing privilege is an error.
    pub may_be_late: bool,
    /// True if the proxy process is started on demand.
    pub on_demand: bool,
    /// Address of the Prometheus endpoint.
    pub metrics: Option<SocketAddr>,
    /// Access log.
    pub access_log: AccessLogArgs,
}

impl Settings {
    /// Lowers the flow limit to what the limit of descriptors allows.
    pub fn fitted(self) -> Settings {
        Settings { engine: self.engine.fitted(), ..self }
    }

    /// Settings from options, and from tables of policies and tunnels. Errors: one line of text,
    /// with the mistake and a correct form.
    pub fn of(
        args: &ProxyArgs,
        policies: &[PolicyTable],
        tunnels: &[TunnelTable],
        registry: &Registry,
    ) -> Result<Settings> {
        fit_together(args)?;
        let first = args.listen.first().or(args.tunnel.tunnel_listen.as_ref());
        let port = first.map_or(0, SocketAddr::port);
        let tunnels = args.tunnel.settings(tunnels, &args.allow_to)?;
        let dials = tunnels.iter().flat_map(|of| &of.dials);
        let names: Vec<TunnelName> = dials.map(|dial| dial.name.clone()).collect();
        let tunnelled = !names.is_empty() || args.tunnel.tunnel_listen.is_some();
        let asked = !args.expect.is_empty() || args.tunnel.tunnel_listen.is_some();
        if !args.allow_to.is_empty() && !asked {
            bail!("allow-to: clients name no destination; give expect or tunnel-listen");
        }
        if args.on_demand && args.tunnel.tunnel_listen.is_some() {
            bail!("on-demand: the proxy ends when idle, but tunnel-listen is served all the time");
        }
        let name = args.name.clone().unwrap_or_else(|| format!("proxy-{port}"));
        text::check_name(&name).map_err(|what| anyhow!("name: {what}"))?;
        has_effect(args, policies)?;
        leads_on(args, policies)?;
        metrics_apart(args)?;
        let target = target(args)?;
        let policies = all_policies(args, policies, &names, registry)?;
        let holds = holds(args, &target)?;
        if args.keep_client && policies.trickles().next().is_some() {
            bail!("keep-client: connections by Trickles always have this machine's address");
        }
        let workers = workers(args, holds, tunnelled, &policies)?;
        let waits = args.accept == Accept::AfterConnect;
        let tunnels = tunnels.map(|mut of| {
            (of.waits, of.core.queue) = (waits, of.core.queue.min(args.chain_buffer));
            of.dead_after(args.dead_after.limit())
        });
        let engine = EngineConfig {
            workers,
            listen: args.listen.clone(),
            policies,
            options: socket_options(args, &target),
            hop_signalling: args.tell,
            tunnels,
            ..EngineConfig::new(name, args.run_dir.path(), target, limits(args)?)
        };
        Ok(Settings {
            engine,
            intercept: intercept(args, port)?,
            holds,
            may_be_late: args.forward.is_none() && !holds && !args.on_demand,
            on_demand: args.on_demand,
            metrics: args.metrics,
            access_log: args.access_log.clone(),
        })
    }

    /// Refuses changes that need a restart, and policies whose options in SYNs cannot be written.
    pub fn check_change(&self, new: &Settings) -> Result<()> {
        let buffers = |of: &EngineConfig| (of.options.receive_buffer, of.options.send_buffer);
        let has_all = |old: &EngineConfig, new: &EngineConfig| {
            new.policies.trickles().all(|form| old.policies.trickles().any(|of| of == form))
        };
        let (engine, other) = (&self.engine, &new.engine);
        let fixed = [
            ("listen", engine.listen == other.listen),
            ("name", engine.name == other.name),
            ("intercept, ports", self.intercept == new.intercept),
            ("to, expect", engine.target.is_alike(&other.target)),
            ("tell", engine.hop_signalling == other.hop_signalling),
            ("run-dir", engine.run_dir == other.run_dir),
            ("metrics", self.metrics == new.metrics),
            ("access-log, access-log-format", self.access_log == new.access_log),
            ("accept, on-demand", (self.holds, self.on_demand) == (new.holds, new.on_demand)),
            (
                "flows, workers",
                engine.limits.flows == other.limits.flows && engine.workers == other.workers,
            ),
            ("tunnel", TunnelSettings::is_alike(&engine.tunnels, &other.tunnels)),
            ("forward, max-early, early-wait", engine.limits.early == other.limits.early),
            ("trickles-buffer", engine.limits.trickles_buffer == other.limits.trickles_buffer),
            ("receive-buffer, send-buffer", buffers(engine) == buffers(other)),
            // A new packet form needs a port, which may be impossible to open.
            ("trickles: a packet form that no policy had", has_all(engine, other)),
        ];
        match fixed.iter().find(|(_, same)| !same) {
            Some((key, _)) => bail!("{key}: has changed; that needs a restart"),
            None => HopSignaller::check(other.hop_signalling, &other.policies),
        }
    }
}

/// Policies of `tables`, and the plan for flows that match none of them.
fn all_policies(
    args: &ProxyArgs,
    tables: &[PolicyTable],
    tunnels: &[TunnelName],
    registry: &Registry,
) -> Result<Policies> {
    let hop = NextSettings::of(args).outbound();
    let by = match (hop.map_err(|what| anyhow!(what))?, args.tunnel.tunnel, args.trickles) {
        (Some(hop), ..) => hop,
        (None, Some(_), _) => OutboundSpec::Tunnel(String::new()),
        (None, None, Some(formats)) => {
            let key = args.trickles_key;
            OutboundSpec::Trickles(TricklesTarget { formats, key, ..TricklesTarget::default() })
        }
        (None, None, None) => OutboundSpec::Direct,
    };
    let handlers = chain(&args.handler, registry).map_err(|e| anyhow!("handler: {e}"))?;
    let name = (!tables.is_empty()).then(|| OTHERWISE.into());
    let otherwise = Plan { policy: name, by, handlers, rate: args.rate, ..Plan::default() };
    let mut names = BTreeSet::new();
    let policy = |(n, table): (usize, &PolicyTable)| {
        let made = table.policy(n, args, &otherwise, tunnels, registry).and_then(|policy| {
            match names.insert(policy.plan.policy.clone()) {
                true => Ok(policy),
                false => Err("name: an earlier policy has the same name".to_owned()),
            }
        });
        made.map_err(|what| anyhow!("[[policy]] number {n}: {what}"))
    };
    let list = (1..).zip(tables).map(policy).collect::<Result<_>>()?;
    let policies =
        Policies { list, otherwise: otherwise.into(), far: far(args)?, ..Policies::default() };
    next::check_alike(&policies)?;
    Ok(policies)
}

fn socket_options(args: &ProxyArgs, target: &Target) -> TcpOptions {
    // Room for one window of unacknowledged bytes and one window of unsent bytes.
    let send_buffer = args.receive_buffer.map(|bytes| (2 * bytes).min(MAX_BUFFER));
    TcpOptions {
        transparent: target.is_transparent(),
        send_buffer: args.send_buffer.or(send_buffer),
        save_syn: target.uses_options(),
        receive_buffer: args.receive_buffer,
        ..TcpOptions::default()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EngineConfig { name, listen, target, policies, tunnels, .. } = &self.engine;
        let listen: Vec<_> = listen.iter().map(ToString::to_string).collect();
        match listen.is_empty() {
            true => writeln!(f, "proxy {name}:")?,
            false => writeln!(f, "proxy {name}: {} to {target}", listen.join(", "))?,
        }
        self.write_interception(f)?;
        tunnels.iter().try_for_each(|tunnels| write!(f, "{tunnels}"))?;
        for policy in &policies.list {
            let name = policy.plan.policy.as_deref().unwrap_or_default();
            writeln!(f, "  policy {name}: {policy}")?;
        }
        writeln!(f, "  otherwise: {}", policies.otherwise)
    }
}
