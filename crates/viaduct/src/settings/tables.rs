//! Tables of options and of policies in config files.

use std::ops::RangeInclusive;

use clap::{Arg, Args, Command};
use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};
use viaduct_proto::flow::{HandlerSpec, Registry};

use super::args::ProxyArgs;
use super::next::{Check, Next, NextCheck, NextFor, NextHop, NextSettings};
use crate::engine::chain_io::Factories;
use crate::engine::next_hops::Fallback;
use crate::engine::outbound::{HopSignalling, OutboundSpec};
use crate::engine::policy::{Plan, Policy};
use crate::engine::trickles::{PacketFormats, TricklesTarget};
use crate::tunnel::settings::TunnelName;
use crate::value_parser::table::{Ports, Prefix, Rate, array, list, optional};

/// Name of the plan for flows that match no policy.
pub const OTHERWISE: &str = "otherwise";
/// Maximum length of a policy's name in bytes.
const MAX_NAME: usize = 32;

/// A policy, as written in a config file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyTable {
    name: Option<String>,
    #[serde(default, deserialize_with = "array::<Prefix, _>")]
    from: Vec<IpNet>,
    #[serde(default, deserialize_with = "array::<Prefix, _>")]
    to: Vec<IpNet>,
    #[serde(default, deserialize_with = "array::<Ports, _>")]
    ports: Vec<RangeInclusive<u16>>,
    #[serde(default)]
    action: Action,
    #[serde(default, deserialize_with = "list::<Next, _>")]
    pub(super) next: Vec<NextHop>,
    #[serde(default, rename = "next-for", deserialize_with = "optional::<NextFor, _>")]
    next_for: Option<NextFor>,
    #[serde(default, rename = "next-check", deserialize_with = "optional::<Check, _>")]
    next_check: Option<NextCheck>,
    #[serde(default, rename = "next-fallback", deserialize_with = "optional::<Fallback, _>")]
    next_fallback: Option<Fallback>,
    #[serde(default, deserialize_with = "optional::<HopSignalling, _>")]
    pub(super) tell: Option<HopSignalling>,
    #[serde(default)]
    direct: bool,
    tunnel: Option<Value>,
    trickles: Option<PacketFormats>,
    #[serde(rename = "trickles-key")]
    trickles_key: Option<String>,
    handlers: Option<Vec<String>>,
    #[serde(default)]
    side: Side,
    #[serde(default, deserialize_with = "optional::<Rate, _>")]
    rate: Option<u64>,
}

/// End of the handler chain that runs in this proxy, for the flows of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    /// Client's end: flows pass the handlers on their way out of this proxy.
    #[default]
    Connect,
    /// Server's end: flows have passed the client's end of the same handlers at another proxy.
    Accept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    #[default]
    Allow,
    Deny,
}

/// Table of options as written, with the keys of a proxy's command line; the words of a key are
/// joined by `-` or `_`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Table")]
pub struct OptionsTable(Table);

impl TryFrom<Table> for OptionsTable {
    type Error = &'static str;

    fn try_from(table: Table) -> Result<OptionsTable, Self::Error> {
        let keys = table.len();
        let options: Table =
            table.into_iter().map(|(key, value)| (key.replace('_', "-"), value)).collect();
        if options.len() < keys {
            return Err("a key is set twice, once with - and once with _");
        }
        Ok(OptionsTable(options))
    }
}

impl OptionsTable {
    /// Returns whether the table sets the option `key`.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Options of the table. Missing keys have the defaults of the command line. Errors: one line
    /// of text, with the key, the mistake and a correct form.
    pub fn options(&self) -> Result<ProxyArgs, String> {
        let mut table = self.0.clone();
        Ok(ProxyArgs {
            tunnel: group(&mut table)?,
            access_log: group(&mut table)?,
            dead_after: group(&mut table)?,
            run_dir: group(&mut table)?,
            ..read(table)?
        })
    }
}

/// Takes a group of options out of a table. serde's `flatten` would do the same, but its errors do
/// not name the key.
fn group<T: Args + DeserializeOwned>(table: &mut Table) -> Result<T, String> {
    let command = T::augment_args(Command::new("group"));
    let keys = command.get_arguments().filter_map(Arg::get_long);
    read(keys.filter_map(|key| table.remove_entry(key)).collect())
}

/// Reads the options of a table in which all keys are options of `T`.
fn read<T: DeserializeOwned>(table: Table) -> Result<T, String> {
    table.try_into().map_err(|error| one_line(&error))
}

/// Message of an error, preceded by the key that the error concerns.
fn one_line(error: &toml::de::Error) -> String {
    if let Some(unknown) = error.message().strip_prefix("unknown field ") {
        return format!("unknown key {}", unknown.split(',').next().unwrap_or_default());
    }
    // Only the second line, "in `KEY`", names the key.
    let text = error.to_string();
    match text.trim_end().split_once("\nin `") {
        Some((message, key)) => format!("{}: {message}", key.trim_end_matches('`')),
        None => error.message().to_owned(),
    }
}

impl PolicyTable {
    /// Name of the policy: its number `n`, if none is given. Errors: the name is not a plain word,
    /// or could be another policy's number.
    fn name(&self, n: usize) -> Result<String, String> {
        let Some(name) = &self.name else { return Ok(n.to_string()) };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if name.len() > MAX_NAME || !name.chars().all(is_plain) || is_number {
            return Err(format!(
                "name: letters, digits, '-', '_' and '.' are expected, at most {MAX_NAME}, and not \
                 digits alone, not {name:?}"
            ));
        }
        match name == OTHERWISE {
            true => Err(format!("name: {OTHERWISE:?} means flows that match no policy")),
            false => Ok(name.clone()),
        }
    }

    /// Outbound through the policy's own next hops. The settings of `args` apply to them, too,
    /// unless the policy has its own.
    fn hop(&self, args: &ProxyArgs) -> Result<Option<OutboundSpec>, String> {
        if self.next.is_empty() && (self.next_check.is_some() || self.next_fallback.is_some()) {
            return Err("next-check, next-fallback: they need next; give that too".to_owned());
        }
        if self.next.is_empty() && self.tell.is_some() {
            return Err("tell: it needs next; give that too".to_owned());
        }
        if self.next.is_empty() && self.next_for.is_some() {
            return Err("next-for: it needs next; give that too".to_owned());
        }
        let proxy = NextSettings::of(args);
        // The proxy's fallback applies only to a list of hops, and its criterion only to hops that
        // measurements choose.
        let is_auto = self.next.contains(&NextHop::Auto);
        let settings = NextSettings {
            next: &self.next,
            check: self.next_check.as_ref().or(proxy.check),
            fallback: self.next_fallback.or(proxy.fallback.filter(|_| !is_auto)),
            criterion: self.next_for.or(proxy.criterion.filter(|_| is_auto)),
            tell: self.tell.or(proxy.tell),
            ..proxy
        };
        settings.outbound()
    }

    /// Policy that the table describes. The table is the `n`th, counted from 1. A tunnel that it
    /// names must be one of `tunnels`. Missing keys are taken from `args` and from `otherwise`, the
    /// plan that `args` describe. Errors: the mistake, and a correct form.
    pub fn policy(
        &self,
        n: usize,
        args: &ProxyArgs,
        otherwise: &Plan,
        tunnels: &[TunnelName],
        registry: &Registry,
    ) -> Result<Policy, String> {
        let tunnel = self.tunnel.as_ref().map(|value| tunnel(value, tunnels)).transpose()?;
        let by = match (self.direct, self.hop(args)?, tunnel, self.trickles) {
            (false, None, None, None) => otherwise.by.clone(),
            (true, None, None, None) => OutboundSpec::Direct,
            (false, Some(hop), None, None) => hop,
            (false, None, Some(name), None) => OutboundSpec::Tunnel(name.to_string()),
            (false, None, None, Some(formats)) => {
                let key = self.trickles_key.as_deref().map(str::parse).transpose();
                let key = key.map_err(|error| format!("trickles-key: {error}"))?;
                OutboundSpec::Trickles(TricklesTarget { formats, key, ..TricklesTarget::default() })
            }
            _ => return Err("direct, next, tunnel and trickles exclude each other".to_owned()),
        };
        if self.trickles_key.is_some() && self.trickles.is_none() {
            return Err("trickles-key: it needs trickles, which is not given".to_owned());
        }
        let handlers = match &self.handlers {
            None => otherwise.handlers.clone(),
            Some(texts) => handlers(texts, registry).map_err(|what| format!("handlers: {what}"))?,
        };
        let accepts = self.side == Side::Accept;
        match (accepts, &handlers, &by) {
            (true, None, _) => return Err("side: \"accept\" needs handlers".to_owned()),
            (
                true,
                _,
                OutboundSpec::Hop(_)
                | OutboundSpec::Hops(_)
                | OutboundSpec::Auto(_)
                | OutboundSpec::Tunnel(_)
                | OutboundSpec::Trickles(_),
            ) => {
                return Err(
                    "side: \"accept\" connects directly to the server, not by next, tunnel or \
                     trickles; add direct = true"
                        .to_owned(),
                );
            }
            _ => {}
        }
        let plan = Plan {
            policy: Some(self.name(n)?.into()),
            deny: self.action == Action::Deny,
            by,
            tell: self.tell,
            handlers,
            accepts,
            rate: self.rate.or(otherwise.rate),
        };
        let (from, to, ports) = (self.from.clone(), self.to.clone(), self.ports.clone());
        Ok(Policy { from, to, ports, plan: plan.into() })
    }
}

/// Name of the tunnel in `value`: `true` means the unnamed tunnel, and a string must be the name of
/// one of `tunnels`.
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

/// Chain that texts such as `shape:rate=2M` describe; `None` if there are none.
fn handlers(texts: &[String], registry: &Registry) -> Result<Option<Factories>, String> {
    let specs = texts.iter().map(|text| text.parse()).collect::<Result<Vec<HandlerSpec>, _>>();
    chain(&specs.map_err(|error| error.to_string())?, registry)
}

/// Chain of these handlers; `None` if `specs` is empty. Errors: a handler does not exist, or does
/// not accept its settings.
pub fn chain(specs: &[HandlerSpec], registry: &Registry) -> Result<Option<Factories>, String> {
    let chain = (!specs.is_empty()).then(|| registry.chain(specs)).transpose();
    chain.map_err(|error| error.to_string())
}
