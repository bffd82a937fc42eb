//! Meaning of `[[site.wan]]` and `[[site.class]]`: the two WANs of a site, and the packets that
//! prefer one of them.

use std::net::SocketAddr;

use viaduct_proto::repair::{Match, PATHS, PathsConfig, RepairPath};

use super::error::{Invalid, check_name, invalid};
use super::file::{
    Mode, PathKey, PeerTable, RepairsKey, SiteTable, TransportKey, WanKey, WanTable,
};
use super::peers::check_endpoint;
use super::values::{is_one_host, prefixes};
use super::{Config, PathClass, Wan};

const MAX_CLASSES: usize = 32;

/// Interface and address of the first WAN, and both WANs if there are two.
pub(super) fn wans(site: &SiteTable) -> Result<(String, SocketAddr, Vec<Wan>), Invalid> {
    let tables = match &site.wan {
        WanKey::One(interface) => {
            check_interface("[site] wan", interface)?;
            let Some(listen) = &site.listen else {
                return invalid("[site] listen", "is missing; peers send their repairs there");
            };
            check_port("[site] listen", listen.0)?;
            return Ok((interface.clone(), listen.0, Vec::new()));
        }
        WanKey::Several(tables) => tables,
    };
    if tables.len() != PATHS {
        let what = format!("has {} tables; {PATHS} are expected, or wan = \"eth0\"", tables.len());
        return invalid("[[site.wan]]", what);
    }
    let refused = [
        ("listen", site.listen.is_some(), "each [[site.wan]] has its own"),
        ("tls_listen", site.tls_listen.is_some(), "split mode needs a single WAN"),
        ("workers", site.workers.0 > 1, "two WANs need a single worker"),
        ("lanes", site.lanes.is_some(), "with two WANs each path is a lane"),
        ("member", !site.member.is_empty(), "the gateways of a rack have a single WAN each"),
    ];
    if let Some((key, _, why)) = refused.iter().find(|(_, is, _)| *is) {
        return invalid(format!("[site] {key}"), format!("cannot be set with [[site.wan]]: {why}"));
    }
    let wans = tables.iter().map(wan).collect::<Result<Vec<_>, _>>()?;
    for (key, is_same) in [
        ("name", wans[0].name == wans[1].name),
        ("interface", wans[0].interface == wans[1].interface),
        ("listen", wans[0].listen.ip() == wans[1].listen.ip()),
    ] {
        if is_same {
            return invalid(format!("[[site.wan]] {key}"), "is the same twice; each has its own");
        }
    }
    Ok((wans[0].interface.clone(), wans[0].listen, wans))
}

fn wan(table: &WanTable) -> Result<Wan, Invalid> {
    check_name("[[site.wan]] name", &table.name)?;
    let place = |key: &str| format!("wan {:?}: {key}", table.name);
    check_interface(&place("interface"), &table.interface)?;
    let listen = table.listen.0;
    check_port(&place("listen"), listen)?;
    if !is_one_host(listen.ip()) {
        let what = format!("is {listen}; an address of this WAN is expected: it selects the path");
        return invalid(place("listen"), what);
    }
    let of_family = |v4: bool| table.via.iter().filter(|ip| ip.is_ipv4() == v4).count();
    if of_family(true) > 1 || of_family(false) > 1 || !table.via.iter().all(|ip| is_one_host(*ip)) {
        return invalid(place("via"), "one router for IPv4 and one for IPv6 are expected");
    }
    Ok(Wan {
        name: table.name.clone(),
        interface: table.interface.clone(),
        listen,
        via: table.via.clone(),
    })
}

fn check_interface(place: &str, name: &str) -> Result<(), Invalid> {
    if name.is_empty() || name.len() > 15 {
        return invalid(place, "an interface name of 1 to 15 characters is expected");
    }
    Ok(())
}

fn check_port(place: &str, listen: SocketAddr) -> Result<(), Invalid> {
    if listen.port() == 0 {
        return invalid(place, "has port 0; peers need a fixed one, such as 7400");
    }
    Ok(())
}

/// Classes of packets that prefer a WAN.
pub(super) fn path_classes(site: &SiteTable, wans: &[Wan]) -> Result<Vec<PathClass>, Invalid> {
    if !site.class.is_empty() && wans.is_empty() {
        return invalid("[[site.class]]", "has a meaning only with two [[site.wan]]");
    }
    if site.class.len() > MAX_CLASSES {
        let what = format!("has {} tables; at most {MAX_CLASSES} are", site.class.len());
        return invalid("[[site.class]]", what + " possible");
    }
    let mut classes: Vec<PathClass> = Vec::new();
    for class in &site.class {
        check_name("[[site.class]] name", &class.name)?;
        let place = |key: &str| format!("[[site.class]] {:?}: {key}", class.name);
        if classes.iter().any(|other| other.name == class.name) {
            return invalid(place("name"), "is used by another class too; each needs its own");
        }
        let Some(wan) = wans.iter().position(|wan| wan.name == class.wan) else {
            let names: Vec<_> = wans.iter().map(|wan| format!("{:?}", wan.name)).collect();
            let what = format!("{:?} is not a WAN; one of {} is", class.wan, names.join(", "));
            return invalid(place("wan"), what + " expected");
        };
        let matches = Match {
            dscp: class.dscp.iter().map(|dscp| dscp.0).collect(),
            prefixes: prefixes(&class.prefixes),
            ports: class.ports.clone(),
            protocols: class.protocols.iter().map(|protocol| protocol.0).collect(),
        };
        classes.push(PathClass { name: class.name.clone(), matches, wan });
    }
    Ok(classes)
}

/// Paths to a peer; `None` if this site has a single WAN.
pub(super) fn paths(table: &PeerTable, site: &Config) -> Result<Option<PathsConfig>, Invalid> {
    let place = |key: &str| format!("peer {:?}: {key}", table.name);
    let duplicates = || table.class.iter().any(|of| of.repairs == RepairsKey::Duplicate);
    let [first, second] = &site.wans[..] else {
        for (key, is_given) in [
            ("endpoints", table.endpoints.is_some()),
            ("fec: path", table.fec.path.is_some()),
            ("class: repairs = \"duplicate\"", duplicates()),
        ] {
            if is_given {
                return invalid(place(key), "has a meaning only with two [[site.wan]]");
            }
        }
        return Ok(None);
    };
    for (key, is_refused) in [
        ("endpoint", table.endpoint.is_some()),
        ("mode = \"split\"", table.mode == Mode::Split),
        ("fec: lower_mtu", table.fec.lower_mtu),
        ("transport", !matches!(table.transport, TransportKey::Auto | TransportKey::Udp)),
    ] {
        if is_refused {
            let what =
                "is not possible with two [[site.wan]]; endpoints, and datagrams by UDP, are";
            return invalid(place(key), what);
        }
    }
    let given: Vec<_> = table.endpoints.iter().flatten().map(|at| at.0).collect();
    let Ok(endpoints) = <[SocketAddr; PATHS]>::try_from(given) else {
        let what = "the peer's address for each [[site.wan]], in their order, is expected";
        return invalid(place("endpoints"), what);
    };
    for (at, wan) in endpoints.into_iter().zip([first, second]) {
        check_endpoint(Some(at), wan.listen, "[[site.wan]] listen")
            .or_else(|what| invalid(place("endpoints"), what))?;
    }
    if endpoints[0] == endpoints[1] {
        return invalid(place("endpoints"), "is the same twice; each path ends at its own");
    }
    let repairs = match table.fec.path.unwrap_or_default() {
        PathKey::Auto => RepairPath::Auto,
        PathKey::Same => RepairPath::Same,
        PathKey::Other => RepairPath::Other,
    };
    if duplicates() && repairs != RepairPath::Other {
        let what = "needs fec: path = \"other\": copies travel by the path of repairs";
        return invalid(place("class: repairs = \"duplicate\""), what);
    }
    Ok(Some(PathsConfig { endpoints, repairs }))
}

#[cfg(test)]
#[path = "wans_tests.rs"]
mod tests;
