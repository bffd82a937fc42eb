//! Timeouts of engines that carry the flows of wrapped programs.

use std::time::Duration;

use viaduct_proto::flow::DEFAULT_LIMIT;

use crate::engine::commands::Limits;
use crate::engine::config::TRICKLES_BUFFER;
use crate::engine::liveness::DeadPeerLimits;
use crate::value_parser::{dead_after, spin, wait};

/// Time within which flows of ended programs must complete, equal to the kernel's limit for
/// connections whose program has ended.
const DRAIN: Duration = Duration::from_secs(60);

/// Timeouts among the options of `viaduct run` and `viaduct master`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[cfg_attr(test, derive(Default))]
pub struct ProgramTimes {
    /// Time within which an inbound connection to a program must complete the handlers' handshake
    #[arg(long, value_name = "TIME", value_parser = wait, default_value = "60s")]
    arrival_wait: Duration,
    /// Time for which a far end may leave data, probes and keepalives unacknowledged before its
    /// flow is reset; 0s: the kernel's limits
    #[arg(long, value_name = "TIME", value_parser = dead_after, default_value = "60s")]
    dead_after: Duration,
    /// Time for which the master polls for events before it sleeps, while polls often find events;
    /// 0s: never
    #[arg(long, value_name = "TIME", value_parser = spin, default_value = "100us")]
    spin: Duration,
}

impl ProgramTimes {
    /// Returns the limits of an engine for wrapped programs: flows end like direct connections, and
    /// only the available descriptors limit their number.
    pub fn limits(self) -> Limits {
        let dead_after = Some(self.dead_after).filter(|time| !time.is_zero());
        Limits {
            flows: usize::MAX,
            early: None,
            // As without Viaduct, only the kernel's own timeout ends a connect.
            connect: Duration::MAX,
            handshake: self.arrival_wait,
            silence: DeadPeerLimits { keep_alive: dead_after, dead_after },
            idle: None,
            idle_exit: None,
            drain: DRAIN,
            spin: self.spin,
            chain_buffer: DEFAULT_LIMIT,
            trickles_buffer: TRICKLES_BUFFER,
        }
    }
}
