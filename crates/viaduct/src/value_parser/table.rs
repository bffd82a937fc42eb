//! Values in the tables of config files, read by the parsers of the command line. A field names
//! its syntax: `#[serde(deserialize_with = "optional::<Rate, _>")]`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Command, ValueEnum};
use ipnet::IpNet;
use rustls::pki_types::DnsName;
use serde::{Deserialize, Deserializer, de};
use viaduct_proto::flow::HandlerSpec;
use viaduct_proto::keys::PublicKey;

/// Syntax of a value, the same on the command line and in a table.
pub trait Syntax {
    type Value;

    /// Parses the value. Errors: the expected form.
    fn parse(text: &str) -> Result<Self::Value, String>;
}

/// Declares syntaxes, each with its parser.
macro_rules! syntaxes {
    ($($(#[$doc:meta])* $name:ident: $parse:path => $value:ty;)*) => {
        $(
            $(#[$doc])*
            pub enum $name {}

            impl Syntax for $name {
                type Value = $value;

                fn parse(text: &str) -> Result<$value, String> {
                    $parse(text)
                }
            }
        )*
    };
}

syntaxes! {
    /// Address and port to listen on.
    Address: super::socket_addr => SocketAddr;
    /// Address and port to connect to.
    Destination: super::destination => SocketAddr;
    /// Prefix, or a single address.
    Prefix: super::prefix => IpNet;
    /// Port, or range of ports.
    Ports: super::ports => RangeInclusive<u16>;
    /// Time, which may be zero.
    Time: super::time => Duration;
    /// Time above zero.
    Wait: super::wait => Duration;
    /// Time for which a loop polls.
    Spin: super::spin => Duration;
    /// Time without an acknowledgement after which a connection is reset.
    DeadAfter: super::dead_after => Duration;
    /// Number, at least one.
    Count: super::count => usize;
    /// Number of event loops.
    Workers: super::workers => u16;
    /// Name of a server.
    ServerName: super::server_name => DnsName<'static>;
    /// Number of links of a tunnel.
    Links: super::links => u16;
    /// Bytes of a buffer.
    Buffer: super::buffer => usize;
    /// Bytes of a tunnel's buffer.
    TunnelBuffer: super::tunnel_buffer => u64;
    /// Amount of memory.
    Memory: super::memory => usize;
    /// Memory of a gateway for packets.
    PacketMemory: super::packet_memory => usize;
    /// Bits a second.
    Rate: super::rate => u64;
    /// A handler and its settings.
    Handler: from_str => HandlerSpec;
    /// Public key of another end.
    Key: from_str => PublicKey;
}

impl<T: ValueEnum> Syntax for T {
    type Value = T;

    fn parse(text: &str) -> Result<T, String> {
        let names = || -> Vec<String> {
            let known = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            known.map(|value| value.get_name().to_owned()).collect()
        };
        T::from_str(text, false).map_err(|_| format!("one of {} is expected", names().join(", ")))
    }
}

/// Value as written: text, or a number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "text or a number is expected")]
enum Written {
    Text(String),
    Number(i64),
}

/// Single value, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "text, a number, or a list of these is expected")]
enum OneOrMany {
    One(Written),
    Many(Vec<Written>),
}

impl Written {
    fn parse<S: Syntax, E: de::Error>(&self) -> Result<S::Value, E> {
        let text = match self {
            Written::Text(text) => text.clone(),
            Written::Number(number) => number.to_string(),
        };
        S::parse(&text).map_err(|what| E::custom(format!("{text:?}: {what}")))
    }
}

/// Reads a value.
pub fn one<'de, S: Syntax, D: Deserializer<'de>>(from: D) -> Result<S::Value, D::Error> {
    Written::deserialize(from)?.parse::<S, _>()
}

/// Reads a value that may be left out.
pub fn optional<'de, S, D>(from: D) -> Result<Option<S::Value>, D::Error>
where
    S: Syntax,
    D: Deserializer<'de>,
{
    one::<S, D>(from).map(Some)
}

/// Reads a list; a single value counts as a list.
pub fn list<'de, S: Syntax, D: Deserializer<'de>>(from: D) -> Result<Vec<S::Value>, D::Error> {
    let written = match OneOrMany::deserialize(from)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    };
    written.iter().map(|value| value.parse::<S, _>()).collect()
}

/// Reads a list in brackets.
pub fn array<'de, S: Syntax, D: Deserializer<'de>>(from: D) -> Result<Vec<S::Value>, D::Error> {
    let written = Vec::<Written>::deserialize(from)?;
    written.iter().map(|value| value.parse::<S, _>()).collect()
}

/// Defaults of the options, as for a command line without options.
pub fn defaults<T: Args>() -> T {
    let command = T::augment_args(Command::new("defaults"));
    let matches = command.get_matches_from(["defaults"]);
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn from_str<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse::<T>().map_err(|error| error.to_string())
}
