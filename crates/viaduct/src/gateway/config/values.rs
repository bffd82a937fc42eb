//! Values in a config, and the errors for invalid values.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};
use viaduct_proto::repair::lanes::{LaneCount, MAX_LANES};

use crate::value_parser;

/// Maximum of a time span: a day.
const MAX_SPAN: Duration = Duration::from_secs(24 * 60 * 60);

/// Time span up to a day: `"8ms"`, `"2s"`, `"1m 30s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

/// Address and port: `"192.0.2.1:7400"`, `"[2001:db8::1]:7400"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(pub(super) SocketAddr);

/// Endpoint of a peer: an address, or the name of a host, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    At(SocketAddr),
    Named(String, u16),
}

/// Range of addresses: `"10.1.0.0/16"`, `"fd00:1::/48"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix(pub(super) IpNet);

/// Whole number from 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(pub(super) u8);

/// Share, above 0 and at most 1: `0.3`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share(pub(super) f64);

/// Differentiated services code point: `46`, or `"ef"`, `"cs1"`, `"af41"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dscp(pub(super) u8);

/// Protocol: `"tcp"`, `"udp"`, `"icmp"`, `"icmp6"`, `"esp"`, `"gre"`, `"sctp"`, or its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protocol(pub(super) u8);

/// Number of packet threads: 1 to 64, or `"auto"`, one for each processor but at most 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Workers(pub(super) usize);

/// Number of lanes: a power of two, at most 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lanes(pub(super) LaneCount);

/// Length of a packet in bytes, from 576 to 9000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketSize(pub(super) usize);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse =
            |text: &str| value_parser::time(text).ok().filter(|span| *span <= MAX_SPAN).map(Span);
        parsed(from, parse, "a time up to a day; write it like \"8ms\" or \"2m\"")
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let share = f64::deserialize(from)?;
        if share > 0.0 && share <= 1.0 {
            return Ok(Share(share));
        }
        Err(de::Error::custom(format!("is {share}; a share above 0, and 1 at most, is expected")))
    }
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let wanted = "a code point; write it like 46, \"ef\", \"cs1\" or \"af41\"";
        named_or_number(from, dscp, 0..=63, wanted).map(Dscp)
    }
}

/// Code points by their names (RFC 2474, 2597, 3246, 5865, 8622).
fn dscp(name: &str) -> Option<u8> {
    match name.to_ascii_lowercase().as_bytes() {
        b"ef" => Some(46),
        b"va" => Some(44),
        b"le" => Some(1),
        b"be" | b"df" => Some(0),
        [b'c', b's', class @ b'0'..=b'7'] => Some((class - b'0') * 8),
        [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
            Some((class - b'0') * 8 + (drop - b'0') * 2)
        }
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let named = |name: &str| match &name.to_ascii_lowercase()[..] {
            "tcp" => Some(6),
            "udp" => Some(17),
            "icmp" => Some(1),
            "icmp6" | "ipv6-icmp" => Some(58),
            "esp" => Some(50),
            "gre" => Some(47),
            "sctp" => Some(132),
            _ => None,
        };
        let wanted = "a protocol; write it like \"tcp\", \"udp\" or 47";
        named_or_number(from, named, 0..=255, wanted).map(Protocol)
    }
}

/// Deserializes a name that `named` knows, or a number within `range`.
fn named_or_number<'de, D: Deserializer<'de>>(
    from: D,
    named: impl Fn(&str) -> Option<u8>,
    range: RangeInclusive<i64>,
    wanted: &str,
) -> Result<u8, D::Error> {
    let value = toml::Value::deserialize(from)?;
    let number = value.as_integer().filter(|number| range.contains(number));
    let number = number.and_then(|number| u8::try_from(number).ok());
    number
        .or_else(|| value.as_str().and_then(named))
        .ok_or_else(|| de::Error::custom(format!("{value} is not {wanted}")))
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse = |text: &str| text.parse().ok().map(Address);
        parsed(
            from,
            parse,
            "a numeric address with a port; write it like \"192.0.2.1:7400\" or \
             \"[2001:db8::1]:7400\"",
        )
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        parsed(
            from,
            endpoint,
            "an address or host name with a port; write it like \"192.0.2.1:7400\", \
             \"[2001:db8::1]:7400\" or \"oslo.example:7400\"",
        )
    }
}

/// Parses an endpoint. Returns its address; `None` if the endpoint is a host name.
///
/// # Errors
/// Description of the expected form.
pub fn parse_endpoint(text: &str) -> Result<Option<SocketAddr>, String> {
    match endpoint(text) {
        Some(Endpoint::At(at)) => Ok(Some(at)),
        Some(Endpoint::Named(..)) => Ok(None),
        None => Err(format!(
            "{text:?}: an address or host name with a port is expected, such as 192.0.2.1:7400, \
             [2001:db8::1]:7400 or oslo.example:7400"
        )),
    }
}

/// Parses an address or a name, with a port.
fn endpoint(text: &str) -> Option<Endpoint> {
    if let Ok(at) = text.parse() {
        return Some(Endpoint::At(at));
    }
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // A host without a letter is a mistyped address.
    let is_name = host.chars().all(fine) && host.chars().any(|c| c.is_ascii_alphabetic());
    let labels = || host.trim_end_matches('.').split('.');
    let is_name = is_name && host.len() <= 253 && labels().all(|l| (1..=63).contains(&l.len()));
    is_name.then(|| Endpoint::Named(host.to_owned(), port))
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let parse = |text: &str| text.parse().ok().map(Prefix);
        parsed(from, parse, "a prefix; write it like \"10.1.0.0/16\" or \"fd00:1::/48\"")
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        whole(from, 1..=255).map(Count)
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers(1)
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let value = toml::Value::deserialize(from)?;
        let number = match value.as_str() {
            Some("auto") => Some(processors.min(MAX_LANES)),
            Some(_) => None,
            None => value.as_integer().and_then(|number| usize::try_from(number).ok()),
        };
        number.filter(|number| (1..=MAX_LANES).contains(number)).map(Workers).ok_or_else(|| {
            let what = format!("is {value}; a whole number from 1 to {MAX_LANES}, or \"auto\", is");
            de::Error::custom(what + " expected")
        })
    }
}

impl<'de> Deserialize<'de> for Lanes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(from)?;
        let number = value.as_integer().and_then(|number| usize::try_from(number).ok());
        number.and_then(LaneCount::new).map(Lanes).ok_or_else(|| {
            let what = format!("is {value}; a power of two from 1 to {MAX_LANES} is expected");
            de::Error::custom(what)
        })
    }
}

impl<'de> Deserialize<'de> for PacketSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        whole(from, 576..=9000).map(PacketSize)
    }
}

/// Prefixes without their wrappers.
pub(super) fn prefixes(list: &[Prefix]) -> Vec<IpNet> {
    list.iter().map(|prefix| prefix.0).collect()
}

/// Deserializes a string with `parse`. The error for a rejected value reports that the value is not
/// `wanted`.
fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl FnOnce(&str) -> Option<T>,
    wanted: &str,
) -> Result<T, D::Error> {
    let value = toml::Value::deserialize(from)?;
    let meant = value.as_str().and_then(parse);
    meant.ok_or_else(|| de::Error::custom(format!("{value} is not {wanted}")))
}

/// Deserializes a whole number within `range`.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    from: D,
    range: RangeInclusive<i64>,
) -> Result<T, D::Error> {
    let value = toml::Value::deserialize(from)?;
    let number = value.as_integer().filter(|number| range.contains(number));
    number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
        let (low, high) = range.into_inner();
        de::Error::custom(format!("is {value}; a whole number from {low} to {high} is expected"))
    })
}

/// Returns whether `ip` can be the address of one machine.
pub(super) fn is_one_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses_or_names() {
        let named = |host: &str| Some(Endpoint::Named(host.to_owned(), 7400));
        assert_eq!(endpoint("oslo.example:7400"), named("oslo.example"));
        assert_eq!(endpoint("oslo.example.:7400"), named("oslo.example."));
        assert_eq!(endpoint("192.0.2.1:7400"), Some(Endpoint::At(([192, 0, 2, 1], 7400).into())));
        for wrong in
            ["oslo.example", "oslo:0", "a b:7400", "300.0.2.1:7400", "a..b:1", ":7400", "::1:7"]
        {
            assert_eq!(endpoint(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn multicast_and_broadcast_are_not_one_host() {
        let one = |text: &str| is_one_host(text.parse().unwrap());
        assert!(one("192.0.2.1") && one("2001:db8::1"));
        for text in ["0.0.0.0", "::", "255.255.255.255", "224.0.0.1", "ff02::1"] {
            assert!(!one(text), "{text}");
        }
    }
}
