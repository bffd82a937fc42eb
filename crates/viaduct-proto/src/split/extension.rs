//! Extension (TLV) of a PROXY header between hops of Viaduct: the rest of a flow's route, or a
//! query for the round-trip times of a hop. Other programs skip the extension.
//!
//! ```text
//!   0       e4     type, one of those for applications (PROXY protocol, 2.2)
//!   1, 2           length of the rest
//!   3, 4    5668   "Vh"
//!   5              1: route, in the header of a flow
//!                  2: query, in the header of a connection of the proxy's own
//!   6..            route: nothing for a direct connection to the server, or the next hop:
//!                         address (4 or 16 bytes) and port
//!                  query: networks, each 4 and three bytes (/24), or 6 and six bytes (/48)
//! ```
//!
//! The extension is the first one of its header. A hop that gets a route does not choose one, so a
//! flow passes at most two hops, and never loops.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::Parsed;
use crate::placement::Prefix;
use crate::placement::report::MAX_NETWORKS;
use crate::reader::Reader;

const TYPE: u8 = 0xe4;
const ID: [u8; 2] = *b"Vh";
const ROUTE: u8 = 1;
const QUERY: u8 = 2;
/// Length of type, length, identifier and kind.
const HEAD: usize = 6;
/// Maximum length of an extension: a query for the most networks, all of IPv6.
const MAX_LEN: usize = HEAD + 7 * MAX_NETWORKS;

/// Rest of a flow's route, from the hop that gets its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Onward {
    /// The hop chooses the rest itself.
    #[default]
    Open,
    /// Directly to the server.
    Direct,
    /// Through this further hop, and from there to the server.
    Hop(SocketAddr),
}

/// Meaning of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Rest of the flow's route.
    Route(Onward),
    /// Query for the round-trip times to these networks.
    Query(Vec<Prefix>),
}

impl Extension {
    /// Serializes the extension; nothing for an open route.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Extension::Route(Onward::Open) => return Vec::new(),
            Extension::Route(Onward::Direct) => (ROUTE, Vec::new()),
            Extension::Route(Onward::Hop(at)) => (ROUTE, address(*at)),
            Extension::Query(networks) => {
                (QUERY, networks.iter().take(MAX_NETWORKS).flat_map(|of| network(*of)).collect())
            }
        };
        let len = (ID.len() + 1 + body.len()) as u16;
        [&[TYPE][..], &len.to_be_bytes(), &ID, &[kind], &body].concat()
    }

    /// Parses the extension at the start of `bytes`. `rest` is the number of bytes left of the
    /// header, of which some may not have arrived. For another program's extension the result is
    /// `None`, with length 0. For an extension of Viaduct with an unknown kind or an invalid body,
    /// the result is `None`, with the extension's length.
    pub(super) fn parse(bytes: &[u8], rest: usize) -> Parsed<Option<Extension>> {
        const OTHER: Parsed<Option<Extension>> = Parsed::Whole(None, 0);
        if rest < HEAD || bytes.first().is_some_and(|kind| *kind != TYPE) {
            return OTHER;
        }
        let Some((&[_, high, low, v, h, kind], body)) = bytes.split_first_chunk::<HEAD>() else {
            return Parsed::Short;
        };
        let len = 3 + usize::from(u16::from_be_bytes([high, low]));
        if [v, h] != ID || !(HEAD..=MAX_LEN.min(rest)).contains(&len) {
            return OTHER;
        }
        let Some(body) = body.get(..len - HEAD) else { return Parsed::Short };
        let extension = match kind {
            ROUTE => route(Reader(body)).map(Extension::Route),
            QUERY => networks(Reader(body)).map(Extension::Query),
            _ => None,
        };
        Parsed::Whole(extension, len)
    }
}

fn address(at: SocketAddr) -> Vec<u8> {
    let port = at.port().to_be_bytes();
    match at.ip().to_canonical() {
        IpAddr::V4(ip) => [&ip.octets()[..], &port].concat(),
        IpAddr::V6(ip) => [&ip.octets()[..], &port].concat(),
    }
}

fn network(of: Prefix) -> Vec<u8> {
    match of.network().addr() {
        IpAddr::V4(ip) => [&[4], &ip.octets()[..3]].concat(),
        IpAddr::V6(ip) => [&[6], &ip.octets()[..6]].concat(),
    }
}

/// Parses a route; `None` if it is invalid.
fn route(mut body: Reader<'_>) -> Option<Onward> {
    let ip: IpAddr = match body.0.len() {
        0 => return Some(Onward::Direct),
        6 => body.array::<4>()?.into(),
        18 => body.array::<16>()?.into(),
        _ => return None,
    };
    let at = SocketAddr::new(ip.to_canonical(), body.u16()?);
    (at.port() != 0 && !at.ip().is_unspecified()).then_some(Onward::Hop(at))
}

/// Parses the networks of a query; `None` if one is invalid.
fn networks(mut body: Reader<'_>) -> Option<Vec<Prefix>> {
    let mut networks = Vec::new();
    while !body.0.is_empty() {
        let ip = match body.array::<1>()? {
            [4] => {
                let [a, b, c] = body.array::<3>()?;
                IpAddr::from(Ipv4Addr::new(a, b, c, 0))
            }
            [6] => {
                let mut octets = [0; 16];
                octets[..6].copy_from_slice(&body.array::<6>()?);
                IpAddr::from(Ipv6Addr::from(octets))
            }
            _ => return None,
        };
        networks.push(Prefix::of(ip));
    }
    (networks.len() <= MAX_NETWORKS).then_some(networks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Parsed<Option<Extension>> {
        Extension::parse(bytes, bytes.len())
    }

    #[test]
    fn the_bytes_are_those_of_the_drawing() {
        let hop = Extension::Route(Onward::Hop("192.0.2.7:7000".parse().unwrap()));
        let head = [0xe4, 0, 9, b'V', b'h', 1];
        assert_eq!(hop.emit(), [&head[..], &[192, 0, 2, 7], &7000_u16.to_be_bytes()].concat());
        assert_eq!(Extension::Route(Onward::Direct).emit(), [0xe4, 0, 3, b'V', b'h', 1]);
        let networks = ["192.0.2.7", "2001:db8:1::9"].map(|ip| Prefix::of(ip.parse().unwrap()));
        let query = Extension::Query(networks.to_vec()).emit();
        assert_eq!(query[..6], [0xe4, 0, 14, b'V', b'h', 2]);
        assert_eq!(query[6..], [4, 192, 0, 2, 6, 0x20, 1, 0x0d, 0xb8, 0, 1]);
    }

    #[test]
    fn foreign_extensions_and_invalid_routes_are_ignored() {
        assert_eq!(parse(&[0xe4, 0, 3, b'V', b'x', 1]), Parsed::Whole(None, 0));
        assert_eq!(parse(&[2, 0, 3, b'V', b'h', 1]), Parsed::Whole(None, 0));
        assert_eq!(parse(&[0xe4, 0, 4, b'V', b'h', 1]), Parsed::Whole(None, 0), "beyond the rest");
        assert_eq!(parse(&[0xe4, 0, 3, b'V', b'h', 9]), Parsed::Whole(None, 6), "a later kind");
        let nowhere = [0xe4, 0, 9, b'V', b'h', 1, 0, 0, 0, 0, 0, 80];
        assert_eq!(parse(&nowhere), Parsed::Whole(None, 12));
    }

    #[test]
    fn the_longest_query_is_read() {
        let networks = vec![Prefix::of("2001:db8::1".parse().unwrap()); MAX_NETWORKS];
        let query = Extension::Query(networks);
        let bytes = query.emit();
        assert_eq!(parse(&bytes), Parsed::Whole(Some(query), bytes.len()));
    }

    proptest! {
        #[test]
        fn extensions_are_parsed_as_emitted_and_parts_are_too_short(
            (ip, port) in (any::<IpAddr>(), 1..=u16::MAX),
            hosts in prop::collection::vec(any::<IpAddr>(), 0..9),
        ) {
            let hop = SocketAddr::new(ip.to_canonical(), port);
            let networks = hosts.into_iter().map(Prefix::of).collect();
            prop_assume!(!hop.ip().is_unspecified());
            for extension in [
                Extension::Route(Onward::Direct),
                Extension::Route(Onward::Hop(hop)),
                Extension::Query(networks),
            ] {
                let bytes = extension.emit();
                for len in 0..bytes.len() {
                    let part = Extension::parse(&bytes[..len], bytes.len());
                    prop_assert_eq!(part, Parsed::Short);
                }
                prop_assert_eq!(parse(&bytes), Parsed::Whole(Some(extension), bytes.len()));
            }
        }
    }
}
