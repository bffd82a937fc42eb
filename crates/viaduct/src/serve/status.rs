//! Counters of a file server, as JSON on its status socket and for Prometheus.

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
    /// Source of the replicas' root secrets, if there is one.
    #[serde(default)]
    pub replicas: Option<ReplicasStatus>,
}

/// Source of the root secrets from which replicas derive the secret of each period (`--replicas`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicasStatus {
    /// The file, or the key in etcd.
    pub source: String,
    /// Reason why the current content of the source cannot be used; the last valid content stays in
    /// force. `None` if the current content is valid.
    pub fault: Option<String>,
}

/// Counters of TCP.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TcpStatus {
    /// Connections accepted so far.
    pub connections: u64,
    /// Open connections.
    pub open: u64,
    /// Requests so far.
    pub requests: u64,
    /// Connections closed because their source had reached its limit.
    #[serde(default)]
    pub crowded: u64,
    /// Connections ended because their client was slower than `--min-rate`.
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
    /// Packets that are not valid messages: malformed, altered on the path, or not for this server.
    pub packets_refused: u64,
    /// Connections opened.
    pub opened: u64,
    /// Handshakes of encrypted connections.
    #[serde(default)]
    pub handshakes: u64,
    /// Requests that were encrypted.
    #[serde(default)]
    pub decrypted: u64,
    /// Requests answered.
    pub answered: u64,
    /// Packets sent in answer.
    pub packets: u64,
    /// Bytes of data in the packets sent.
    pub bytes: u64,
    /// Requests that reported a loss.
    pub recoveries: u64,
    /// Restarts after a timeout.
    pub timeouts: u64,
    /// Restarts after a silence.
    pub resumed: u64,
    /// Requests from another address or port than the continuation's.
    pub moved: u64,
    /// Requests whose epoch could not be continued, because the secret of its nonces was removed.
    #[serde(default)]
    pub renewed: u64,
    /// Requests refused, by reason.
    pub refused: Vec<(String, u64)>,
    /// Size of the replay windows in bytes, which is fixed.
    pub replay_bytes: u64,
    /// Time that the replay window covers, in seconds; the shortest of several threads.
    pub replay_seconds: f64,
    /// Number of times that a slice of the replay window was full before the end of its period.
    pub replay_turned_early: u64,
    /// Lookups of files that were already open.
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
            renewed: server.renewed,
            refused: refused.map(|(why, count)| (why.to_owned(), count)).to_vec(),
            replay_bytes: replay.memory() as u64,
            replay_seconds: replay.horizon(now).as_secs_f64(),
            replay_turned_early: replay.turned_early(),
            file_hits: files.hits,
            file_misses: files.misses,
        }
    }

    /// Sum of the counters of two threads.
    pub(super) fn and(mut self, mut other: TricklesStatus) -> TricklesStatus {
        self.replay_seconds = self.replay_seconds.min(other.replay_seconds);
        for (here, there) in self.sums().zip(other.sums()) {
            *here += *there;
        }
        self
    }

    /// Counters that are summed over threads.
    fn sums(&mut self) -> impl Iterator<Item = &mut u64> {
        let refused = self.refused.iter_mut().map(|(_, count)| count);
        let sums = [
            &mut self.messages,
            &mut self.packets_refused,
            &mut self.opened,
            &mut self.handshakes,
            &mut self.decrypted,
            &mut self.answered,
            &mut self.packets,
            &mut self.bytes,
            &mut self.recoveries,
            &mut self.timeouts,
            &mut self.resumed,
            &mut self.moved,
            &mut self.renewed,
            &mut self.replay_bytes,
            &mut self.replay_turned_early,
            &mut self.file_hits,
            &mut self.file_misses,
        ];
        sums.into_iter().chain(refused)
    }
}

/// Adds metric families with one sample each: `name kind help value;`.
macro_rules! families {
    ($out:ident, $prefix:literal: $($name:literal $kind:ident $help:literal $value:expr;)*) => {
        $(
            $out.family(concat!($prefix, $name), Kind::$kind, $help);
            $out.sample(&[], $value);
        )*
    };
}

impl TcpStatus {
    fn expose(&self, out: &mut Exposition) {
        families! { out, "viaduct_serve_":
            "tcp_connections_total" Counter "Connections over TCP." self.connections;
            "tcp_open" Gauge "Open connections over TCP." self.open;
            "tcp_requests_total" Counter "Requests over TCP." self.requests;
            "page_bytes" Gauge "Bytes of directory pages in memory." self.page_bytes;
            "tcp_crowded_total" Counter "Connections closed: their source had reached its limit."
                self.crowded;
            "tcp_slow_total" Counter "Connections ended: their client was too slow." self.slow;
            "pages_refused_total" Counter "Directory pages refused for lack of memory."
                self.pages_refused;
        }
    }
}

impl TricklesStatus {
    fn expose(&self, out: &mut Exposition) {
        families! { out, "viaduct_serve_trickles_":
            "messages_total" Counter "Messages received." self.messages;
            "packets_refused_total" Counter "Packets that are not valid messages."
                self.packets_refused;
            "opened_total" Counter "Connections opened." self.opened;
            "answered_total" Counter "Requests answered." self.answered;
            "handshakes_total" Counter "Handshakes of encrypted connections." self.handshakes;
            "decrypted_total" Counter "Requests that were encrypted." self.decrypted;
            "packets_total" Counter "Packets sent in answer." self.packets;
            "bytes_total" Counter "Bytes of data in the packets sent." self.bytes;
            "recoveries_total" Counter "Requests that reported a loss." self.recoveries;
            "timeouts_total" Counter "Restarts after a timeout." self.timeouts;
            "resumed_total" Counter "Restarts after a silence." self.resumed;
            "moved_total" Counter "Requests from another address or port than before." self.moved;
            "renewed_total" Counter "Requests whose nonces' secret was removed." self.renewed;
            "replay_turned_early_total" Counter "Slices of the replay window that were full early."
                self.replay_turned_early;
            "file_hits_total" Counter "Lookups of files that were already open." self.file_hits;
            "file_misses_total" Counter "Lookups of files that had to be opened." self.file_misses;
            "replay_bytes" Gauge "Memory of the replay window." self.replay_bytes;
            "replay_seconds" Gauge "Time that the replay window covers." self.replay_seconds;
        }
        out.family("viaduct_serve_trickles_refused_total", Kind::Counter, "Requests refused.");
        for (why, count) in &self.refused {
            out.sample(&[("reason", why)], count);
        }
    }
}

impl ServeStatus {
    /// Metrics for Prometheus.
    pub fn exposition(&self) -> String {
        let mut out = Exposition::default();
        self.access_log.iter().for_each(|log| log.expose(&mut out));
        self.tcp.expose(&mut out);
        self.trickles.iter().for_each(|trickles| trickles.expose(&mut out));
        if let Some(replicas) = &self.replicas {
            let help = "1 while the source of the replicas' secrets cannot be used.";
            out.family("viaduct_trouble", Kind::Gauge, help);
            out.sample(&[], u8::from(replicas.fault.is_some()));
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faulty_source_of_secrets_is_a_trouble() {
        let page = |fault: Option<&str>| {
            let replicas =
                ReplicasStatus { source: "etcd".to_owned(), fault: fault.map(str::to_owned) };
            ServeStatus { replicas: Some(replicas), ..ServeStatus::default() }.exposition()
        };
        assert!(page(None).contains("\nviaduct_trouble 0\n"), "{}", page(None));
        assert!(page(Some("gone")).contains("\nviaduct_trouble 1\n"), "{}", page(Some("gone")));
        assert!(!ServeStatus::default().exposition().contains("viaduct_trouble"));
    }
}
