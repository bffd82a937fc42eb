//! Status of a proxy, as its status socket sends it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use viaduct_proto::placement::status::AutoStatus;

use super::next_hops::HopStatus;
use super::stats::ProxyStats;
use crate::access_log::AccessLogStats;

/// Status of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Name of the proxy.
    pub proxy: String,
    /// Version of the program.
    pub version: String,
    /// Uptime in seconds.
    pub uptime: f64,
    /// Listening addresses.
    pub listen: Vec<SocketAddr>,
    /// Listening address for links of tunnels, if any.
    #[serde(default)]
    pub tunnel_listen: Option<SocketAddr>,
    /// Destination of flows, as text.
    pub to: String,
    /// Flow limit.
    pub most: u64,
    /// True if an event loop does not answer; its counters are those of its last answer.
    pub hangs: bool,
    /// Number of times that removed interception rules were restored.
    #[serde(default)]
    pub restored: u64,
    /// True if interception rules are missing, so that connections bypass the proxy.
    #[serde(default)]
    pub missing: bool,
    /// Next hops that are checked.
    #[serde(default)]
    pub next_hops: Vec<HopStatus>,
    /// Choice of hops by measurements, if a policy has one.
    #[serde(default)]
    pub auto: Option<AutoStatus>,
    /// State of the handlers: the name of each, and some lines of text.
    #[serde(default)]
    pub handlers: Vec<(String, String)>,
    /// Line counts of the access log, if there is one.
    #[serde(default)]
    pub access_log: Option<AccessLogStats>,
    /// Counters.
    pub counters: ProxyStats,
}

impl ProxyStatus {
    /// Returns whether this is a master: it has no listeners, because its programs join it.
    pub fn is_master(&self) -> bool {
        self.listen.is_empty() && self.tunnel_listen.is_none()
    }

    /// Problem of the proxy, as its health check reports it.
    pub fn trouble(&self) -> Option<String> {
        let bypassed = "rules of nftables or ip rule are missing: connections bypass the proxy";
        match (self.hangs, self.missing) {
            (true, _) => Some("the proxy's loop does not answer".to_owned()),
            (_, true) => Some(bypassed.to_owned()),
            _ => self.counters.trouble(),
        }
    }
}
