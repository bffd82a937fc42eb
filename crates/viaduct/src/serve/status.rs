//! Counters of a file server: as JSON on its status socket, and for Prometheus.

use serde::{Deserialize, Serialize};
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::api::Endpoint;
use viaduct_proto::trickles::crypt::ServerCrypt;
use viaduct_trickles::PortStats;

use super::file_cache::FileCacheStats;
use crate::access_log::AccessLogStats;
use crate::metrics::{Exposition, Kind};

/// Counters of a server since its start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServeStatus {
    /// Directory that is served.
    pub serving: String,
    /// Name of the status socket, `serve-PORT`.
    #[serde(default)]
    pub name: String,
    /// Version of the program.
    #[serde(default)]
    pub version: String,
    /// Seconds since the start.
    #[serde(default)]
    pub uptime: f64,
    /// Counters of TCP.
    pub tcp: TcpStatus,
    /// Counters of Trickles, if it is served.
    pub trickles: Option<TricklesStatus>,
    /// Lines of the access log, if there is one.
    #[serde(default)]
    pub access_log: Option<AccessLogStats>,
}

/// Counters of TCP.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TcpStatus {
    /// Connections so far.
    pub connections: u64,
    /// Connections now.
    pub open: u64,
    /// Requests so far.
    pub requests: u64,
    /// Connections closed because their source had reached its limit.
    #[serde(default)]
    pub crowded: u64,
    /// Connections ended because their client took less than `--min-rate`.
    #[serde(default)]
    pub slow: u64,
    /// Bytes of directory pages in memory.
    #[serde(default)]
    pub page_bytes: u64,
    /// Requests for directory pages refused because the pages in memory had reached their limit.
    #[serde(default)]
    pub pages_refused: u64,
}

/// Counters of Trickles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TricklesStatus {
    /// Messages received.
    pub messages: u64,
    /// Packets that are not valid messages: malformed, altered on the way, or not for this
    /// server.
    pub packets_refused: u64,
    /// Connections opened.
    pub opened: u64,
    /// Handshakes of clients that encrypt, which count among the connections opened or instead
    /// of them.
    #[serde(default)]
    pub handshakes: u64,
    /// Requests that were encrypted.
    #[serde(default)]
    pub decrypted: u64,
    /// Requests answered.
    pub answered: u64,
    /// Packets sent in answer.
    pub packets: u64,
    /// Bytes of data in these packets.
    pub bytes: u64,
    /// Requests that reported a loss.
    pub recoveries: u64,
    /// Restarts after a timeout.
    pub timeouts: u64,
    /// Restarts after a silence.
    pub resumed: u64,
    /// Clients that came from another address.
    pub moved: u64,
    /// Requests refused, by reason.
    pub refused: Vec<(String, u64)>,
    /// Size of the replay windows in bytes, which is fixed.
    pub replay_bytes: u64,
    /// Seconds that the replay window reaches back; the shortest of several threads.
    pub replay_seconds: f64,
    /// Number of times that a part of the replay window was full early.
    pub replay_turned_early: u64,
    /// Lookups of files that were open; see `file_misses` for the others.
    pub file_hits: u64,
    /// Lookups of files that had to be opened.
    pub file_misses: u64,
}

impl TricklesStatus {
    pub(super) fn new(
        endpoint: &Endpoint,
        port: &PortStats,
        files: FileCacheStats,
        now: Instant,
    ) -> TricklesStatus {
        let (server, api, replay) =
            (endpoint.server().stats(), endpoint.stats(), endpoint.server().replay());
        let crypt = endpoint.crypt().map(ServerCrypt::stats).unwrap_or_default();
        let refused = [
            ("malformed", server.malformed),
            ("invalid", server.invalid),
            ("stale", server.stale),
            ("replayed", server.replayed),
            ("unproven", server.unproven),
            ("inconsistent", server.inconsistent),
            ("greedy", server.greedy),
            ("invented", server.invented),
            ("unknown", api.unknown),
            ("overflowed", api.overflowed),
            ("outlived", api.outlived),
            ("altered", crypt.altered),
            ("in clear", crypt.clear),
            ("busy", crypt.busy),
        ];
        TricklesStatus {
            messages: port.received,
            packets_refused: port.refused.total(),
            opened: server.opened,
            handshakes: crypt.handshakes,
            decrypted: crypt.opened,
            answered: api.sent,
            packets: api.packets,
            bytes: api.bytes,
            recoveries: server.recoveries,
            timeouts: server.timeouts,
            resumed: server.resumed,
            moved: server.moved,
            refused: refused.map(|(why, count)| (why.to_owned(), count)).to_vec(),
            replay_bytes: replay.memory() as u64,
            replay_seconds: replay.horizon(now).as_secs_f64(),
            replay_turned_early: replay.turned_early(),
            file_hits: files.hits,
            file_misses: files.misses,
        }
    }

    /// Sum of the counters of two threads.
    pub(super) fn and(self, other: TricklesStatus) -> TricklesStatus {
        let both = self.refused.into_iter().zip(other.refused);
        TricklesStatus {
            messages: self.messages + other.messages,
            packets_refused: self.packets_refused + other.packets_refused,
            opened: self.opened + other.opened,
            handshakes: self.handshakes + other.handshakes,
            decrypted: self.decrypted + other.decrypted,
            answered: self.answered + other.answered,
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            recoveries: self.recoveries + other.recoveries,
            timeouts: self.timeouts + other.timeouts,
            resumed: self.resumed + other.resumed,
            moved: self.moved + other.moved,
            refused: both.map(|((why, here), (_, there))| (why, here + there)).collect(),
            replay_bytes: self.replay_bytes + other.replay_bytes,
            replay_seconds: self.replay_seconds.min(other.replay_seconds),
            replay_turned_early: self.replay_turned_early + other.replay_turned_early,
            file_hits: self.file_hits + other.file_hits,
            file_misses: self.file_misses + other.file_misses,
        }
    }
}

impl TcpStatus {
    /// Adds the metrics of TCP.
    fn expose(&self, out: &mut Exposition) {
        for (name, kind, help, value) in [
            (
                "viaduct_serve_tcp_connections_total",
                Kind::Counter,
                "Connections over TCP.",
                self.connections,
            ),
            ("viaduct_serve_tcp_open", Kind::Gauge, "Connections over TCP now.", self.open),
            (
                "viaduct_serve_tcp_requests_total",
                Kind::Counter,
                "Requests over TCP.",
                self.requests,
            ),
            (
                "viaduct_serve_page_bytes",
                Kind::Gauge,
                "Bytes of directory pages in memory.",
                self.page_bytes,
            ),
        ] {
            out.family(name, kind, help);
            out.sample(&[], value);
        }
        for (name, help, value) in [
            (
                "viaduct_serve_tcp_crowded_total",
                "Connections closed: their source had reached its limit.",
                self.crowded,
            ),
            (
                "viaduct_serve_tcp_slow_total",
                "Connections ended: their client was too slow.",
                self.slow,
            ),
            (
                "viaduct_serve_pages_refused_total",
                "Directory pages refused for lack of memory.",
                self.pages_refused,
            ),
        ] {
            out.family(name, Kind::Counter, help);
            out.sample(&[], value);
        }
    }
}

impl ServeStatus {
    /// Metrics for Prometheus.
    pub(super) fn exposition(&self) -> String {
        let mut out = Exposition::default();
        self.access_log.iter().for_each(|log| log.expose(&mut out));
        self.tcp.expose(&mut out);
        let Some(trickles) = &self.trickles else { return out.finish() };
        let mut one = |name, kind, help: &str, value: f64| {
            out.family(name, kind, help);
            out.sample(&[], value);
        };
        for (name, help, value) in [
            ("viaduct_serve_trickles_messages_total", "Messages received.", trickles.messages),
            (
                "viaduct_serve_trickles_packets_refused_total",
                "Packets that are not valid messages.",
                trickles.packets_refused,
            ),
            ("viaduct_serve_trickles_opened_total", "Connections opened.", trickles.opened),
            ("viaduct_serve_trickles_answered_total", "Requests answered.", trickles.answered),
            (
                "viaduct_serve_trickles_handshakes_total",
                "Handshakes of clients that encrypt.",
                trickles.handshakes,
            ),
            (
                "viaduct_serve_trickles_decrypted_total",
                "Requests that were encrypted.",
                trickles.decrypted,
            ),
            ("viaduct_serve_trickles_packets_total", "Packets sent in answer.", trickles.packets),
            (
                "viaduct_serve_trickles_bytes_total",
                "Bytes of data in these packets.",
                trickles.bytes,
            ),
            (
                "viaduct_serve_trickles_recoveries_total",
                "Requests that reported a loss.",
                trickles.recoveries,
            ),
            (
                "viaduct_serve_trickles_timeouts_total",
                "Restarts after a timeout.",
                trickles.timeouts,
            ),
            ("viaduct_serve_trickles_resumed_total", "Restarts after a silence.", trickles.resumed),
            (
                "viaduct_serve_trickles_moved_total",
                "Clients that came from another address.",
                trickles.moved,
            ),
            (
                "viaduct_serve_trickles_replay_turned_early_total",
                "Parts of the replay window that were full early.",
                trickles.replay_turned_early,
            ),
            (
                "viaduct_serve_trickles_file_hits_total",
                "Lookups of files that were open.",
                trickles.file_hits,
            ),
            (
                "viaduct_serve_trickles_file_misses_total",
                "Lookups of files that had to be opened.",
                trickles.file_misses,
            ),
        ] {
            one(name, Kind::Counter, help, value as f64);
        }
        one(
            "viaduct_serve_trickles_replay_bytes",
            Kind::Gauge,
            "Memory of the replay window.",
            trickles.replay_bytes as f64,
        );
        one(
            "viaduct_serve_trickles_replay_seconds",
            Kind::Gauge,
            "Time that the replay window reaches back.",
            trickles.replay_seconds,
        );
        out.family("viaduct_serve_trickles_refused_total", Kind::Counter, "Requests refused.");
        for (why, count) in &trickles.refused {
            out.sample(&[("reason", why)], count);
        }
        out.finish()
    }
}
