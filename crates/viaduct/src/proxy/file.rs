//! Config file of a proxy. Its table `[proxy]` has the options of the command line by the same
//! names, so that one parser reads both. The tables `[[policy]]` and `[[tunnel]]` exist only in
//! the file.
//!
//! ```toml
//! [proxy]
//! listen = "[::]:7000"
//! intercept = ["10.2.0.0/16"]
//!
//! [[policy]]
//! to = ["10.2.7.0/24"]
//! ports = ["22", "8000-8080"]
//! handlers = ["shape:rate=2M"]
//! ```

use std::net::SocketAddr;
use std::path::Path;

use clap::Parser;
use ipnet::IpNet;
use serde::Deserialize;
use toml::{Table, Value};
use viaduct_proto::flow::{HandlerSpec, Registry};

use super::onward::Onward;
use super::options::{ProxyArgs, ProxyOptions};
use super::policy::{Plan, Policy};
use super::through::Factories;
use super::trickles::{Course, Ways};
use super::tunnels::settings::{TunnelName, TunnelTable};
use super::values::{ports, prefixes, rate, some_goal};
use crate::text;

/// Maximum size of a config, in bytes.
const LONGEST: u64 = 1 << 20;

/// Contents of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    proxy: Table,
    #[serde(default)]
    policy: Vec<PolicyTable>,
    #[serde(default)]
    tunnel: Vec<TunnelTable>,
}

/// Parsed contents of a file.
pub struct Said {
    /// Options.
    pub args: ProxyArgs,
    /// Policies, as written.
    pub policies: Vec<PolicyTable>,
    /// Named tunnels, as written.
    pub tunnels: Vec<TunnelTable>,
}

/// A policy, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTable {
    #[serde(default, deserialize_with = "prefixes")]
    from: Vec<IpNet>,
    #[serde(default, deserialize_with = "prefixes")]
    to: Vec<IpNet>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    action: Action,
    #[serde(default, deserialize_with = "some_goal")]
    pub(super) next: Option<SocketAddr>,
    #[serde(default)]
    direct: bool,
    tunnel: Option<Value>,
    trickles: Option<Ways>,
    #[serde(rename = "trickles-key")]
    trickles_key: Option<String>,
    handlers: Option<Vec<String>>,
    #[serde(default)]
    side: Side,
    rate: Option<String>,
}

/// End of the handlers that a policy's flows meet here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    /// Client's end: flows that go on from here pass the handlers.
    #[default]
    Connect,
    /// Server's end: flows that arrive here have passed the same handlers elsewhere.
    Accept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    #[default]
    Allow,
    Deny,
}

/// Options in the form of a command line.
#[derive(Debug, Parser)]
#[command(name = "[proxy]", disable_help_flag = true)]
struct Words {
    #[command(flatten)]
    options: ProxyOptions,
}

/// Reads the text of `path`.
///
/// # Errors
/// The file cannot be read, or is too long.
pub fn read(path: &Path) -> Result<String, String> {
    text::read(path, LONGEST)
}

/// Parses `text`.
///
/// # Errors
/// A line with the place, the mistake and a correct form.
pub fn parse(text: &str) -> Result<Said, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        if error.message().contains("missing field `proxy`") {
            return "the table [proxy] is missing".to_owned();
        }
        let at = error.span().map_or(0, |span| span.start);
        text::position(text, at) + &text::explain(text, at, error.message())
    })?;
    let args = options(&file.proxy).map_err(|what| format!("[proxy] {what}"))?;
    Ok(Said { args, policies: file.policy, tunnels: file.tunnel })
}

/// Parses a table as if it were a command line.
///
/// # Errors
/// A line with the mistake and a correct form.
pub fn options(table: &Table) -> Result<ProxyArgs, String> {
    let mut words = vec!["[proxy]".to_owned()];
    for (key, value) in table {
        if matches!(&key[..], "config" | "check" | "doors" | "rehearse" | "told") {
            return Err(format!("{key}: unknown key"));
        }
        let option = format!("--{}", key.replace('_', "-"));
        let values = match value {
            Value::Array(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            match value {
                Value::Boolean(true) => words.push(option.clone()),
                Value::Boolean(false) => {}
                Value::String(text) => words.push(format!("{option}={text}")),
                Value::Integer(number) => words.push(format!("{option}={number}")),
                _ => return Err(format!("{key}: text or a number is expected")),
            }
        }
    }
    match Words::try_parse_from(words) {
        Ok(words) => Ok(words.options.args),
        Err(error) => Err(plain(&error.to_string())),
    }
}

/// Message of the command line's parser in terms of a file, on one line.
fn plain(message: &str) -> String {
    let message = message.split("\n\nUsage").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = message.replace("unexpected argument", "unknown key").replace(" found", "");
    let words: Vec<_> = message.split_whitespace().collect();
    words.join(" ").replace("--", "")
}

impl PolicyTable {
    /// Policy that the table describes, with these tunnels; what is left out is as in
    /// `otherwise`.
    ///
    /// # Errors
    /// The mistake, and a correct form.
    pub fn policy(
        &self,
        otherwise: &Plan,
        tunnels: &[TunnelName],
        registry: &Registry,
    ) -> Result<Policy, String> {
        let tunnel = self.tunnel.as_ref().map(|value| tunnel(value, tunnels)).transpose()?;
        let by = match (self.direct, self.next, tunnel, self.trickles) {
            (false, None, None, None) => otherwise.by.clone(),
            (true, None, None, None) => Onward::Direct,
            (false, Some(at), None, None) => Onward::Hop(at),
            (false, None, Some(name), None) => Onward::Tunnel(name.to_string()),
            (false, None, None, Some(ways)) => {
                let key = self.trickles_key.as_deref().map(str::parse).transpose();
                let key = key.map_err(|error| format!("trickles-key: {error}"))?;
                Onward::Trickles(Course { ways, key, ..Course::default() })
            }
            _ => return Err("direct, next, tunnel and trickles exclude each other".to_owned()),
        };
        if self.trickles_key.is_some() && self.trickles.is_none() {
            return Err("trickles-key: there is no trickles".to_owned());
        }
        let ports = self
            .ports
            .iter()
            .map(|text| ports(text).map_err(|what| format!("ports: {text:?}: {what}")));
        let ports = ports.collect::<Result<_, _>>()?;
        let handlers = match &self.handlers {
            None => otherwise.handlers.clone(),
            Some(texts) => handlers(texts, registry).map_err(|what| format!("handlers: {what}"))?,
        };
        let accepts = self.side == Side::Accept;
        match (accepts, &handlers, &by) {
            (true, None, _) => return Err("side: \"accept\" is for handlers".to_owned()),
            (true, _, Onward::Hop(_) | Onward::Tunnel(_) | Onward::Trickles(_)) => {
                return Err(
                    "side: who accepts goes straight to the server, not by next, tunnel or \
                    trickles; add direct = true"
                        .to_owned(),
                );
            }
            _ => {}
        }
        let limit = self.rate.as_deref().map(rate).transpose();
        let limit = limit.map_err(|what| format!("rate: {what}"))?;
        let plan = Plan {
            deny: self.action == Action::Deny,
            by,
            handlers,
            accepts,
            rate: limit.or(otherwise.rate),
        };
        Ok(Policy { from: self.from.clone(), to: self.to.clone(), ports, plan })
    }
}

/// Name of the tunnel in `value`: `true` means the unnamed one, a string one of `tunnels`.
fn tunnel(value: &Value, tunnels: &[TunnelName]) -> Result<TunnelName, String> {
    let name = match value {
        Value::Boolean(true) => "",
        Value::String(name) if !name.is_empty() => name,
        _ => return Err("tunnel: true or the name of a [[tunnel]] is expected".to_owned()),
    };
    let found = tunnels.iter().find(|tunnel| &***tunnel == name).cloned();
    found.ok_or_else(|| match name {
        "" => "tunnel: true is for [proxy]'s tunnel, which is not given".to_owned(),
        name => {
            let known: Vec<_> =
                tunnels.iter().map(|name| &**name).filter(|n| !n.is_empty()).collect();
            format!("tunnel: no [[tunnel]] is named {name:?}; there are {known:?}")
        }
    })
}

/// Chain that texts such as `shape:rate=2M` describe; `None` without any.
fn handlers(texts: &[String], registry: &Registry) -> Result<Option<Factories>, String> {
    let specs = texts.iter().map(|text| text.parse()).collect::<Result<Vec<HandlerSpec>, _>>();
    chain(&specs.map_err(|error| error.to_string())?, registry)
}

/// Chain of these handlers; `None` without any.
///
/// # Errors
/// There is no such handler, or it does not accept these settings.
pub fn chain(specs: &[HandlerSpec], registry: &Registry) -> Result<Option<Factories>, String> {
    let chain = (!specs.is_empty()).then(|| registry.chain(specs)).transpose();
    chain.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Vec<Policy>, String> {
        let Said { args, policies, tunnels } = parse(text)?;
        let tunnels: Vec<TunnelName> = tunnels.iter().map(|t| t.name[..].into()).collect();
        let by = args.next.map(Onward::Hop).unwrap_or_default();
        let otherwise = Plan { by, rate: args.rate, ..Plan::default() };
        let registry = crate::handlers();
        policies.iter().map(|table| table.policy(&otherwise, &tunnels, &registry)).collect()
    }

    const HEAD: &str = "[proxy]\nlisten = ['[::]:7000']\nto = '10.0.0.9:80'\n";

    #[test]
    fn options_and_policies_mean_what_they_say() {
        let policies = load(&format!(
            "{HEAD}next = '10.9.0.1:7000'\nrate = '9M'\nflows = 10\n\
             [[policy]]\nports = ['22', '8000-8080']\nhandlers = ['count', '+shape:rate=2M']\n\
             [[policy]]\ndirect = true\nrate = '1k'\n[[policy]]\naction = 'deny'\n"
        ))
        .unwrap();
        let words: Vec<_> = policies.iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "from any to any port 22 port 8000-8080: by 10.9.0.1:7000 +count +shape \
                 (2M bit/s), at most 9M bit/s",
                "from any to any: straight on, at most 1k bit/s",
                "from any to any: denied",
            ]
        );
    }

    #[test]
    fn a_policy_chooses_a_tunnel_by_its_name() {
        let tunnel = |name: &str| {
            format!("[[tunnel]]\nname = '{name}'\nto = '198.51.100.7:7600'\npeer = 'k'\n")
        };
        let two = tunnel("rome") + &tunnel("oslo");
        let policies = load(&format!(
            "{HEAD}next = '10.9.0.1:7000'\n{two}\
             [[policy]]\nports = ['22']\ntunnel = 'oslo'\n[[policy]]\ndirect = true\n"
        ))
        .unwrap();
        let words: Vec<_> = policies.iter().map(ToString::to_string).collect();
        let oslo = "from any to any port 22: through the tunnel oslo";
        assert_eq!(words, [oslo, "from any to any: straight on"]);
        let wrong = [
            ("tunnel = 'bonn'", "no [[tunnel]] is named \"bonn\"; there are [\"rome\", \"oslo\"]"),
            ("tunnel = true", "[proxy]'s tunnel, which is not given"),
            ("tunnel = 7", "true or the name of a [[tunnel]]"),
            ("tunnel = 'rome'\ndirect = true", "exclude each other"),
        ];
        for (line, expected) in wrong {
            let error = load(&format!("{HEAD}{two}[[policy]]\n{line}\n")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_policy_has_its_flows_go_on_by_trickles() {
        let policies = load(&format!(
            "{HEAD}[[policy]]\nports = ['80']\ntrickles = 'auto'\n[[policy]]\ntrickles = 'udp'\n"
        ))
        .unwrap();
        let words: Vec<_> = policies.iter().map(ToString::to_string).collect();
        let by = ["from any to any port 80: by trickles", "from any to any: by trickles udp"];
        assert_eq!(words, by);
        for (lines, expected) in [
            ("trickles = 'sctp'", "`auto`, `tcp`, `udp`"),
            ("trickles = 'udp'\ndirect = true", "exclude each other"),
            ("trickles = 'udp'\ntrickles-key = 'mine'", "trickles-key: a key is 64"),
            ("trickles-key = 'mine'", "there is no trickles"),
            ("trickles = 'udp'\nhandlers = ['count']\nside = 'accept'", "next, tunnel or trickles"),
        ] {
            let error = load(&format!("{HEAD}[[policy]]\n{lines}\n")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let both = format!("{HEAD}next = '10.9.0.1:7000'\ntrickles = 'udp'\n");
        assert!(load(&both).unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        let wrong = [
            ("[proxy]\nlisten = 'x'\n", "[proxy] invalid value 'x' for 'listen"),
            ("[proxy]\nlisten = 7\n[polici]\n", "line 3: unknown key `polici`"),
            ("", "the table [proxy] is missing"),
            (&format!("{HEAD}liste = 'x'\n"), "unknown key 'liste'"),
            (&format!("{HEAD}config = 'x'\n"), "config: unknown key"),
            (&format!("{HEAD}rate = 'fast'\n"), "bits a second such as 500k"),
            (&format!("{HEAD}[[policy]]\nto = ['host']\n"), "line 5: to: \"host\": a prefix"),
            (&format!("{HEAD}[[policy]]\nnext = 'host:1'\n"), "names of hosts are not looked up"),
            (&format!("{HEAD}[[policy]]\nports = ['9-1']\n"), "a port or a range"),
            (&format!("{HEAD}[[policy]]\nhandlers = ['shap:rate=2M']\n"), "no handler is named"),
            (&format!("{HEAD}[[policy]]\nto = ['10.2.0.0/33']\n"), "line 5: to: "),
            (
                &format!("{HEAD}[[policy]]\nports = '22'\n"),
                "line 5: ports: a list is expected, such as [\"22\", ",
            ),
            (
                &format!("{HEAD}[[policy]]\nhandlers = 'count'\n"),
                "handlers: a list is expected, such as [\"count\", ",
            ),
            (&format!("{HEAD}[[policy]]\nfrom = '::/0'\n"), "such as [\"10.1.0.0/16\"]"),
            (&format!("{HEAD}[policy]\nports = ['22']\n"), "two brackets is expected: [[policy]]"),
        ];
        for (text, expected) in wrong {
            let error = load(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
