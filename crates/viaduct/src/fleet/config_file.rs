//! Config of a gateway: composed of the base and the members of the roster. The members are read
//! back at the next start.

use std::collections::HashSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use toml::{Table, Value};
use viaduct_proto::keys::PublicKey;
use viaduct_proto::rack::MAX_MEMBERS;

use super::roster::{MemberId, Roster};
use crate::gateway::config::{LISTEN, check_endpoint, parse_endpoint};

const HEAD: &str = "# Written by viaduct fleet: edit its base instead.\n\n";

/// Config composed of the base and the members of the roster.
#[derive(Debug)]
pub struct Composed {
    /// Text of the config.
    pub text: String,
    /// Members that are left out because the config would be invalid with them, and the reasons.
    pub left_out: Vec<String>,
}

/// Adds the members of the roster to the base.
///
/// # Errors
/// The base is not TOML, has no `[site]`, or already has members.
pub fn compose(base: &str, roster: &Roster) -> Result<Composed> {
    let mut file: Table = base.parse().context("the base is not TOML")?;
    let mut composer = Composer::new(&file, roster);
    let site = file.get_mut("site").and_then(Value::as_table_mut).context("there is no [site]")?;
    composer.add(site, true)?;
    let peers = file.get_mut("peer").and_then(Value::as_array_mut);
    for peer in peers.into_iter().flatten().filter_map(Value::as_table_mut) {
        // A peer with a key is a single gateway, without members.
        if !peer.contains_key("key") {
            composer.add(peer, false)?;
        }
    }
    let text = format!("{HEAD}{}", toml::to_string(&file)?);
    Ok(Composed { text, left_out: composer.left_out })
}

/// Adds members to the tables of a base.
struct Composer<'a> {
    roster: &'a Roster,
    prefixes: Vec<IpNet>,
    /// Address at which the gateway listens, if the base has a valid one.
    listen: Option<SocketAddr>,
    /// Keys in use so far.
    keys: HashSet<PublicKey>,
    left_out: Vec<String>,
}

impl Composer<'_> {
    fn new<'a>(base: &Table, roster: &'a Roster) -> Composer<'a> {
        let keys = peers(base).filter_map(key).collect();
        let listen = base.get("site").and_then(|site| site.get("listen"));
        let listen = listen.and_then(Value::as_str).and_then(|listen| listen.parse().ok());
        Composer { roster, prefixes: prefixes(base), listen, keys, left_out: Vec::new() }
    }

    /// Adds the members of a site to its table.
    fn add(&mut self, table: &mut Table, is_own: bool) -> Result<()> {
        let site = name_of(table);
        ensure!(!table.contains_key("member"), "{site:?} has members in the base");
        let mut members = Vec::new();
        for (name, member) in self.roster.of_site(&site) {
            let is_full = members.len() == MAX_MEMBERS;
            match self.member(member, is_own, is_full) {
                Ok(mut member) => {
                    member.insert("name".to_owned(), name.into());
                    members.push(Value::Table(member));
                }
                Err(why) => self.left_out.push(format!("{site}/{name} is left out: {why}")),
            }
        }
        if !members.is_empty() {
            table.insert("member".to_owned(), members.into());
        }
        Ok(())
    }

    /// Returns the table of a member for this config. Errors: the config would be invalid with it.
    fn member(&mut self, member: &Table, is_own: bool, is_full: bool) -> Result<Table, String> {
        if is_full {
            return Err(format!("a rack has at most {MAX_MEMBERS} members"));
        }
        let mut member = member.clone();
        if is_own {
            // The gateways of a site do not need each other's endpoints.
            member.remove("endpoint");
        }
        let endpoint = member.get("endpoint").and_then(Value::as_str).map(parse_endpoint);
        if let (Some(endpoint), Some(listen)) = (endpoint, self.listen) {
            check_endpoint(endpoint?, listen, LISTEN).map_err(|why| format!("endpoint {why}"))?;
        }
        if key(&member).is_some_and(|key| !self.keys.insert(key)) {
            return Err("another gateway has its key".to_owned());
        }
        if let Some(slices) = member.get_mut("slices").and_then(Value::as_array_mut) {
            // A member may own slices of sites that this site does not know.
            slices.retain(|slice| prefix(slice).is_some_and(|slice| self.has(slice)));
        }
        Ok(member)
    }

    fn has(&self, slice: IpNet) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(&slice))
    }
}

/// Returns the prefixes of all sites in a base.
pub fn prefixes(base: &Table) -> Vec<IpNet> {
    let site = base.get("site").and_then(Value::as_table);
    let tables = site.into_iter().chain(peers(base));
    let lists = tables.filter_map(|table| table.get("prefixes")).filter_map(Value::as_array);
    lists.flatten().filter_map(prefix).collect()
}

fn prefix(value: &Value) -> Option<IpNet> {
    value.as_str()?.parse().ok()
}

fn key(table: &Table) -> Option<PublicKey> {
    table.get("key")?.as_str()?.parse().ok()
}

fn peers(base: &Table) -> impl Iterator<Item = &Table> {
    let peers = base.get("peer").and_then(Value::as_array).into_iter().flatten();
    peers.filter_map(Value::as_table)
}

/// Returns the members in a file that an earlier run has written; empty if the file is not such a
/// config.
pub fn members(file: &str) -> Vec<(MemberId, Table)> {
    let Ok(file) = file.parse::<Table>() else { return Vec::new() };
    let site = file.get("site").and_then(Value::as_table);
    let tables = site.into_iter().chain(peers(&file));
    let members = tables.flat_map(|table| {
        let members = table.get("member").and_then(Value::as_array).into_iter().flatten();
        let members = members.filter_map(Value::as_table).cloned();
        members.map(move |mut member| {
            let id = (name_of(table), name_of(&member));
            member.remove("name");
            (id, member)
        })
    });
    members.collect()
}

fn name_of(table: &Table) -> String {
    table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use viaduct_proto::keys::SecretKey;

    use super::*;

    const BASE: &str = "[site]\nname = \"oslo\"\n[[peer]]\nname = \"lima\"\n[peer.fec]\nr = 8\n\
                        [[peer]]\nname = \"rome\"\nkey = \"k\"\n";

    #[test]
    fn members_are_added_and_found_again() {
        let member = |text: &str| text.parse::<Table>().unwrap();
        let of = |site: &str, name: &str| (site.to_owned(), name.to_owned());
        let o1 = member("key = \"1\"\nendpoint = \"192.0.2.1:7400\"");
        let l1 = member("key = \"2\"\nendpoint = \"192.0.2.2:7400\"\nweight = 2");
        let all =
            [(of("oslo", "o1"), o1), (of("lima", "l1"), l1), (of("rome", "r1"), Table::new())];
        let text = compose(BASE, &Roster::new(all)).unwrap().text;
        assert!(text.starts_with("# Written by viaduct fleet"), "{text}");
        let found = members(&text);
        assert_eq!(found.len(), 2, "rome has one gateway: {text}");
        assert_eq!(found[0], (of("oslo", "o1"), member("key = \"1\"")));
        assert_eq!(found[1].1["weight"].as_integer(), Some(2));
        let again = compose(BASE, &Roster::new(found)).unwrap().text;
        assert_eq!(again, text);
        assert!(compose(&text, &Roster::default()).unwrap_err().to_string().contains("oslo"));
        assert!(members("no file").is_empty());
    }

    #[test]
    fn members_and_slices_that_make_a_config_invalid_are_left_out() {
        let base = "[site]\nname = \"oslo\"\nlisten = \"0.0.0.0:7400\"\n\
                    prefixes = [\"10.1.0.0/16\"]\n\
                    [[peer]]\nname = \"lima\"\nprefixes = [\"10.2.0.0/16\"]\n";
        let key = |n| SecretKey::from_bytes([n; 32]).public();
        let member = |site: &str, name: &str, n, endpoint: &str| {
            let slices = "slices = [\"10.2.0.0/18\", \"10.3.0.0/18\"]";
            let text = format!("key = \"{}\"\nendpoint = \"{endpoint}\"\n{slices}", key(n));
            ((site.to_owned(), name.to_owned()), text.parse::<Table>().unwrap())
        };
        let composed = compose(
            base,
            &Roster::new([
                member("oslo", "o1", 1, "[2001:db8::1]:7400"),
                member("lima", "l1", 2, "192.0.2.2:7400"),
                member("lima", "l2", 1, "192.0.2.3:7400"),
                member("lima", "l3", 3, "[2001:db8::2]:7400"),
            ]),
        );
        let Composed { text, left_out } = composed.unwrap();
        assert!(left_out.len() == 2 && left_out[0].contains("lima/l2"), "{left_out:?}");
        assert!(left_out[1].contains("lima/l3"), "{left_out:?}");
        let found = members(&text);
        assert_eq!(found.iter().map(|(id, _)| &id.1[..]).collect::<Vec<_>>(), ["o1", "l1"]);
        assert!(text.contains("10.2.0.0/18") && !text.contains("10.3.0.0/18"), "{text}");
        let many = (0..=32).map(|n| member("oslo", &n.to_string(), n + 1, "192.0.2.1:7400"));
        assert_eq!(compose(base, &Roster::new(many)).unwrap().left_out.len(), 1);
    }
}
