//! Interpretation of options, and rejection of invalid combinations.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use viaduct_proto::split::preface::{Protocols, Secret};
use viaduct_proto::split::socks::Credentials;
use viaduct_sys::nft::intercept::{Intercept, Selector};
use viaduct_sys::socket::tcp::LongHaul;

use super::args::{Accept, ClientProtocol, Forwarding, ProxyArgs};
use super::next::NextHop;
use super::tables::PolicyTable;
use crate::congestion_control;
use crate::engine::commands::Limits;
use crate::engine::destination::{Target, Terms, is_here};
use crate::engine::liveness::DeadPeerLimits;
use crate::engine::policy::{Far, Policies, SHARING};
use crate::engine::workers;
use crate::key;
use crate::tunnel::settings::TunnelArgs;

/// Default of `idle-exit` with `on-demand`.
const IDLE_EXIT: Duration = Duration::from_secs(60);
/// Default of `max-early`, unless half of `flows` is less.
const MAX_EARLY: usize = 1024;

/// Maximum number of intercepted ports, if `ports` is given.
const MAX_PORTS: usize = 128;

/// Rejects options that exclude each other, and options without another one that they need.
pub(super) fn fit_together(args: &ProxyArgs) -> Result<()> {
    let ProxyArgs { tunnel: TunnelArgs { key, peer, tunnel, tunnel_listen, .. }, .. } = args;
    let (asked, on_path) = (!args.expect.is_empty(), !args.intercept.is_empty());
    let (trickles, tunnel) = (args.trickles.is_some(), tunnel.is_some());
    let excluded = [
        ("expect", asked, "to", args.to.is_some()),
        ("expect", asked, "intercept", on_path),
        ("intercept", on_path, "to", args.to.is_some()),
        ("tunnel", tunnel, "next", !args.next.is_empty()),
        ("trickles", trickles, "next", !args.next.is_empty()),
        ("trickles", trickles, "tunnel", tunnel),
    ];
    if let Some((one, _, other, _)) = excluded.iter().find(|(_, one, _, other)| *one && *other) {
        bail!("{one}, {other}: they exclude each other; give one of them");
    }
    let (key, peer, allow_to) = (key.is_some(), !peer.is_empty(), !args.allow_to.is_empty());
    let (arrive, log) = (tunnel_listen.is_some(), &args.access_log);
    let (format, log) = (log.access_log_format.is_some(), log.access_log.is_some());
    let needed = [
        ("access-log-format", format, "access-log", log),
        ("expect", asked, "allow-from", !args.allow_from.is_empty()),
        ("expect", asked, "allow-to", allow_to),
        ("tunnel", tunnel, "key", key),
        ("tunnel", tunnel, "peer", peer),
        ("tunnel-listen", arrive, "key", key),
        ("tunnel-listen", arrive, "peer", peer),
        ("tunnel-listen", arrive, "allow-to", allow_to),
        ("trickles-key", args.trickles_key.is_some(), "trickles", trickles),
    ];
    match needed.iter().find(|(_, given, _, has)| *given && !*has) {
        Some((option, _, other, _)) => bail!("{option}: it needs {other}; give that too"),
        None => Ok(()),
    }
}

/// Rejects options that have no effect because another option is missing.
pub(super) fn has_effect(args: &ProxyArgs, policies: &[PolicyTable]) -> Result<()> {
    let hops = !args.next.is_empty() || policies.iter().any(|policy| !policy.next.is_empty());
    let words = [ClientProtocol::Socks, ClientProtocol::Connect];
    let passwords = args.expect.iter().any(|protocol| words.contains(protocol));
    let (on_path, asked) = (!args.intercept.is_empty(), !args.expect.is_empty());
    let target = args.to.is_some() || on_path || asked;
    let auto = args.next.iter().chain(policies.iter().flat_map(|policy| &policy.next));
    let auto = auto.into_iter().any(|next| *next == NextHop::Auto);
    let idle = [
        (!args.ports.is_empty() && !on_path, "ports: they need intercept, which is not given"),
        (args.keep_client && !on_path, "keep-client: it needs intercept, which is not given"),
        (!args.allow_from.is_empty() && !asked, "allow-from: it needs expect, which is not given"),
        (args.tell.is_some() && !hops, "tell: no hop gets the flows; give next"),
        (args.next_check.is_some() && !hops, "next-check: no hop is given; give next"),
        (args.next_fallback.is_some() && !hops, "next-fallback: no hop is given; give next"),
        (args.next_overlay.is_some() && !auto, "next-overlay: it needs next auto"),
        (args.next_for.is_some() && !auto, "next-for: it needs next auto"),
        (
            args.password_file.is_some() && !passwords,
            "password-file: only SOCKS and CONNECT have passwords; give expect socks or connect",
        ),
        (
            args.listen.is_empty() && target,
            "listen: no address is given at which connections arrive",
        ),
        (
            !target && (!args.listen.is_empty() || args.tunnel.tunnel_listen.is_none()),
            "neither listen addresses nor destinations are given: give listen, and to, intercept \
             or expect; or tunnel-listen",
        ),
    ];
    match idle.iter().find(|(is, _)| *is) {
        Some((_, what)) => bail!("{what}"),
        None => Ok(()),
    }
}

/// Rejects a destination that is this proxy itself: each connection would cause another.
pub(super) fn leads_on(args: &ProxyArgs, policies: &[PolicyTable]) -> Result<()> {
    let ours = |to: SocketAddr| {
        let (to, port) = (to.ip().to_canonical(), to.port());
        let meets = |at: &SocketAddr| {
            let at = at.ip().to_canonical();
            at == to || at.is_unspecified() && is_here(SocketAddr::new(to, port))
        };
        args.listen.iter().filter(|at| at.port() == port).any(meets)
    };
    let policies = policies.iter().flat_map(|policy| &policy.next).filter_map(NextHop::at);
    let policies = policies.map(|next| ("[[policy]] next", next));
    let next = args.next.iter().filter_map(NextHop::at).map(|next| ("next", next));
    let mut goals = args.to.iter().map(|&to| ("to", to)).chain(next).chain(policies);
    match goals.find(|(_, to)| ours(*to)) {
        Some((what, to)) => bail!("{what}: {to} is this proxy itself"),
        None => Ok(()),
    }
}

/// Rejects a metrics address that overlaps a listen address: only one of the two could be bound.
pub(super) fn metrics_apart(args: &ProxyArgs) -> Result<()> {
    let Some(metrics) = args.metrics else { return Ok(()) };
    let takes =
        |at: IpAddr, ip: IpAddr| at == ip || at.is_unspecified() && (at.is_ipv6() || ip.is_ipv4());
    let meets = |at: SocketAddr| {
        let (ours, theirs) = (metrics.ip().to_canonical(), at.ip().to_canonical());
        at.port() == metrics.port() && (takes(ours, theirs) || takes(theirs, ours))
    };
    let listen = args.listen.iter().map(|&at| ("listen", at));
    let mut places = listen.chain(args.tunnel.tunnel_listen.map(|at| ("tunnel-listen", at)));
    match places.find(|&(_, at)| meets(at)) {
        Some((what, at)) => {
            bail!("metrics: {metrics} overlaps {what}, {at}; another address or port is expected")
        }
        None => Ok(()),
    }
}

pub(super) fn target(args: &ProxyArgs) -> Result<Target> {
    match args.to {
        Some(to) => Ok(Target::Fixed(to)),
        None if !args.expect.is_empty() => Ok(Target::Requested(terms(args)?)),
        // Only flows that arrive through tunnels name a destination.
        None if args.intercept.is_empty() => Ok(Target::Requested(terms(args)?)),
        None => Ok(Target::Original { keep_client: args.keep_client }),
    }
}

/// Clients that may name a destination, the protocols in which they name it, and the permitted
/// destinations.
pub(super) fn terms(args: &ProxyArgs) -> Result<Terms> {
    let speaks = |protocol| args.expect.contains(&protocol);
    Ok(Terms {
        protocols: Protocols {
            // A hop sends the TCP option if it can, and PROXY otherwise, so a proxy that expects
            // PROXY accepts the option as well.
            option: speaks(ClientProtocol::Option) || speaks(ClientProtocol::Proxy),
            proxy: speaks(ClientProtocol::Proxy),
            socks: speaks(ClientProtocol::Socks),
            connect: speaks(ClientProtocol::Connect),
        },
        secret: args.password_file.as_deref().map_or(Ok(Secret::default()), secret)?,
        from: args.allow_from.clone(),
        to: args.allow_to.clone(),
    })
}

pub(super) fn secret(file: &Path) -> Result<Secret> {
    let text = fs::read_to_string(key::accessible(file));
    let text = text.with_context(|| file.display().to_string())?;
    key::warn_if_readable("password-file", file);
    let pair = Some(text.trim_end_matches(['\r', '\n'])).filter(|line| !line.contains('\n'));
    let Some((name, password)) = pair.and_then(|line| line.split_once(':')) else {
        bail!("password-file: {}: one line, NAME:PASSWORD, is expected", file.display());
    };
    // Limits of SOCKS5 (RFC 1929).
    if [name, password].iter().any(|word| !(1..=255).contains(&word.len())) {
        bail!("password-file: {}: NAME and PASSWORD have 1 to 255 bytes each", file.display());
    }
    let (name, password) = (name.into(), password.into());
    Ok(Secret(Some(Credentials { name, password })))
}

pub(super) fn far(args: &ProxyArgs) -> Result<Far> {
    let haul =
        LongHaul { congestion_control: args.congestion_control.clone(), buffer: args.far_buffer };
    if let Some(name) = &haul.congestion_control {
        congestion_control::check("congestion-control", name)?;
    }
    Ok(Far { prefixes: args.far.clone(), haul })
}

/// Returns whether SYNs are held.
pub(super) fn holds(args: &ProxyArgs, target: &Target) -> Result<bool> {
    match (args.accept, args.forward) {
        (Accept::Early, _) => Ok(false),
        // Clients that name a destination after the TCP handshake are accepted first, and get the
        // server's answer in the protocol of their request.
        _ if !target.may_be_in_syn() => Ok(false),
        (Accept::AfterConnect, Some(Forwarding::Late)) => {
            bail!("accept: after-connect needs forward early, which connects on the client's SYN")
        }
        _ => Ok(true),
    }
}

/// Number of event loops.
pub(super) fn workers(
    args: &ProxyArgs,
    holds: bool,
    tunnels: bool,
    policies: &Policies,
) -> Result<u32> {
    let wanted = workers::count(args.workers);
    // Features that work only with a single loop.
    let single = [
        ("tunnel", tunnels),
        ("accept after-connect", holds),
        ("on-demand", args.on_demand),
        ("idle-exit", idle_exit(args).is_some()),
        (SHARING, policies.share()),
    ];
    match single.iter().find(|(_, is)| *is && wanted > 1) {
        Some((what, _)) => bail!("workers: {wanted} are not possible with {what}; 1 is"),
        None => Ok(wanted),
    }
}

pub(super) fn limits(args: &ProxyArgs) -> Result<Limits> {
    Ok(Limits {
        flows: args.flows,
        early: (args.forward != Some(Forwarding::Late))
            .then_some((max_early(args)?, args.early_wait)),
        connect: args.connect_timeout,
        handshake: args.connect_timeout,
        silence: DeadPeerLimits {
            keep_alive: Some(args.keep_alive).filter(|time| !time.is_zero()),
            dead_after: args.dead_after.limit(),
        },
        idle: Some(args.idle_timeout).filter(|time| !time.is_zero()),
        idle_exit: idle_exit(args),
        drain: args.drain,
        spin: args.spin,
        chain_buffer: args.chain_buffer,
        trickles_buffer: args.trickles_buffer,
    })
}

/// Time without a flow after which the proxy ends; `None` if it never does.
fn idle_exit(args: &ProxyArgs) -> Option<Duration> {
    let said = args.idle_exit.or(args.on_demand.then_some(IDLE_EXIT));
    said.filter(|time| !time.is_zero())
}

/// Maximum number of early connections. A SYN may have a spoofed source address, so SYNs alone must
/// not use up all flows.
pub(super) fn max_early(args: &ProxyArgs) -> Result<usize> {
    let most = args.flows / 2;
    match args.max_early {
        Some(wanted) if wanted > most => {
            bail!("max-early: {wanted} is more than half of flows, {most}; the rest is for clients")
        }
        wanted => Ok(wanted.unwrap_or(MAX_EARLY.min(most))),
    }
}

pub(super) fn intercept(args: &ProxyArgs, port: u16) -> Result<Option<Intercept>> {
    // Diverted connections keep the server's address as their destination: a listener that is
    // bound to a single address gets none of them.
    let takes = |at: &SocketAddr, net: &IpNet| {
        at.port() == port && at.ip().is_unspecified() && (at.is_ipv6() || net.addr().is_ipv4())
    };
    for net in &args.intercept {
        if !args.listen.iter().any(|at| takes(at, net)) {
            let listen: Vec<_> = args.listen.iter().map(ToString::to_string).collect();
            bail!(
                "intercept: no listener can accept connections to {net}: listen is {}; \
                 [::]:{port} accepts both families, 0.0.0.0:{port} IPv4",
                listen.join(", ")
            );
        }
    }
    let pair = |net: &IpNet| (net.addr(), net.prefix_len());
    if args.ports.iter().map(ExactSizeIterator::len).sum::<usize>() > MAX_PORTS {
        bail!("ports: at most {MAX_PORTS} are possible; policies can match more");
    }
    Ok((!args.intercept.is_empty()).then(|| Intercept {
        instance: format!("proxy_{port}"),
        to_port: port,
        ways: vec![Selector { from: Vec::new(), to: args.intercept.iter().map(pair).collect() }],
        ports: args.ports.iter().cloned().flatten().collect(),
        passed_by: false,
    }))
}
