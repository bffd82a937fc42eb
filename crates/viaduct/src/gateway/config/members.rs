//! Racks: the members that `[[site.member]]` and `[[peer.member]]` list.

use std::collections::HashSet;
use std::net::{Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::rack::{MAX_MEMBERS, MAX_WEIGHT, Member};
use viaduct_proto::repair::PeerMember;

use super::error::{Invalid, check_name, invalid};
use super::file::{MemberTable, Mode, PeerTable};
use super::peers::{LISTEN, check_endpoint, peer};
use super::values::{Endpoint, prefixes};
use super::{Config, Peer};

/// Default table of the routes that a routing daemon announces.
const ROUTE_TABLE: u32 = 118;
/// Tables of the kernel: unspecified, default, main and local.
const KERNEL_TABLES: [u32; 4] = [0, 253, 254, 255];

/// Rack of this site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteRack {
    /// Names of the members.
    pub names: Vec<String>,
    /// Members.
    pub members: Vec<Member>,
    /// Index of this gateway in `members`.
    pub own: usize,
    /// Table of the routes that a routing daemon announces.
    pub route_table: u32,
}

impl SiteRack {
    /// Weight of this gateway.
    pub fn own_weight(&self) -> u8 {
        self.members[self.own].weight
    }
}

/// Rack of `[[site.member]]`; `None` if there is no such table.
pub(super) fn site_rack(
    tables: Vec<MemberTable>,
    route_table: Option<u32>,
    own_key: PublicKey,
) -> Result<Option<SiteRack>, Invalid> {
    if tables.is_empty() {
        return match route_table {
            Some(_) => invalid("[site] route_table", "has a meaning only with [[site.member]]"),
            None => Ok(None),
        };
    }
    check_count("[[site.member]]", tables.len())?;
    let route_table = route_table.unwrap_or(ROUTE_TABLE);
    if KERNEL_TABLES.contains(&route_table) {
        let what = format!("is {route_table}, a table of the kernel; another one is expected");
        return invalid("[site] route_table", what);
    }
    let (mut names, mut members) = (Vec::new(), Vec::new());
    for table in tables {
        let place = |key: &str| format!("[[site.member]] {:?}: {key}", table.name);
        check_name("[[site.member]] name", &table.name)?;
        if names.contains(&table.name) {
            return invalid(place("name"), "is used by another member too; each needs its own");
        }
        if table.endpoint.is_some() {
            return invalid(place("endpoint"), "has a meaning only in [[peer.member]]");
        }
        let key = table.key.parse::<PublicKey>().or_else(|what| invalid(place("key"), what))?;
        if members.iter().any(|member: &Member| member.key == key) {
            return invalid(place("key"), "is used by another member too; each needs its own");
        }
        let weight = weight(&table).or_else(|what| invalid(place("weight"), what))?;
        members.push(Member { key, weight, slices: prefixes(&table.slices) });
        names.push(table.name);
    }
    let Some(own) = members.iter().position(|member| member.key == own_key) else {
        let what = format!(
            "no member has this gateway's public key, {own_key}; the member that is this machine \
             is expected to have it"
        );
        return invalid("[[site.member]]", what);
    };
    Ok(Some(SiteRack { names, members, own, route_table }))
}

/// Peers that are the members of a `[[peer]]`.
pub(super) fn peer_members(
    mut table: PeerTable,
    site: &Config,
    warnings: &mut Vec<String>,
) -> Result<Vec<Peer>, Invalid> {
    let tables = std::mem::take(&mut table.member);
    check_count(&format!("peer {:?}: member", table.name), tables.len())?;
    let place = |key: &str| format!("peer {:?}: {key}", table.name);
    if !site.wans.is_empty() {
        let what = "is not possible with two [[site.wan]]: paths end at a single gateway";
        return invalid(place("member"), what);
    }
    let keys = [
        ("key", !table.key.is_empty()),
        ("endpoint", table.endpoint.is_some()),
        ("mode", table.mode == Mode::Split),
        ("tls_endpoint", table.tls_endpoint.is_some()),
    ];
    if let Some((key, _)) = keys.iter().find(|(_, is_given)| *is_given) {
        let what = "is for a peer with one gateway; this one has [[peer.member]]";
        return invalid(place(key), what);
    }
    let (mut peers, mut names) = (Vec::new(), HashSet::new());
    for member in tables {
        let place = |key: &str| format!("peer {:?}: member {:?}: {key}", table.name, member.name);
        check_name("[[peer.member]] name", &member.name)?;
        if !names.insert(member.name.clone()) {
            return invalid(place("name"), "is used by another member too; each needs its own");
        }
        let weight = weight(&member).or_else(|what| invalid(place("weight"), what))?;
        let of_member = PeerTable { key: member.key, endpoint: member.endpoint, ..table.clone() };
        let mut of_all = Vec::new();
        let mut peer = peer(of_member, site, &mut of_all)?;
        if peers.is_empty() {
            warnings.append(&mut of_all);
        }
        let (rack, slices) = (table.name.clone(), prefixes(&member.slices));
        peer.name = format!("{}/{}", table.name, member.name);
        peer.member = Some(PeerMember { rack, weight, slices });
        peers.push(peer);
    }
    Ok(peers)
}

/// Checks the table of a member on its own, without its name in it.
///
/// # Errors
/// Description of the problem.
pub fn check_member(name: &str, table: &toml::Table) -> Result<(), String> {
    check_name("", name).map_err(|(_, what)| what)?;
    let mut table = table.clone();
    table.insert("name".to_owned(), name.into());
    let table = toml::Value::Table(table).try_into::<MemberTable>();
    let table = table.map_err(|error| error.message().replace('\n', " "))?;
    table.key.parse::<PublicKey>().map_err(|what| format!("key: {what}"))?;
    weight(&table).map_err(|what| format!("weight: {what}"))?;
    if let Some(Endpoint::At(at)) = table.endpoint {
        // Both families can be reached from this address.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        check_endpoint(Some(at), any, LISTEN).map_err(|what| format!("endpoint: {what}"))?;
    }
    match prefixes(&table.slices).iter().find(|slice| slice.trunc() != **slice) {
        Some(slice) => Err(format!("slices: {slice} has bits beyond its length")),
        None => Ok(()),
    }
}

/// Checks that each slice of a member has no host bits set, and is within a prefix of one of the
/// sites.
pub(super) fn check_slices(config: &Config, peers: &[Peer]) -> Result<(), Invalid> {
    let sites = || config.prefixes.iter().chain(peers.iter().flat_map(|peer| &peer.prefixes));
    let check = |place: String, slices: &[IpNet]| match slices
        .iter()
        .find(|slice| slice.trunc() != **slice || !sites().any(|prefix| prefix.contains(*slice)))
    {
        Some(slice) => {
            let what = "is not part of a prefix of a site here, or has bits beyond its length";
            invalid(place, format!("{slice} {what}"))
        }
        None => Ok(()),
    };
    for (name, member) in config.rack.iter().flat_map(|rack| rack.names.iter().zip(&rack.members)) {
        check(format!("[[site.member]] {name:?}: slices"), &member.slices)?;
    }
    for peer in peers {
        let slices = peer.member.as_ref().map_or(&[][..], |member| &member.slices[..]);
        check(format!("peer {:?}: slices", peer.name), slices)?;
    }
    Ok(())
}

fn check_count(place: &str, count: usize) -> Result<(), Invalid> {
    if count > MAX_MEMBERS {
        return invalid(place, format!("{count} are too many; at most {MAX_MEMBERS}"));
    }
    Ok(())
}

/// Weight of a member; 0 if it is drained.
fn weight(table: &MemberTable) -> Result<u8, String> {
    let weight = table.weight.map_or(1, |weight| weight.0);
    if weight > MAX_WEIGHT {
        return Err(format!("is {weight}; at most {MAX_WEIGHT} is expected"));
    }
    Ok(if table.drain { 0 } else { weight })
}
