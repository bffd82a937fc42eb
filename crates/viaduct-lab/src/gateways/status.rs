//! Part of a gateway's status that experiments and tests read.

use serde::Deserialize;
use viaduct_proto::fake_tcp::FakeTcpStats;
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::status::{PeerStatus, TrialStatus};

/// Status of a gateway.
#[derive(Clone, Debug, Deserialize)]
pub struct GatewayStatus {
    /// Process ID.
    #[serde(default)]
    pub pid: u32,
    /// State of each peer.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// Maximum length of packets to each peer; `None` if it need not be lowered for repairs to fit.
    pub kept_below: Vec<Option<usize>>,
    /// Reason why repairs do not fit the WAN, if any.
    pub trouble: Option<String>,
    /// Number of packet threads.
    #[serde(default)]
    pub workers: usize,
    /// Packet threads that have panicked.
    #[serde(default)]
    pub workers_dead: usize,
    counters: Counters,
}

#[derive(Clone, Debug, Deserialize)]
struct Counters {
    peers: Vec<(String, PeerStats)>,
    shell: ShellCounters,
    #[serde(default)]
    fake_tcp: FakeTcpStats,
    memory: usize,
}

/// Counters of the I/O shell around a gateway's packet plane.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ShellCounters {
    /// Outgoing packets dropped because the tap was full.
    pub tap_drops_out: u64,
    /// Outgoing packets whose copies were processed too late.
    pub tap_late_out: u64,
    /// Incoming packets dropped because the tap was full.
    pub tap_drops_in: u64,
    /// Copies longer than the tap's snapshot length.
    pub truncated: u64,
    /// Copies whose checksum was missing.
    pub unfinished: u64,
    /// Datagrams that the kernel rejected.
    pub send_failed: u64,
    /// Recovered packets delivered to the kernel.
    pub injected: u64,
    /// Packets dropped by the WAN interface's own queue.
    pub wan_drops: u64,
}

impl GatewayStatus {
    /// Returns the counters of the peer `name`.
    pub fn counters_of(&self, name: &str) -> PeerStats {
        let found = self.counters.peers.iter().find(|(other, _)| other == name);
        found.map(|(_, stats)| *stats).unwrap_or_default()
    }

    /// Returns the counters of the only peer.
    pub fn peer(&self) -> PeerStats {
        self.counters.peers.first().map(|(_, stats)| *stats).unwrap_or_default()
    }

    /// Returns the prediction for the code named `code` towards the only peer.
    pub fn trial(&self, code: &str) -> Option<&TrialStatus> {
        self.peers.first()?.link.as_ref()?.trials.iter().find(|trial| trial.code == code)
    }

    /// Returns the counters of the shell.
    pub fn shell(&self) -> ShellCounters {
        self.counters.shell
    }

    /// Returns the counters of fake TCP.
    pub fn fake_tcp(&self) -> FakeTcpStats {
        self.counters.fake_tcp
    }

    /// Returns the bytes held by the packet plane.
    pub fn memory(&self) -> usize {
        self.counters.memory
    }
}
