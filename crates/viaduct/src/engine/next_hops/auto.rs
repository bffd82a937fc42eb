//! Hops that are chosen by measurements (`next = "auto"`). The event loops choose hops and measure
//! round trips; the thread of the checks follows the overlay and queries the hops.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use viaduct_proto::placement::Config;
use viaduct_proto::placement::hops::OverlayHops;
use viaduct_proto::placement::score::Preference;
use viaduct_proto::placement::status::AutoStatus;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::time::Instant;
use viaduct_sys::clock;

use super::HopCheck;
use crate::random::entropy;

/// Choice of hops by measurements, as a policy describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AutoSpec {
    /// Status socket of the overlay node on this host.
    pub overlay: PathBuf,
    /// Check of each hop; `None` if the hops are not checked.
    pub check: Option<HopCheck>,
    /// Criterion of the choice.
    pub preference: Preference,
}

/// Form used for `--check`: `none, one or two hops of the overlay at PATH, for the first byte`.
impl fmt::Display for AutoSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let criterion = match self.preference {
            Preference::FirstByte => "the first byte",
            Preference::Bulk => "bulk",
        };
        let overlay = self.overlay.display();
        write!(f, "none, one or two hops of the overlay at {overlay}, for {criterion}")
    }
}

/// Choice of hops of a proxy, and the round trips that it has measured.
pub struct AutoHops {
    /// True if the round trips of flows are measured: a policy chooses hops, or other proxies
    /// may ask.
    is_on: AtomicBool,
    hops: Mutex<OverlayHops>,
}

impl Default for AutoHops {
    fn default() -> AutoHops {
        let mut seed = [0; 8];
        entropy()(&mut seed);
        let placement = OverlayHops::new(Config::default(), u64::from_be_bytes(seed));
        let hops = Mutex::new(placement);
        AutoHops { is_on: AtomicBool::new(false), hops }
    }
}

impl fmt::Debug for AutoHops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoHops").finish_non_exhaustive()
    }
}

impl AutoHops {
    /// Sets whether the round trips of flows are measured.
    pub fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Returns whether the round trips of flows are measured.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Hops, and the choice among them.
    pub fn hops(&self) -> MutexGuard<'_, OverlayHops> {
        self.hops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Route of a new flow to `server`: its first hop, and the rest from there. `None` if the flow
    /// goes directly. A route that an earlier hop has chosen, `onward`, is followed if its next hop
    /// belongs to this overlay and is up.
    pub fn follow(
        &self,
        onward: Onward,
        server: IpAddr,
        spec: &AutoSpec,
    ) -> Option<(SocketAddr, Onward)> {
        match onward {
            Onward::Open => self.hops().choose(now(), server, spec.preference),
            Onward::Direct => None,
            Onward::Hop(at) => self.hops().is_usable(at).then_some((at, Onward::Direct)),
        }
    }

    /// State of the choice.
    pub fn status(&self) -> AutoStatus {
        self.hops().status(now())
    }
}

pub(super) fn now() -> Instant {
    Instant::from_nanos(clock::now())
}
