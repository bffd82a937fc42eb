//! Timeouts of engines that carry flows of wrapped programs.

use std::time::Duration;

use viaduct_proto::flow::DEFAULT_LIMIT;

use crate::engine::commands::Limits;
use crate::engine::config::TRICKLES_BUFFER;
use crate::engine::liveness::DeadPeerLimits;
use crate::value_parser::{dead_after, spin, wait};

/// Time limit for flows of ended programs to complete, the same as the kernel's for connections
/// whose program has ended.
const DRAIN: Duration = Duration::from_secs(60);

/// Timeouts among the options of `viaduct run` and `viaduct master`.
#[derive(Clone, Copy, Debug, clap::Args)]
#[cfg_attr(test, derive(Default))]
pub struct ProgramTimes {
    /// Time within which an inbound connection of a program has to complete the handlers'
    /// handshake
    #[arg(long, value_name = "TIME", value_parser = wait, default_value = "60s")]
    arrival_wait: Duration,
    /// Time for which a far end may leave data, probes and keepalives unanswered before its
    /// flow ends; 0s: the kernel's limit
    #[arg(long, value_name = "TIME", value_parser = dead_after, default_value = "60s")]
    dead_after: Duration,
    /// Time for which the master polls for events before it sleeps, while polling often finds
    /// some; 0s: never
    #[arg(long, value_name = "TIME", value_parser = spin, default_value = "100us")]
    spin: Duration,
}

impl ProgramTimes {
    /// Returns the limits of an engine for wrapped programs: flows end like direct ones, and
    /// only the available descriptors limit their number.
    pub fn limits(self) -> Limits {
        let dead_after = Some(self.dead_after).filter(|time| !time.is_zero());
        Limits {
            flows: usize::MAX,
            early: None,
            // The kernel's own timeout ends a connect, as without Viaduct.
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
