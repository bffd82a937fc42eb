//! What was said, on the command line or in a file, made into what a proxy needs. All of it is
//! checked before anything is touched.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, thread};

use anyhow::{Context, Result, anyhow, bail};
use ipnet::IpNet;
use tracing::warn;
use viaduct_proto::flow::Registry;
use viaduct_proto::split::preface::{Languages, Secret};
use viaduct_proto::split::socks::Credentials;
use viaduct_sys::intercept::{Intercept, Way};
use viaduct_sys::process::raise_descriptors;
use viaduct_sys::tcp::{LongHaul, TcpOptions};

use super::file::{self, PolicyTable, Said};
use super::options::{Accept, Forwarding, Language, ProxyArgs, ProxyOptions};
use super::orders::Limits;
use super::policy::{Far, Plan, Policies};
use super::target::{Target, Terms};
use super::tell::Tell;
use super::tunnels::settings::{TunnelName, TunnelSettings, TunnelTable};
use super::values::warn_of_readers;
use crate::text;

/// How long a proxy on demand stays without a flow, if nobody says.
const IDLE_EXIT: Duration = Duration::from_secs(60);

/// Early connections that wait for their client, if nobody says and there are flows enough.
const EARLY_MOST: usize = 1024;

/// Ports whose connections alone are intercepted, at most.
const MOST_PORTS: usize = 128;

/// Descriptors that are not flows': pipes, taps, listeners, the status socket; half of all, where
/// there are few.
const SPARE_DESCRIPTORS: u64 = 256;

/// All that a proxy is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What it is called.
    pub name: String,
    /// Where connections arrive.
    pub listen: Vec<SocketAddr>,
    /// Where they go.
    pub target: Target,
    /// How, and which may.
    pub policies: Policies,
    /// How hops are told where to.
    pub tell: Option<Tell>,
    /// How their sockets are set up.
    pub options: TcpOptions,
    /// What keeps it within bounds.
    pub limits: Limits,
    /// Loops that share the flows.
    pub workers: u32,
    /// Its tunnels.
    pub tunnels: Option<TunnelSettings>,
    /// What the kernel is to hand to it.
    pub intercept: Option<Intercept>,
    /// Whether the kernel is to hold SYNs until their server has answered.
    pub holds: bool,
    /// Whether a proxy is to run only while there is something to do.
    pub on_demand: bool,
    /// Directory of the status socket and the journal.
    pub run_dir: PathBuf,
    /// Where Prometheus finds the metrics.
    pub metrics: Option<SocketAddr>,
}

impl Settings {
    /// What `options` say, with the handlers of `registry`.
    ///
    /// # Errors
    /// One line that says where, what is wrong, and what would be right.
    pub fn load(options: &ProxyOptions, registry: &Registry) -> Result<Settings> {
        let Some(path) = &options.config else {
            return Self::of(&options.args, &[], &[], registry).map(Settings::fitted);
        };
        let read = file::read(path).map_err(|what| anyhow!(what));
        let made = read.and_then(|Said { args, policies, tunnels }| {
            Self::of(&args, &policies, &tunnels, registry)
        });
        made.map(Settings::fitted).with_context(|| path.display().to_string())
    }

    /// With no more flows than there may be descriptors for: clients that none is left for would hang.
    fn fitted(mut self) -> Settings {
        let most = raise_descriptors();
        let fit = (most - SPARE_DESCRIPTORS.min(most / 2)) / 2;
        let (fit, wanted) = (usize::try_from(fit).unwrap_or(usize::MAX), self.limits.flows);
        if fit < wanted {
            warn!(
                "{most} descriptors are allowed, enough for {fit} flows and not for {wanted}: raise \
                 the limit (ulimit -n, LimitNOFILE=), or ask for fewer flows"
            );
            self.limits.flows = fit;
            self.limits.early = self.limits.early.map(|(most, wait)| (most.min(fit / 2), wait));
        }
        self
    }

    /// What a table of options and tables of policies say.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn of_tables(
        options: &toml::Table,
        policies: &[PolicyTable],
        registry: &Registry,
    ) -> Result<Settings> {
        Self::of(&file::options(options).map_err(|what| anyhow!(what))?, policies, &[], registry)
    }

    fn of(
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
            bail!("allow-to: nobody says where to; give expect or tunnel-listen");
        }
        if args.on_demand && args.tunnel.tunnel_listen.is_some() {
            bail!("on-demand: it waits for connections, and tunnel-listen is served all the time");
        }
        let name = args.name.clone().unwrap_or_else(|| format!("proxy-{port}"));
        text::check_name(&name).map_err(|what| anyhow!("name: {what}"))?;
        has_effect(args, policies)?;
        let target = target(args)?;
        let otherwise = Plan {
            deny: false,
            next: args.next,
            tunnel: args.tunnel.tunnel.map(|_| "".into()),
            handlers: file::chain(&args.handler, registry).map_err(|e| anyhow!("handler: {e}"))?,
            rate: args.rate,
        };
        let policy = |(n, table): (usize, &PolicyTable)| {
            let made = table.policy(&otherwise, &names, registry);
            made.map_err(|what| anyhow!("[[policy]] number {}: {what}", n + 1))
        };
        let list = policies.iter().enumerate().map(policy).collect::<Result<_>>()?;
        let holds = holds(args, &target)?;
        let waits = args.accept == Accept::AfterConnect;
        Ok(Settings {
            options: TcpOptions {
                transparent: target.is_transparent(),
                // A window's bytes that wait to be acknowledged, and as many that wait to be sent.
                send_buffer: args.send_buffer.or(args.receive_buffer.map(|bytes| 2 * bytes)),
                save_syn: target.heeds_options(),
                receive_buffer: args.receive_buffer,
                shared: false,
            },
            tunnels: tunnels.map(|of| TunnelSettings { waits, ..of }),
            holds,
            on_demand: args.on_demand,
            name,
            listen: args.listen.clone(),
            target,
            policies: Policies { list, otherwise, far: far(args)? },
            tell: args.tell,
            limits: limits(args)?,
            workers: workers(args, holds, tunnelled)?,
            intercept: intercept(args, port)?,
            run_dir: args.run_dir.clone(),
            metrics: args.metrics,
        })
    }

    /// What each of its loops is to do.
    pub fn part(&self) -> Settings {
        let most = |all: usize| all.div_ceil(self.workers as usize);
        let early = self.limits.early.map(|(all, wait)| (most(all), wait));
        let limits = Limits { flows: most(self.limits.flows), early, ..self.limits };
        Settings { limits, ..self.clone() }
    }

    /// Its status socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{}.sock", self.name))
    }

    /// Its journal of changes to the machine.
    pub fn journal(&self) -> PathBuf {
        self.run_dir.join(format!("{}.changes.json", self.name))
    }

    /// Refuses what only a restart can change.
    pub fn check_change(&self, new: &Settings) -> Result<()> {
        let fixed = [
            ("listen", self.listen == new.listen),
            ("name", self.name == new.name),
            ("intercept, ports", self.intercept == new.intercept),
            ("to, expect", self.target.is_alike(&new.target)),
            ("tell", self.tell == new.tell),
            ("run-dir", self.run_dir == new.run_dir),
            ("metrics", self.metrics == new.metrics),
            ("accept, on-demand", (self.holds, self.on_demand) == (new.holds, new.on_demand)),
            (
                "flows, workers",
                self.limits.flows == new.limits.flows && self.workers == new.workers,
            ),
            ("tunnel", TunnelSettings::is_alike(&self.tunnels, &new.tunnels)),
            ("forward, early-most, early-wait", self.limits.early == new.limits.early),
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
        writeln!(f, "proxy {}: {} to {}", self.name, listen.join(", "), self.target)?;
        for (n, policy) in self.policies.list.iter().enumerate() {
            writeln!(f, "  policy {}: {policy}", n + 1)?;
        }
        writeln!(f, "  otherwise: {}", self.policies.otherwise)
    }
}

/// Refuses what would do nothing without something else.
fn has_effect(args: &ProxyArgs, policies: &[PolicyTable]) -> Result<()> {
    let hops = args.next.is_some() || policies.iter().any(|policy| policy.next.is_some());
    let words = [Language::Socks, Language::Connect];
    let passwords = args.expect.iter().any(|language| words.contains(language));
    let (on_path, asked) = (!args.intercept.is_empty(), !args.expect.is_empty());
    let target = args.to.is_some() || on_path || asked;
    let idle = [
        (!args.ports.is_empty() && !on_path, "ports: they are intercept's, which is not given"),
        (args.keep_client && !on_path, "keep-client: it is intercept's, which is not given"),
        (!args.allow_from.is_empty() && !asked, "allow-from: it is expect's, which is not given"),
        (args.tell.is_some() && !hops, "tell: no hop is to be told; give next"),
        (
            args.password_file.is_some() && !passwords,
            "password-file: only SOCKS and CONNECT have passwords; expect socks or connect",
        ),
        (args.listen.is_empty() && target, "listen: it is not said where connections arrive"),
        (
            !target && (!args.listen.is_empty() || args.tunnel.tunnel_listen.is_none()),
            "it is not said where connections arrive and go: give listen, and to, intercept or \
             expect; or tunnel-listen",
        ),
    ];
    match idle.iter().find(|(is, _)| *is) {
        Some((_, what)) => bail!("{what}"),
        None => Ok(()),
    }
}

fn target(args: &ProxyArgs) -> Result<Target> {
    match args.to {
        Some(to) if args.listen.contains(&to) => bail!("to: {to} is this proxy itself"),
        Some(to) => Ok(Target::Fixed(to)),
        None if !args.expect.is_empty() => Ok(Target::Asked(terms(args)?)),
        // Sessions say where to, and nobody else.
        None if args.intercept.is_empty() => Ok(Target::Asked(terms(args)?)),
        None => {
            let own = args.listen.iter().map(SocketAddr::port).collect();
            Ok(Target::Meant { keep_client: args.keep_client, own })
        }
    }
}

/// Who may say where to, how, and where.
fn terms(args: &ProxyArgs) -> Result<Terms> {
    let speaks = |language| args.expect.contains(&language);
    Ok(Terms {
        languages: Languages {
            // Whoever expects a hop takes what hops say first of all.
            option: speaks(Language::Option) || speaks(Language::Proxy),
            proxy: speaks(Language::Proxy),
            socks: speaks(Language::Socks),
            connect: speaks(Language::Connect),
        },
        secret: args.password_file.as_deref().map_or(Ok(Secret::default()), secret)?,
        from: args.allow_from.clone(),
        to: args.allow_to.clone(),
    })
}

fn secret(file: &Path) -> Result<Secret> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    warn_of_readers("password-file", file);
    let pair = Some(text.trim_end_matches(['\r', '\n'])).filter(|line| !line.contains('\n'));
    let Some((name, password)) = pair.and_then(|line| line.split_once(':')) else {
        bail!("password-file: {}: one line, NAME:PASSWORD, is expected", file.display());
    };
    // What SOCKS5 can carry (RFC 1929).
    if [name, password].iter().any(|word| !(1..=255).contains(&word.len())) {
        bail!("password-file: {}: NAME and PASSWORD have 1 to 255 bytes each", file.display());
    }
    let (name, password) = (name.into(), password.into());
    Ok(Secret(Some(Credentials { name, password })))
}

fn far(args: &ProxyArgs) -> Result<Far> {
    let haul =
        LongHaul { congestion_control: args.congestion_control.clone(), buffer: args.far_buffer };
    if let Some(name) = &haul.congestion_control {
        check_congestion_control("congestion-control", name)?;
    }
    Ok(Far { prefixes: args.far.clone(), haul })
}

/// Checks that the kernel knows, or can load, the congestion control that `option` names.
///
/// # Errors
/// It does not; the names that there are.
pub(super) fn check_congestion_control(option: &str, name: &str) -> Result<()> {
    let probe = TcpListener::bind("127.0.0.1:0").with_context(|| format!("{option}: try it"))?;
    let haul = LongHaul { congestion_control: Some(name.to_owned()), buffer: None };
    haul.apply(&probe).map_err(|_| {
        let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let known = known.unwrap_or_default();
        anyhow!("{option}: {name:?} is unknown here; there are {}", known.trim_end())
    })
}

/// Whether SYNs are held.
fn holds(args: &ProxyArgs, target: &Target) -> Result<bool> {
    match (args.accept, args.forward) {
        (Accept::Early, _) => Ok(false),
        // Clients that ask behind the handshake are told in their own language.
        _ if !target.is_in_the_syn() => Ok(false),
        (Accept::AfterConnect, Forwarding::Late) => {
            bail!("accept: after-connect needs forward early: the SYN begins the connection")
        }
        _ => Ok(true),
    }
}

/// How many loops there are.
fn workers(args: &ProxyArgs, holds: bool, tunnels: bool) -> Result<u32> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let wanted = if args.workers == 0 { cores } else { usize::from(args.workers) };
    // What there is one of, or what one loop alone can say.
    let single = [
        ("tunnel", tunnels),
        ("accept after-connect", holds),
        ("on-demand", args.on_demand),
        ("idle-exit", args.idle_exit.is_some()),
    ];
    match single.iter().find(|(_, is)| *is && wanted > 1) {
        Some((what, _)) => bail!("workers: {wanted} cannot be had with {what}, but 1 can"),
        None => Ok(u32::try_from(wanted)?),
    }
}

fn limits(args: &ProxyArgs) -> Result<Limits> {
    Ok(Limits {
        flows: args.flows,
        early: (args.forward == Forwarding::Early).then_some((early_most(args)?, args.early_wait)),
        connect: args.connect_timeout,
        keep_alive: Some(args.keep_alive).filter(|time| !time.is_zero()),
        idle: Some(args.idle_timeout).filter(|time| !time.is_zero()),
        idle_exit: args.idle_exit.or(args.on_demand.then_some(IDLE_EXIT)),
        drain: args.drain,
        chain_buffer: args.chain_buffer,
    })
}

/// SYNs alone, which anybody can send, never take all flows.
fn early_most(args: &ProxyArgs) -> Result<usize> {
    let most = args.flows / 2;
    match args.early_most {
        Some(wanted) if wanted > most => {
            bail!(
                "early-most: {wanted} is more than half of flows, {most}; the rest is for clients"
            )
        }
        wanted => Ok(wanted.unwrap_or(EARLY_MOST.min(most))),
    }
}

fn intercept(args: &ProxyArgs, port: u16) -> Result<Option<Intercept>> {
    // What is handed over has the servers' addresses: a listener of one address has none of it.
    let takes = |at: &SocketAddr, net: &IpNet| {
        at.port() == port && at.ip().is_unspecified() && (at.is_ipv6() || net.addr().is_ipv4())
    };
    for net in &args.intercept {
        if !args.listen.iter().any(|at| takes(at, net)) {
            let listen: Vec<_> = args.listen.iter().map(ToString::to_string).collect();
            bail!(
                "intercept: no listener takes what is handed over of {net}: listen is {}; [::]:{port} \
                 takes both families, 0.0.0.0:{port} IPv4",
                listen.join(", ")
            );
        }
    }
    let pair = |net: &IpNet| (net.addr(), net.prefix_len());
    if args.ports.iter().map(ExactSizeIterator::len).sum::<usize>() > MOST_PORTS {
        bail!("ports: {MOST_PORTS} are possible; policies can tell more apart");
    }
    Ok((!args.intercept.is_empty()).then(|| Intercept {
        instance: format!("proxy_{port}"),
        to_port: port,
        ways: vec![Way { from: Vec::new(), to: args.intercept.iter().map(pair).collect() }],
        ports: args.ports.iter().cloned().flatten().collect(),
    }))
}
