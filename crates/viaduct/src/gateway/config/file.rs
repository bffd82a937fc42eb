//! Content of `site.toml` as written: its tables and keys, their defaults, and the code that a
//! `[peer.fec]` table describes.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::DnsName;
use serde::{Deserialize, Deserializer, de};
use viaduct_proto::fec::{Code, layered, reed_solomon, window};
use viaduct_proto::repair::control::Limits;
use viaduct_proto::repair::{Coding, Settings, Transport, TransportChoice};

use crate::settings::{OptionsTable, PolicyTable};
use crate::value_parser::table::{PacketMemory, Ports, Rate, ServerName, array, one, optional};

use super::values::{
    Address, Count, Dscp, Endpoint, Lanes, PacketSize, Prefix, Protocol, Share, Span, Workers,
};

/// Content of `site.toml` as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) site: SiteTable,
    #[serde(default)]
    pub(super) metrics: MetricsTable,
    #[serde(default)]
    pub(super) cache: CacheTable,
    /// Options of the proxy of split mode, parsed later by [`crate::settings`].
    pub(super) split: Option<OptionsTable>,
    #[serde(default)]
    pub(super) policy: Vec<PolicyTable>,
    #[serde(default)]
    pub(super) peer: Vec<PeerTable>,
}

/// `[site]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [site]")]
pub(super) struct SiteTable {
    pub(super) name: String,
    pub(super) key: PathBuf,
    pub(super) prefixes: Vec<Prefix>,
    pub(super) wan: WanKey,
    pub(super) listen: Option<Address>,
    #[serde(default)]
    pub(super) class: Vec<PathClassTable>,
    pub(super) tls_listen: Option<Address>,
    pub(super) host_mtu: Option<PacketSize>,
    #[serde(default)]
    pub(super) workers: Workers,
    pub(super) lanes: Option<Lanes>,
    #[serde(default = "default_memory", deserialize_with = "one::<PacketMemory, _>")]
    pub(super) memory: usize,
    #[serde(default = "default_run_dir")]
    pub(super) run_dir: PathBuf,
    pub(super) route_table: Option<u32>,
    #[serde(default)]
    pub(super) member: Vec<MemberTable>,
}

/// `[[site.member]]` or `[[peer.member]]`: one gateway of a site's rack.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[site.member]] or [[peer.member]]")]
pub(super) struct MemberTable {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) weight: Option<Count>,
    #[serde(default)]
    pub(super) drain: bool,
    #[serde(default)]
    pub(super) slices: Vec<Prefix>,
}

/// `wan = "eth0"`, or a table `[[site.wan]]` for each of two.
#[derive(Clone, Debug)]
pub(super) enum WanKey {
    One(String),
    Several(Vec<WanTable>),
}

/// `[[site.wan]]`: one of two WANs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[site.wan]]")]
pub(super) struct WanTable {
    pub(super) name: String,
    pub(super) interface: String,
    pub(super) listen: Address,
    #[serde(default)]
    pub(super) via: Vec<IpAddr>,
}

impl<'de> Deserialize<'de> for WanKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = |table: toml::Value| {
            let wrong = |error: toml::de::Error| {
                de::Error::custom(format!("[[site.wan]]: {}", error.message()))
            };
            table.try_into::<WanTable>().map_err(wrong)
        };
        match toml::Value::deserialize(from)? {
            toml::Value::String(interface) => Ok(WanKey::One(interface)),
            toml::Value::Array(tables) => {
                tables.into_iter().map(table).collect::<Result<_, _>>().map(WanKey::Several)
            }
            other => Err(de::Error::custom(format!(
                "{other}: the name of an interface, or tables [[site.wan]], are expected"
            ))),
        }
    }
}

/// `[[site.class]]` table: packets that prefer one of two WANs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[site.class]]")]
pub(super) struct PathClassTable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) dscp: Vec<Dscp>,
    #[serde(default)]
    pub(super) prefixes: Vec<Prefix>,
    #[serde(default, deserialize_with = "array::<Ports, _>")]
    pub(super) ports: Vec<RangeInclusive<u16>>,
    #[serde(default)]
    pub(super) protocols: Vec<Protocol>,
    pub(super) wan: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [metrics]")]
pub(super) struct MetricsTable {
    pub(super) listen: Option<Address>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [cache]")]
pub(super) struct CacheTable {
    pub(super) listen: Option<Address>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[peer]]")]
pub(super) struct PeerTable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) key: String,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) endpoints: Option<Vec<Address>>,
    #[serde(default)]
    pub(super) member: Vec<MemberTable>,
    #[serde(default)]
    pub(super) transport: TransportKey,
    pub(super) tls_endpoint: Option<Address>,
    #[serde(default, deserialize_with = "optional::<ServerName, _>")]
    pub(super) server_name: Option<DnsName<'static>>,
    pub(super) prefixes: Vec<Prefix>,
    #[serde(default, deserialize_with = "optional::<Rate, _>")]
    pub(super) rate: Option<u64>,
    #[serde(default)]
    pub(super) mode: Mode,
    #[serde(default)]
    pub(super) fec: FecTable,
    #[serde(default)]
    pub(super) class: Vec<ClassTable>,
    #[serde(default = "default_rekey")]
    pub(super) rekey_after: Span,
}

/// Transports of the datagrams between the two gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TransportKey {
    #[default]
    Auto,
    Udp,
    FakeTcp,
    /// No datagrams; split connections go through a tunnel over TLS.
    Tls,
}

impl From<TransportKey> for TransportChoice {
    fn from(key: TransportKey) -> TransportChoice {
        match key {
            TransportKey::Auto => TransportChoice::Auto,
            TransportKey::Udp => TransportChoice::Only(Transport::Udp),
            TransportKey::FakeTcp => TransportChoice::Only(Transport::FakeTcp),
            TransportKey::Tls => TransportChoice::None,
        }
    }
}

/// Handling of TCP connections to and from a peer (Maelstrom, 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Mode {
    /// Connections are forwarded unaltered.
    #[default]
    EndToEnd,
    /// The gateways terminate connections, and continue over connections of their own.
    Split,
}

/// The `[peer.fec]` table. Every key is optional; `code` determines which other keys are allowed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table [peer.fec]")]
pub(super) struct FecTable {
    pub(super) code: Option<String>,
    pub(super) r: Option<Count>,
    pub(super) c: Option<Count>,
    pub(super) interleave: Option<Interleave>,
    pub(super) delay_xors: Option<bool>,
    pub(super) window: Option<Count>,
    pub(super) flush_after: Option<Span>,
    pub(super) max_overhead: Option<Share>,
    #[serde(default, deserialize_with = "optional::<Rate, _>")]
    pub(super) max_rate: Option<u64>,
    pub(super) acks: Option<bool>,
    pub(super) path: Option<PathKey>,
    #[serde(default)]
    pub(super) lower_mtu: bool,
}

/// Path of repairs, if there are two WANs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PathKey {
    #[default]
    Auto,
    Same,
    Other,
}

/// `[[peer.class]]` table: a selection of packets, and their protection. An absent condition
/// matches all packets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[peer.class]]")]
pub(super) struct ClassTable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) dscp: Vec<Dscp>,
    #[serde(default)]
    pub(super) prefixes: Vec<Prefix>,
    #[serde(default, deserialize_with = "array::<Ports, _>")]
    pub(super) ports: Vec<RangeInclusive<u16>>,
    #[serde(default)]
    pub(super) protocols: Vec<Protocol>,
    pub(super) repairs: RepairsKey,
    pub(super) deadline: Option<Span>,
    pub(super) max_overhead: Option<Share>,
}

/// Protection of the packets of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RepairsKey {
    Window,
    Copies,
    /// A copy of each packet, sent immediately on the other path.
    Duplicate,
    None,
}

/// `interleave = [1, 19, 41]` for layers, `interleave = 20` for blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "1 to 65535, or a list of such numbers, is expected: 20 or [1, 19, 41]"
)]
pub(super) enum Interleave {
    One(u16),
    Layers(Vec<u16>),
}

/// Default flush timeout: the same as UDPspeeder's, and too short for users to notice.
pub(super) const DEFAULT_FLUSH: Duration = Duration::from_millis(8);

/// Default maximum of repairs per packet: enough for a burst of 30 losses in 100 packets.
const DEFAULT_MAX_OVERHEAD: f64 = 0.3;

fn default_memory() -> usize {
    48 << 20
}

fn default_run_dir() -> PathBuf {
    crate::run_dir::default_run_dir()
}

fn default_rekey() -> Span {
    Span(Duration::from_secs(120))
}

impl FecTable {
    /// Coding that the table describes, with unchecked parameters; `auto` if `code` is missing.
    pub(super) fn coding(&self) -> Result<Option<Coding>, String> {
        let name = self.code.as_deref().unwrap_or("auto");
        self.reject_inapplicable_keys(name)?;
        Ok(Some(match name {
            "none" => return Ok(None),
            "auto" => Coding::Auto(Settings {
                limits: Limits {
                    max_overhead: self.max_overhead.map_or(DEFAULT_MAX_OVERHEAD, |share| share.0),
                    max_rate: self.max_rate.map(|rate| rate as f64 / 8.0),
                },
                classes: Vec::new(),
                acks: self.acks.unwrap_or(false),
            }),
            "observe" => Coding::Observe,
            _ => Coding::Fixed(self.code(name)?),
        }))
    }

    fn code(&self, name: &str) -> Result<Code, String> {
        match name {
            "layered" => self.layered(),
            "reed-solomon" => Ok(Code::ReedSolomon(reed_solomon::Parameters {
                r: self.r.map_or(8, |r| r.0),
                c: self.c.map_or(3, |c| c.0),
                interleave: match self.interleave {
                    None => 1,
                    Some(Interleave::One(i)) => i,
                    Some(Interleave::Layers(_)) => {
                        return Err("interleave is a list; reed-solomon has one number".to_owned());
                    }
                },
            })),
            "window" => Ok(Code::Window(window::Parameters {
                window: self.window.map_or(240, |w| w.0.into()),
                packets: self.r.map_or(10, |r| r.0.into()),
                repairs: self.c.map_or(3, |c| c.0.into()),
            })),
            other => Err(format!(
                "code {other:?} is unknown; one of auto, observe, layered, reed-solomon, window, \
                    none is \
                 expected"
            )),
        }
    }

    fn layered(&self) -> Result<Code, String> {
        let interleaves = match &self.interleave {
            None if self.c.is_none_or(|c| c.0 == 3) => vec![1, 19, 41],
            None => return Err("interleave is missing; list c numbers, such as [1, 19]".to_owned()),
            Some(Interleave::Layers(list)) => list.clone(),
            Some(Interleave::One(one)) => vec![*one],
        };
        if let Some(Count(c)) = self.c
            && usize::from(c) != interleaves.len()
        {
            return Err(format!(
                "c is {c} but interleave lists {} numbers; one per layer is expected",
                interleaves.len()
            ));
        }
        Ok(Code::Layered(layered::Parameters {
            r: self.r.map_or(8, |r| r.0),
            interleaves,
            delay_xors: self.delay_xors.unwrap_or(false),
        }))
    }

    fn reject_inapplicable_keys(&self, code: &str) -> Result<(), String> {
        let keys = [
            ("r", self.r.is_some(), &["layered", "reed-solomon", "window"][..]),
            ("c", self.c.is_some(), &["layered", "reed-solomon", "window"]),
            ("interleave", self.interleave.is_some(), &["layered", "reed-solomon"]),
            ("delay_xors", self.delay_xors.is_some(), &["layered"]),
            ("window", self.window.is_some(), &["window"]),
            ("max_overhead", self.max_overhead.is_some(), &["auto"]),
            ("max_rate", self.max_rate.is_some(), &["auto"]),
            ("acks", self.acks.is_some(), &["auto"]),
        ];
        for (key, given, fits) in keys {
            if given && !fits.contains(&code) {
                return Err(format!(
                    "{key} has no meaning for code {code:?}; it belongs to {}",
                    fits.join(", ")
                ));
            }
        }
        Ok(())
    }
}
