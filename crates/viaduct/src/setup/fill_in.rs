//! Fills the public key of a peer into a config that lacks it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use toml::{Table, Value};
use viaduct_proto::keys::PublicKey;

use super::facts::Facts;
use super::report::next;
use super::{SetupArgs, files};
use crate::gateway::config::{Config, MAX_CONFIG};
use crate::stdout::print;
use crate::text;

/// Path of the existing config to complete, if `args` have the peer's key and, apart from names, no
/// other value. `None` if the flags ask for a new config, or if no config exists.
pub fn existing(args: &SetupArgs, facts: &Facts) -> Option<PathBuf> {
    let others = [&args.peer_prefix, &args.peer_endpoint, &args.wan, &args.listen, &args.prefix];
    let is_new = args.force || args.endpoint.is_some() || others.iter().any(|flag| flag.is_some());
    if is_new || args.peer_key.is_none() {
        return None;
    }
    let name = args.name.clone().or_else(|| facts.site_name())?;
    Some(args.path(&name)).filter(|path| path.exists())
}

/// Fills in `--peer-key`.
///
/// # Errors
/// No key is missing in the config, the peer already has another key, or the completed config is
/// invalid. In these cases the file is unchanged.
pub fn run(args: &SetupArgs, path: &Path) -> Result<()> {
    let key = args.peer_key.as_deref().unwrap_or_default();
    let key = key.parse::<PublicKey>().context("--peer-key")?;
    let file = path.display();
    let old = text::read(path, MAX_CONFIG).map_err(|what| anyhow!("{file}: {what}"))?;
    let peer = choose(&old, args.peer.as_deref(), key).with_context(|| file.to_string())?;
    if let Some(line) = peer.line {
        let new = filled(&old, line, key);
        let config = Config::parse(path, &new, None)?;
        let is_filled = config.peers.iter().any(|of| of.name == peer.name && of.key == key);
        ensure!(is_filled, "{file}: peer {:?}: write key = \"{key}\" yourself", peer.name);
        files::replace(path, &new)?;
    }
    let (name, is_changed) = (peer.name, peer.line.is_some());
    if args.json {
        let object = serde_json::json!({
            "config": file.to_string(),
            "peer": {"name": name, "key": key.to_string()},
            "changed": is_changed,
        });
        return print(&format!("{object:#}\n"));
    }
    let change = if is_changed { "has its key now" } else { "had this key already" };
    print(&format!(
        "{file}: peer {name} {change}\n\nNext:\n  {}\n",
        next(path, config_name(&old).unwrap_or_default()).join("\n  ")
    ))
}

/// Peer whose key is to be filled in.
#[derive(Debug, PartialEq, Eq)]
struct Peer {
    name: String,
    /// Number of the line `key = ""`, from 0; `None` if the key is there already.
    line: Option<usize>,
}

/// Chooses the peer `name`; without a name, the only peer whose key is missing or is `key`.
fn choose(text: &str, name: Option<&str>, key: PublicKey) -> Result<Peer> {
    let table: Table = toml::from_str(text).context("not TOML")?;
    let peers = table.get("peer").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let value = |peer: &Value, key: &str| {
        peer.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let fits = |peer: &Value| {
        let has = value(peer, "key");
        let is_same = has.parse() == Ok(key);
        name.map_or(has.is_empty() || is_same, |name| value(peer, "name") == name)
    };
    let fitting: Vec<usize> = (0..peers.len()).filter(|&at| fits(&peers[at])).collect();
    let at = match (fitting[..].first(), fitting.len(), name) {
        (Some(&at), 1, _) => at,
        (None, _, Some(name)) => bail!("there is no peer {name:?}"),
        (None, _, None) => bail!("no peer lacks its key"),
        _ => bail!("several peers fit: --peer NAME is expected"),
    };
    let (name, has) = (value(&peers[at], "name"), value(&peers[at], "key"));
    if has.parse() == Ok(key) {
        return Ok(Peer { name, line: None });
    }
    ensure!(has.is_empty(), "peer {name:?} has the key {has} already: edit the file to change it");
    let line = empty_key(text, at).with_context(|| format!("peer {name:?}: no line key = \"\""))?;
    Ok(Peer { name, line: Some(line) })
}

/// Number of the line `key = ""` in the `[[peer]]` table number `at`.
fn empty_key(text: &str, at: usize) -> Option<usize> {
    let is_header = |line: &str| line.trim_start().starts_with("[[peer]]");
    let mut lines = text.lines().enumerate().filter(|(_, line)| is_header(line));
    let (header, _) = lines.nth(at)?;
    let body = text.lines().enumerate().skip(header + 1);
    let mut body = body.take_while(|(_, line)| !line.trim_start().starts_with('['));
    let (number, _) = body.find(|(_, line)| {
        let pair = line.split_once('=').map(|(key, value)| (key.trim(), value.trim_start()));
        pair.is_some_and(|(key, value)| key == "key" && value.starts_with("\"\""))
    })?;
    Some(number)
}

/// Text with `key` in the line of this number.
fn filled(text: &str, number: usize, key: PublicKey) -> String {
    let fill = |(at, line): (usize, &str)| match at == number {
        true => line.replacen("\"\"", &format!("\"{key}\""), 1),
        false => line.to_owned(),
    };
    text.split('\n').enumerate().map(fill).collect::<Vec<_>>().join("\n")
}

/// Name of the site in a config.
fn config_name(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.trim_start().starts_with("name"))?;
    line.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use viaduct_proto::keys::SecretKey;

    const TEXT: &str = "[site]\nname = \"rome\"\n\n[[peer]]\nname = \"ship\"\nkey = \"KEY\"\n\n\
                        [[peer]]  # the second\nname = \"oslo\"\n  key=\"\"  # later\n[peer.fec]\n";

    fn key(byte: u8) -> PublicKey {
        SecretKey::from_bytes([byte; 32]).public()
    }

    #[test]
    fn only_the_missing_key_is_filled_in() {
        let text = TEXT.replace("KEY", &key(1).to_string());
        for name in [None, Some("oslo")] {
            let peer = choose(&text, name, key(2)).unwrap();
            assert_eq!((&peer.name[..], peer.line), ("oslo", Some(9)));
            let new = filled(&text, 9, key(2));
            let line = format!("  key=\"{}\"  # later", key(2));
            assert_eq!(new, text.replace("  key=\"\"  # later", &line));
            let again = choose(&new, name, key(2)).unwrap();
            assert_eq!(again, Peer { name: "oslo".to_owned(), line: None });
        }
        assert_eq!(config_name(&text), Some("rome"));
    }

    #[test]
    fn a_key_that_is_there_is_not_replaced() {
        let text = TEXT.replace("KEY", &key(1).to_string());
        let refused = |text: &str, name| choose(text, name, key(2)).unwrap_err().to_string();
        assert!(refused(&text, Some("ship")).contains("has the key"));
        assert!(refused(&text, Some("bern")).contains("no peer \"bern\""));
        assert!(refused(&TEXT.replace("KEY", ""), None).contains("several peers"));
        let full = filled(&text, 9, key(3));
        assert!(refused(&full, None).contains("no peer lacks its key"));
        assert!(refused("[site", None).contains("not TOML"));
    }
}
