//! `--dead-after`, the same for all services: time after which a silent peer is considered dead.

use std::time::Duration;

use serde::Deserialize;

use crate::value_parser::dead_after;
use crate::value_parser::table::{self, defaults, one};

/// Time limit for peers that send no acknowledgements.
#[derive(Clone, Copy, Debug, clap::Args, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeadAfter {
    /// Time without an acknowledgement of data, window probes or keepalives after which a flow
    /// is reset; 0s: the kernel's limits
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = dead_after)]
    #[serde(deserialize_with = "one::<table::DeadAfter, _>")]
    dead_after: Duration,
}

impl DeadAfter {
    /// Time limit; `None` if the kernel's limits apply.
    pub fn limit(self) -> Option<Duration> {
        Some(self.dead_after).filter(|time| !time.is_zero())
    }
}
