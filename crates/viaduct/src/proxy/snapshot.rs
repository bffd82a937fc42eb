//! What a proxy says of itself: the object of its status socket.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::stats::ProxyStats;
use crate::access_log::AccessLogStats;

/// The status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Its name.
    pub proxy: String,
    /// Its version.
    pub version: String,
    /// Seconds that it has run.
    pub uptime: f64,
    /// Where connections arrive.
    pub listen: Vec<SocketAddr>,
    /// Where links of tunnels arrive, if they do.
    #[serde(default)]
    pub tunnel_listen: Option<SocketAddr>,
    /// Where they go.
    pub to: String,
    /// Flows at once, at most.
    pub most: u64,
    /// Its loop does not answer: the counters are not there.
    pub hangs: bool,
    /// How often rules that lead clients here were taken away and put back.
    #[serde(default)]
    pub restored: u64,
    /// They are missing: clients pass by.
    #[serde(default)]
    pub missing: bool,
    /// What its handlers have come to, each its name and some lines.
    #[serde(default)]
    pub handlers: Vec<(String, String)>,
    /// Lines of its access log, if it has one.
    #[serde(default)]
    pub access_log: Option<AccessLogStats>,
    /// What it has counted.
    pub counters: ProxyStats,
}
