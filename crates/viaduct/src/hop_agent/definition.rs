//! Definitions of hops: a file with tables `[[hop]]`, or a directory of configs of proxies.
//!
//! ```toml
//! [[hop]]
//! name = "customer-17"
//! listen = "198.51.100.7:7017"
//! expect = "proxy"
//! allow-from = ["192.0.2.0/24"]
//! allow-to = ["10.17.0.0/16"]
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::{fs, io};

use anyhow::{Context as _, Result, anyhow, bail};
use ipnet::IpNet;
use toml::{Table, Value};
use viaduct_proto::flow::Registry;

use super::HopAgentArgs;
use crate::engine::destination::Target;
use crate::engine::outbound::HopSignalling;
use crate::engine::policy::holds;
use crate::settings::Settings;
use crate::text;

/// Maximum size of a file of definitions, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// Maximum size of the config of one hop in a directory, in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Maximum number of hops.
const MAX_HOPS: usize = 10_000;
/// Number of descriptors of a hop's process for uses other than flows.
const OTHER_DESCRIPTORS: u64 = 256;

/// Definition of a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Name of the hop.
    pub name: String,
    /// Listening addresses.
    pub listen: Vec<SocketAddr>,
    /// Permitted addresses of clients; empty if all are permitted.
    pub allow_from: Vec<IpNet>,
    /// Config of the hop's process.
    pub config: String,
    /// Maximum number of descriptors of the process.
    pub descriptors: u64,
    /// True if the process needs the SYNs of its clients.
    pub sees_syns: bool,
    /// Meaning of the config as text, for the operator; empty while the agent runs.
    pub meaning: String,
}

impl Definition {
    /// Returns whether a client with this address may use the hop.
    pub fn allows(&self, client: IpAddr) -> bool {
        self.allow_from.is_empty() || holds(&self.allow_from, client)
    }
}

/// Reads all definitions. Errors: a line with the position, the mistake and a correct form.
pub fn load(args: &HopAgentArgs, registry: &Registry) -> Result<Vec<Definition>> {
    let path = &args.hops;
    let tables = if path.is_dir() { of_directory(path) } else { of_file(path) };
    let tables = tables.with_context(|| path.display().to_string())?;
    if tables.len() > MAX_HOPS {
        bail!("{}: {} hops; at most {MAX_HOPS} are possible", path.display(), tables.len());
    }
    let mut all = Vec::new();
    for (place, table) in tables {
        let made = define(args, table, registry);
        all.push(made.with_context(|| format!("{}: {place}", path.display()))?);
    }
    check_apart(&all).with_context(|| path.display().to_string())?;
    Ok(all)
}

/// Reads the configs in a directory, each with the name of its file. A hop whose config has no name
/// is named after its file.
fn of_directory(path: &Path) -> Result<Vec<(String, Table)>> {
    let entries: io::Result<Vec<_>> = fs::read_dir(path)?.collect();
    let mut files: Vec<_> = entries?.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort_unstable();
    let table = |file: std::path::PathBuf| {
        let place = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut table = read(&file, MAX_CONFIG).with_context(|| place.clone())?;
        if let Some(Value::Table(proxy)) = table.get_mut("proxy")
            && let Some(stem) = file.file_stem()
        {
            let name = || stem.to_string_lossy().into_owned().into();
            proxy.entry("name").or_insert_with(name);
        }
        Ok((place, table))
    };
    files.into_iter().map(table).collect()
}

/// Reads the tables `[[hop]]` of a file as configs.
fn of_file(path: &Path) -> Result<Vec<(String, Table)>> {
    let mut table = read(path, MAX_FILE)?;
    let Some(Value::Array(hops)) = table.remove("hop") else {
        bail!("tables [[hop]] are expected");
    };
    if let Some((key, _)) = table.into_iter().next() {
        bail!("unknown key `{key}`; a file of hops has only tables [[hop]]");
    }
    let config = |(n, hop): (usize, Value)| match hop {
        Value::Table(hop) => {
            if !hop.contains_key("name") {
                bail!("[[hop]] number {n}: name is missing");
            }
            let config = Table::from_iter([("proxy".to_owned(), Value::Table(hop))]);
            Ok((format!("[[hop]] number {n}"), config))
        }
        _ => bail!("[[hop]] number {n}: a table is expected"),
    };
    (1..).zip(hops).map(config).collect()
}

fn read(path: &Path, most: u64) -> Result<Table> {
    let text = text::read(path, most).map_err(|what| anyhow!(what))?;
    toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        anyhow!(text::position(&text, at) + error.message())
    })
}

/// Returns the definition of the hop with the config `table`.
fn define(args: &HopAgentArgs, mut table: Table, registry: &Registry) -> Result<Definition> {
    let Some(Value::Table(own)) = table.get_mut("proxy") else {
        bail!("the table [proxy] is missing");
    };
    let mut own_keys: BTreeMap<String, Value> = std::mem::take(own)
        .into_iter()
        .map(|(key, value)| (key.replace('_', "-"), value))
        .collect();
    refuse_keys(&own_keys)?;
    own_keys.insert("run-dir".to_owned(), ".".into());
    let idle = humantime::format_duration(args.idle_exit).to_string();
    own_keys.entry("idle-exit".to_owned()).or_insert_with(|| idle.into());
    // A hop's process has no privilege to write TCP options.
    if has_next(&own_keys, &table) {
        own_keys.entry("tell".to_owned()).or_insert_with(|| "proxy-tfo".into());
    }
    table.insert("proxy".to_owned(), Value::Table(own_keys.into_iter().collect()));
    let config = toml::to_string(&table)?;
    let settings = Settings::of_config(&config, registry)?;
    refuse_privileges(&settings)?;
    let engine = &settings.engine;
    Ok(Definition {
        name: engine.name.clone(),
        listen: engine.listen.clone(),
        allow_from: match &engine.target {
            Target::Requested(terms) => terms.from.clone(),
            _ => Vec::new(),
        },
        descriptors: 2 * engine.limits.flows as u64 + OTHER_DESCRIPTORS,
        sees_syns: engine.limits.early.is_some() && engine.target.may_be_in_syn(),
        meaning: settings.to_string(),
        config,
    })
}

fn has_next(own: &BTreeMap<String, Value>, whole: &Table) -> bool {
    let policies = whole.get("policy").and_then(Value::as_array);
    let has = |policy: &Value| policy.get("next").is_some();
    own.contains_key("next") || policies.is_some_and(|list| list.iter().any(has))
}

/// Refuses keys that a hop of an agent cannot have.
fn refuse_keys(keys: &BTreeMap<String, Value>) -> Result<()> {
    let refused = [
        ("run-dir", "each hop has a directory of its own below the agent's"),
        ("on-demand", "every hop of an agent is started on demand"),
        ("metrics", "the agent has metrics; `viaduct status --run-dir` shows those of a hop"),
        ("password-file", "a hop's process cannot read files of root"),
        ("access-log", "a hop's process cannot write files; stderr is possible"),
    ];
    for (key, why) in refused {
        let is_possible =
            |value: &Value| key == "access-log" && matches!(value.as_str(), Some("stderr" | "-"));
        if keys.get(key).is_some_and(|value| !is_possible(value)) {
            bail!("{key}: {why}");
        }
    }
    Ok(())
}

/// Refuses settings that need privileges, which a hop's process does not have.
fn refuse_privileges(settings: &Settings) -> Result<()> {
    let engine = &settings.engine;
    let mut tells = engine.policies.tells().map(|tell| tell.or(engine.hop_signalling));
    let refused = [
        ("intercept", matches!(engine.target, Target::Original { .. })),
        ("accept after-connect", settings.holds),
        ("tunnels", engine.tunnels.is_some()),
        ("trickles", engine.policies.trickles().next().is_some()),
        ("tell option", tells.any(|tell| tell == Some(HopSignalling::Option))),
        ("workers above 1", engine.workers > 1),
    ];
    match refused.iter().find(|(_, is)| *is) {
        Some((what, _)) => {
            bail!("{what}: not possible in a hop of an agent; run `viaduct proxy` for it")
        }
        None => Ok(()),
    }
}

/// Refuses hops with the same name or the same listening address.
fn check_apart(all: &[Definition]) -> Result<()> {
    let mut names = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for hop in all {
        if names.insert(&hop.name, ()).is_some() {
            bail!("two hops have the name {}", hop.name);
        }
        for at in &hop.listen {
            if let Some(other) = addresses.insert(at, &hop.name) {
                bail!("{other} and {} both listen at {at}", hop.name);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    const HOP: &str = "[[hop]]\nname = 'a'\nlisten = '127.0.0.1:7001'\nto = '127.0.0.1:80'\n";

    fn loaded(name: &str, text: &str) -> Result<Vec<Definition>, String> {
        let path = std::env::temp_dir().join(format!("viaduct-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        let command = HopAgentArgs::augment_args(Command::new("hop-agent"));
        let words = ["hop-agent".into(), "--hops".into(), path.clone().into_os_string()];
        let args = HopAgentArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        let loaded = load(&args, &crate::handlers()).map_err(|error| format!("{error:#}"));
        fs::remove_file(path).unwrap();
        loaded
    }

    #[test]
    fn a_hop_is_a_proxy_with_the_agents_directory_and_idle_time() {
        let own = format!("{HOP}idle_exit = '5s'\nnext = '127.0.0.1:7100'\n");
        let all = loaded(
            "hops-good",
            &format!("{own}{}", HOP.replace("'a'", "'b'").replace("7001", "7002")),
        )
        .unwrap();
        let [a, b] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&a.name[..], &b.name[..]), ("a", "b"));
        assert!(a.config.contains("idle-exit = \"5s\"") && b.config.contains("idle-exit = \"1m\""));
        assert!(a.config.contains("tell = \"proxy-tfo\"") && !b.config.contains("tell"));
        assert!(a.config.contains("run-dir = \".\"") && a.sees_syns);
    }

    #[test]
    fn clients_outside_of_allow_from_are_known() {
        let asked =
            "expect = 'proxy'\nallow-from = ['10.0.0.0/8', 'fd00::/16']\nallow-to = '::/0'\n";
        let hop = HOP.replace("to = '127.0.0.1:80'\n", asked);
        let all = loaded(
            "hops-from",
            &format!("{hop}{}", HOP.replace("'a'", "'b'").replace("7001", "7002")),
        )
        .unwrap();
        let allows = |n: usize, client: &str| all[n].allows(client.parse().unwrap());
        assert!(allows(0, "10.1.0.1") && allows(0, "::ffff:10.1.0.1") && allows(0, "fd00::1"));
        assert!(!allows(0, "192.0.2.1") && !allows(0, "fd01::1"));
        assert!(allows(1, "192.0.2.1"), "a hop with a fixed server has no allow-from");
    }

    #[test]
    fn settings_that_a_confined_process_cannot_have_are_refused() {
        for (lines, expected) in [
            ("metrics = '127.0.0.1:9'\n", "metrics: the agent has metrics"),
            ("run_dir = '/x'\n", "run-dir: each hop has a directory"),
            ("on-demand = true\n", "started on demand"),
            ("access-log = '/x'\n", "stderr is possible"),
            ("workers = 2\n", "workers"),
            ("accept = 'after-connect'\n", "run `viaduct proxy` for it"),
            ("trickles = 'udp'\n", "trickles: not possible"),
            ("next = '127.0.0.1:9'\ntell = 'option'\n", "tell option: not possible"),
            ("lisen = 'x'\n", "unknown key `lisen`"),
            (HOP, "two hops have the name a"),
            (&HOP.replace("'a'", "'b'"), "a and b both listen at 127.0.0.1:7001"),
            ("[agent]\n", "unknown key `agent`"),
            ("[[hop]]\nlisten = '127.0.0.1:7002'\n", "number 2: name is missing"),
        ] {
            let error = loaded("hops-wrong", &format!("{HOP}{lines}")).unwrap_err();
            assert!(error.contains(expected), "{lines}: {error}");
        }
        assert!(loaded("hops-wrong", "").unwrap_err().contains("tables [[hop]] are expected"));
    }
}
