//! Packets that this machine routes into the gateway's TUN. They are lost: the gateway only injects
//! packets there, and reads none. The usual cause is a routing daemon that copies the routes of
//! slices into the main table.

use std::time::{Duration, Instant};

use tracing::warn;
use viaduct_sys::route::tun;

/// Minimum number of lost packets in a second that is reported. Some daemons send a packet to each
/// interface from time to time.
const MIN_PACKETS: u64 = 10;
/// Time after the last such second for which the status reports the loss. A loss is logged only if
/// the status does not already report one.
const REPORTED_FOR: Duration = Duration::from_secs(60);

/// Lost packets, as last seen.
#[derive(Debug, Default)]
pub struct Misroutes {
    /// Number of packets since the TUN was created, at the last check.
    packets: Option<u64>,
    last: Option<Instant>,
}

impl Misroutes {
    /// Counts new packets, and logs a warning if there are too many. The table with the slices'
    /// routes is `table`, if this gateway is a member of a rack. Must be called once a second.
    pub fn check(&mut self, tun: &str, table: Option<u32>) {
        // A gateway that observes has no TUN.
        let Ok(drops) = tun::drops(tun) else { return };
        let before = self.packets.replace(drops.unread).unwrap_or(drops.unread);
        if drops.unread.saturating_sub(before) < MIN_PACKETS {
            return;
        }
        if self.trouble(tun).is_none() {
            warn!("{}", warning(tun, table));
        }
        self.last = Some(Instant::now());
    }

    /// Text for the status while packets are lost.
    pub fn trouble(&self, tun: &str) -> Option<String> {
        let is_recent = self.last.is_some_and(|at| at.elapsed() < REPORTED_FOR);
        is_recent.then(|| format!("packets are routed into {tun} and lost: the log says more"))
    }
}

fn warning(tun: &str, table: Option<u32>) -> String {
    let advice = table
        .map(|table| format!(". Do not copy the routes of table {table} into the main table"))
        .unwrap_or_default();
    format!(
        "packets are routed into {tun} and lost: only the gateway may send through it. \
         `ip route get ADDRESS` names the route{advice}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_warning_of_a_rack_names_a_table() {
        assert!(warning("vd-a", Some(200)).contains("routes of table 200 into"));
        assert!(!warning("vd-a", None).contains("table"));
    }
}
