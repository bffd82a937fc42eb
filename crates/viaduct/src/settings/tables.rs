//! Tables of options and of policies, as files have them.

use std::net::SocketAddr;

use clap::Parser;
use ipnet::IpNet;
use serde::Deserialize;
use toml::{Table, Value};
use viaduct_proto::flow::{HandlerSpec, Registry};

use super::args::ProxyArgs;
use crate::engine::chain_io::Factories;
use crate::engine::outbound::OutboundSpec;
use crate::engine::policy::{Plan, Policy};
use crate::engine::trickles::{PacketFormats, TricklesTarget};
use crate::tunnel::settings::TunnelName;
use crate::value_parser::{de_optional_destination, de_prefixes, ports, rate};

/// A policy, as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTable {
    #[serde(default, deserialize_with = "de_prefixes")]
    from: Vec<IpNet>,
    #[serde(default, deserialize_with = "de_prefixes")]
    to: Vec<IpNet>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    action: Action,
    #[serde(default, deserialize_with = "de_optional_destination")]
    pub(super) next: Option<SocketAddr>,
    #[serde(default)]
    direct: bool,
    tunnel: Option<Value>,
    trickles: Option<PacketFormats>,
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
    args: ProxyArgs,
}

/// Parses a table as if it were a command line.
///
/// # Errors
/// A line with the mistake and a correct form.
pub fn parse_options(table: &Table) -> Result<ProxyArgs, String> {
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
        Ok(words) => Ok(words.args),
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
            (true, None, None, None) => OutboundSpec::Direct,
            (false, Some(at), None, None) => OutboundSpec::Hop(at),
            (false, None, Some(name), None) => OutboundSpec::Tunnel(name.to_string()),
            (false, None, None, Some(formats)) => {
                let key = self.trickles_key.as_deref().map(str::parse).transpose();
                let key = key.map_err(|error| format!("trickles-key: {error}"))?;
                OutboundSpec::Trickles(TricklesTarget { formats, key, ..TricklesTarget::default() })
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
            (
                true,
                _,
                OutboundSpec::Hop(_) | OutboundSpec::Tunnel(_) | OutboundSpec::Trickles(_),
            ) => {
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
        let plan = plan.into();
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
