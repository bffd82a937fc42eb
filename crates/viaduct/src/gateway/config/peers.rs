//! Meaning of the `[[peer]]` tables, checked against each other and against the site.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::repair::{Class, Coding, MAX_PEERS, Match, Repairs};

use super::error::{Invalid, check_name, invalid};
use super::file::{DEFAULT_FLUSH, Mode, PeerTable, RepairsKey, TransportKey};
use super::members::peer_members;
use super::values::{Endpoint, is_one_host, prefixes};
use super::wans::paths;
use super::{Config, Peer};

/// Minimum age at which session keys are replaced.
const MIN_REKEY: Duration = Duration::from_secs(10);
const MAX_CLASSES: usize = 32;
const MIN_DEADLINE: Duration = Duration::from_millis(5);
/// Config key of the address to which peers of a site with a single WAN send their repairs.
pub const LISTEN: &str = "[site] listen";
/// Default port of tunnels over TLS.
const TLS_PORT: u16 = 443;

/// Peers of `site`, and warnings about them.
pub(super) fn peers(
    tables: Vec<PeerTable>,
    site: &Config,
) -> Result<(Vec<Peer>, Vec<String>), Invalid> {
    if tables.is_empty() {
        return invalid("", "no [[peer]]; at least one peer site is expected");
    }
    if tables.len() > MAX_PEERS {
        return invalid("[[peer]]", format!("{} are too many; at most {MAX_PEERS}", tables.len()));
    }
    let (mut peers, mut warnings): (Vec<Peer>, _) = (Vec::new(), Vec::new());
    let (mut names, mut keys) = (HashSet::new(), HashMap::new());
    for table in tables {
        if !names.insert(table.name.clone()) {
            let place = format!("peer {:?}: name", table.name);
            return invalid(place, "is used by another peer too; each needs its own");
        }
        let of_table = match table.member.is_empty() {
            true => vec![peer(table, site, &mut warnings)?],
            false => peer_members(table, site, &mut warnings)?,
        };
        for peer in of_table {
            if let Some(twin) = keys.insert(peer.key, peer.name.clone()) {
                let what = format!("is that of peer {twin:?} too; each needs its own");
                return invalid(format!("peer {:?}: key", peer.name), what);
            }
            peers.push(peer);
        }
    }
    if peers.len() > MAX_PEERS {
        let what = format!("{} with all members are too many; at most {MAX_PEERS}", peers.len());
        return invalid("[[peer]]", what);
    }
    Ok((peers, warnings))
}

/// Gateway of a peer site, from a table without members.
pub(super) fn peer(
    mut table: PeerTable,
    site: &Config,
    warnings: &mut Vec<String>,
) -> Result<Peer, Invalid> {
    check_name("[[peer]] name", &table.name)?;
    let place = |key: &str| format!("peer {:?}: {key}", table.name);
    if table.name == site.name {
        return invalid(place("name"), "is this site's own; each site needs its own");
    }
    if table.prefixes.is_empty() {
        return invalid(place("prefixes"), "is empty; list the addresses of that site's hosts");
    }
    if table.rekey_after.0 < MIN_REKEY {
        return invalid(place("rekey_after"), "is below 10s, the minimum");
    }
    if table.transport == TransportKey::FakeTcp && site.workers > 1 {
        let what = "is \"fake-tcp\", which only a single worker can use; [site] workers = 1, or \
                    another transport, is expected";
        return invalid(place("transport"), what);
    }
    let paths = paths(&table, site)?;
    let (endpoint, endpoint_name) = match table.endpoint.take() {
        None => (None, None),
        Some(Endpoint::At(at)) => (Some(at), None),
        Some(Endpoint::Named(host, port)) => (None, Some((host, port))),
    };
    check_endpoint(endpoint, site.listen, LISTEN)
        .or_else(|what| invalid(place("endpoint"), what))?;
    let endpoint = paths.map_or(endpoint, |paths| Some(paths.endpoints[0]));
    let tls_endpoint = tls_endpoint(&table, endpoint, site)?;
    let key = peer_key(&table.key, site).or_else(|what| invalid(place("key"), what))?;
    let coding = coding(&table, warnings)?;
    Ok(Peer {
        key,
        endpoint,
        endpoint_name,
        paths,
        transport: table.transport.into(),
        tls_endpoint,
        server_name: table.server_name,
        prefixes: prefixes(&table.prefixes),
        rate: table.rate,
        split: table.mode == Mode::Split,
        coding,
        lower_mtu: table.fec.lower_mtu,
        flush_after: table.fec.flush_after.map_or(DEFAULT_FLUSH, |span| span.0),
        rekey_after: table.rekey_after.0,
        member: None,
        name: table.name,
    })
}

/// Address of the peer's listener for tunnels over TLS; `None` if this site does not dial it.
fn tls_endpoint(
    table: &PeerTable,
    endpoint: Option<SocketAddr>,
    site: &Config,
) -> Result<Option<SocketAddr>, Invalid> {
    let place = |key: &str| format!("peer {:?}: {key}", table.name);
    let given = table.tls_endpoint.as_ref().map(|at| at.0);
    let is_forced = table.transport == TransportKey::Tls;
    let keys = [
        ("transport", is_forced),
        ("tls_endpoint", given.is_some()),
        ("server_name", table.server_name.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, is)| *is) {
        if table.mode != Mode::Split {
            let what = "is for split connections, which go through a tunnel over TLS; add mode = \
                        \"split\"";
            return invalid(place(key), what);
        }
        if !is_forced && table.transport != TransportKey::Auto {
            return invalid(place(key), "has a meaning only for transport \"auto\" or \"tls\"");
        }
    }
    check_endpoint(given, site.listen, LISTEN)
        .or_else(|what| invalid(place("tls_endpoint"), what))?;
    let default = endpoint.filter(|_| is_forced).map(|at| SocketAddr::new(at.ip(), TLS_PORT));
    let found = given.or(default);
    if found.is_none() && is_forced && site.tls_listen.is_none() {
        let what = "needs tls_endpoint, or [site] tls_listen for the tunnel of the peer";
        return invalid(place("transport"), what);
    }
    if found.is_none() && table.server_name.is_some() {
        return invalid(place("server_name"), "is for the server at tls_endpoint; give that too");
    }
    Ok(found)
}

/// Encoding of the packets to the peer. Warns of unusual but allowed parameters.
fn coding(table: &PeerTable, warnings: &mut Vec<String>) -> Result<Option<Coding>, Invalid> {
    let place = |key: &str| format!("peer {:?}: {key}", table.name);
    let mut coding = table.fec.coding().or_else(|what| invalid(place("fec"), what))?;
    match &mut coding {
        Some(Coding::Auto(settings)) => settings.classes = classes(table)?,
        _ if table.class.is_empty() => {}
        _ => return invalid(place("class"), "has a meaning only for code \"auto\""),
    }
    if let Some(Coding::Fixed(code)) = &coding {
        match code.check() {
            Ok(found) => warnings.extend(found.iter().map(|w| format!("{}: {w}", place("fec")))),
            Err(error) => return invalid(place("fec"), error),
        }
    }
    Ok(coding)
}

fn classes(table: &PeerTable) -> Result<Vec<Class>, Invalid> {
    let mut classes: Vec<Class> = Vec::new();
    if table.class.len() > MAX_CLASSES {
        let what = format!("has {} tables; at most {MAX_CLASSES} are", table.class.len());
        return invalid(format!("peer {:?}: class", table.name), what + " possible");
    }
    for class in &table.class {
        check_name("[[peer.class]] name", &class.name)?;
        let place = |key: &str| format!("peer {:?}: class {:?}: {key}", table.name, class.name);
        if classes.iter().any(|other| other.name == class.name) {
            return invalid(place("name"), "is used by another class too; each needs its own");
        }
        let is_window = class.repairs == RepairsKey::Window;
        for (key, given) in
            [("deadline", class.deadline.is_some()), ("max_overhead", class.max_overhead.is_some())]
        {
            if given && !is_window {
                return invalid(place(key), "has a meaning only for repairs = \"window\"");
            }
        }
        if class.deadline.is_some_and(|span| span.0 < MIN_DEADLINE) {
            return invalid(
                place("deadline"),
                "is below 5ms, the minimum; repairs = \"copies\" is faster",
            );
        }
        classes.push(Class {
            name: class.name.clone(),
            matches: Match {
                dscp: class.dscp.iter().map(|dscp| dscp.0).collect(),
                prefixes: prefixes(&class.prefixes),
                ports: class.ports.clone(),
                protocols: class.protocols.iter().map(|protocol| protocol.0).collect(),
            },
            repairs: match class.repairs {
                RepairsKey::Window => Repairs::Window,
                RepairsKey::Copies => Repairs::Copies,
                RepairsKey::Duplicate => Repairs::Duplicate,
                RepairsKey::None => Repairs::None,
            },
            deadline: class.deadline.map(|span| span.0),
            max_overhead: class.max_overhead.map(|share| share.0),
        });
    }
    Ok(classes)
}

/// Checks that `endpoint` is the address of one machine, differs from `listen`, and can be reached
/// from a socket at `listen`, the value of the config's `key`. Errors: description of the problem,
/// the rest of a sentence that begins with the endpoint's key.
pub fn check_endpoint(
    endpoint: Option<SocketAddr>,
    listen: SocketAddr,
    key: &str,
) -> Result<(), String> {
    let Some(at) = endpoint else { return Ok(()) };
    if at.port() == 0 || !is_one_host(at.ip()) {
        let what = "the address and port of one machine are expected, such as 192.0.2.2:7400";
        return Err(format!("is {at}; {what}"));
    }
    if at == listen {
        return Err(format!("is {at}, this site's own {key}; the peer's is expected"));
    }
    // The kernel lets a socket on [::] send to both families.
    let both = listen.is_ipv6() && listen.ip().is_unspecified();
    if at.is_ipv4() != listen.is_ipv4() && !both {
        let (theirs, ours) = (family(at), family(listen));
        // With two WANs, the address to listen on selects the WAN.
        let advice = if key == LISTEN { "; [::] listens on both" } else { "" };
        return Err(format!("is {theirs} but {key} is {ours}{advice}"));
    }
    Ok(())
}

fn family(at: SocketAddr) -> &'static str {
    if at.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn peer_key(text: &str, site: &Config) -> Result<PublicKey, String> {
    if text.is_empty() {
        return Err("is missing; `viaduct setup` at that site prints the command that fills it in"
            .to_owned());
    }
    let key = text.parse::<PublicKey>().map_err(|error| error.to_string())?;
    if key == site.secret.public() {
        return Err("is this site's own public key; the peer's is expected".to_owned());
    }
    if site.secret.is_weak(&key) {
        return Err(
            "is not a key that `viaduct key new` creates (a point of small order)".to_owned()
        );
    }
    Ok(key)
}

/// Checks that no prefix has host bits set, and that no two sites share an address.
pub(super) fn check_prefixes(config: &Config) -> Result<(), Invalid> {
    // Prefixes checked so far, which do not overlap: first address, owner, prefix.
    let mut all: BTreeMap<IpAddr, (String, IpNet)> = BTreeMap::new();
    let ours = config.prefixes.iter().map(|net| ("[site]".to_owned(), *net));
    let theirs = config
        .peer_sites()
        .flat_map(|peer| peer.prefixes.iter().map(|net| (format!("peer {:?}", peer.name), *net)));
    for (owner, net) in ours.chain(theirs) {
        if net.trunc() != net {
            return invalid(
                format!("{owner}: prefixes"),
                format!("{net} has bits beyond its length; {} is expected", net.trunc()),
            );
        }
        // If any prefix overlaps this one, the last prefix that begins before this one's end does.
        let before = all.range(..=net.broadcast()).next_back();
        let overlaps = |other: &IpNet| other.contains(&net) || net.contains(other);
        if let Some((_, (other, theirs))) = before.filter(|(_, (_, other))| overlaps(other)) {
            return invalid(
                format!("{owner}: prefixes"),
                format!("{net} overlaps {theirs} of {other}; each address belongs to one site"),
            );
        }
        all.insert(net.network(), (owner, net));
    }
    Ok(())
}
