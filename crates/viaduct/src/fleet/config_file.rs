//! Config of a gateway: composed of the base and the members of the roster. The members are read
//! back at the next start.

use anyhow::{Context as _, Result, ensure};
use toml::{Table, Value};

use super::roster::{MemberId, Roster};

const HEAD: &str = "# Written by viaduct fleet: edit its base instead.\n\n";

/// Adds the members of the roster to the base.
///
/// # Errors
/// The base is not TOML, has no `[site]`, or already has members.
pub fn compose(base: &str, roster: &Roster) -> Result<String> {
    let mut file: Table = base.parse().context("the base is not TOML")?;
    let site = file.get_mut("site").and_then(Value::as_table_mut).context("there is no [site]")?;
    // The gateways of a site do not need each other's endpoints.
    add(site, roster, &["endpoint"])?;
    let peers = file.get_mut("peer").and_then(Value::as_array_mut);
    for peer in peers.into_iter().flatten().filter_map(Value::as_table_mut) {
        // A peer with a key is a single gateway, without members.
        if !peer.contains_key("key") {
            add(peer, roster, &[])?;
        }
    }
    Ok(format!("{HEAD}{}", toml::to_string(&file)?))
}

/// Adds the members of a site to its table, without the keys `without` of each member.
fn add(table: &mut Table, roster: &Roster, without: &[&str]) -> Result<()> {
    let name = name_of(table);
    ensure!(!table.contains_key("member"), "{name:?} has members in the base");
    let members = roster.of_site(&name).map(|(name, member)| {
        let mut member = member.clone();
        without.iter().for_each(|key| drop(member.remove(*key)));
        member.insert("name".to_owned(), name.into());
        Value::Table(member)
    });
    let members: Vec<_> = members.collect();
    if !members.is_empty() {
        table.insert("member".to_owned(), members.into());
    }
    Ok(())
}

/// Returns the members in a file that an earlier run has written; empty if the file is not such a
/// config.
pub fn members(file: &str) -> Vec<(MemberId, Table)> {
    let Ok(file) = file.parse::<Table>() else { return Vec::new() };
    let site = file.get("site").and_then(Value::as_table);
    let peers = file.get("peer").and_then(Value::as_array).into_iter().flatten();
    let tables = site.into_iter().chain(peers.filter_map(Value::as_table));
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
        let text = compose(BASE, &Roster::new(all)).unwrap();
        assert!(text.starts_with("# Written by viaduct fleet"), "{text}");
        let found = members(&text);
        assert_eq!(found.len(), 2, "rome has one gateway: {text}");
        assert_eq!(found[0], (of("oslo", "o1"), member("key = \"1\"")));
        assert_eq!(found[1].1["weight"].as_integer(), Some(2));
        let again = compose(BASE, &Roster::new(found)).unwrap();
        assert_eq!(again, text);
        assert!(compose(&text, &Roster::default()).unwrap_err().to_string().contains("oslo"));
        assert!(members("no file").is_empty());
    }
}
