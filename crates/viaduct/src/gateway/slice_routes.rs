//! Routes of a rack's slices. A routing daemon announces them, so that the site's routers send the
//! packets of each slice to the member that owns it, or to the next member if the owner is gone.
//!
//! ```text
//!   rack::ranking ─▶ metric of each slice: 100 for the owner, 101 for the next one, …
//!                         └─▶ table 118, through the TUN ─▶ BIRD ─▶ routers
//! ```
//!
//! Each member announces all slices, and routers choose by the metric: no member needs to know
//! which others are alive. The slices of a peer's site are announced once a session with a gateway
//! there is up; those of this site are announced with the first session. The peers are then told
//! that this gateway serves. The kernel withdraws the routes with the TUN when the process ends.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tracing::{info, warn};
use viaduct_proto::rack;
use viaduct_sys::route::announced::{AnnouncedRoutes, Metrics};

use super::config::SiteRack;
use super::control::Control;
use super::preflight::pair;
use super::site::Site;
use super::snapshot::Snapshot;

/// Metric of the routes of a slice's owner.
const OWNER_METRIC: u32 = 100;
/// Interval between attempts after a failure.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Routes of the slices of this gateway.
#[derive(Debug, Default)]
pub struct SliceRoutes {
    routes: Option<AnnouncedRoutes>,
    /// Peer sites with which there has been a session.
    known: HashSet<String>,
    /// True if the routes differ from those that the config and the known sites require.
    is_stale: bool,
    /// Last failure, and its time.
    failure: Option<(String, Instant)>,
}

impl SliceRoutes {
    /// Makes the next call of [`SliceRoutes::follow`] set the routes again.
    pub fn set_stale(&mut self) {
        self.is_stale = true;
    }

    /// Sets routes that are missing, and withdraws those that are no longer wanted. Returns whether
    /// this gateway may serve: there has been a session, or this gateway sets no routes.
    pub fn follow(&mut self, site: &Site, seen: &Snapshot) -> bool {
        // A gateway that observes has no TUN, and changes nothing on the machine.
        let Some(rack) = site.config.rack.as_ref().filter(|_| !site.only_observes()) else {
            return true;
        };
        let up = seen.peers.iter().filter(|(_, stats)| stats.up).map(|(name, _)| name);
        for name in up {
            let site = name.split_once('/').map_or(&name[..], |(site, _)| site);
            if !self.known.contains(site) {
                self.is_stale |= self.known.insert(site.to_owned());
            }
        }
        let is_early = self.failure.as_ref().is_some_and(|(_, at)| at.elapsed() < RETRY_EVERY);
        if !self.is_stale || is_early {
            return !self.known.is_empty();
        }
        match self.set(site, rack) {
            Ok(count) => {
                info!(routes = count, table = rack.route_table, "the slices' routes are set");
                (self.is_stale, self.failure) = (false, None);
            }
            Err(error) => {
                let error = format!("cannot set the slices' routes: {error}");
                if self.failure.as_ref().is_none_or(|(before, _)| *before != error) {
                    warn!("{error}; tried again each second");
                }
                self.failure = Some((error, Instant::now()));
            }
        }
        !self.known.is_empty()
    }

    /// Sets the routes, and returns their number.
    fn set(&mut self, site: &Site, rack: &SiteRack) -> io::Result<usize> {
        let known = site.config.peer_sites().filter(|peer| self.known.contains(peer.site()));
        let theirs: Vec<&[IpNet]> = known.map(|peer| &peer.prefixes[..]).collect();
        let ours = (!theirs.is_empty()).then_some(&site.config.prefixes[..]);
        let wanted = theirs.into_iter().chain(ours).flat_map(|prefixes| metrics(prefixes, rack));
        let wanted: Metrics = wanted.collect();
        let routes = match &mut self.routes {
            Some(routes) => routes,
            none => none.insert(AnnouncedRoutes::new(rack.route_table, &site.tun_name())?),
        };
        routes.set(&wanted)?;
        Ok(wanted.len())
    }
}

impl Control {
    /// Sets the routes of the slices, unless another process may be responsible for them. As soon
    /// as this gateway may serve, tells the peers once that it is not drained.
    pub(super) async fn announce(&mut self) {
        if self.upgrade.is_active() {
            return;
        }
        let has_routes = self.slice_routes.follow(&self.site, &self.workers.snapshot());
        if has_routes && !self.site.is_serving {
            self.site.is_serving = true;
            if let Err(error) = self.workers.reload(&self.site, false).await {
                warn!("the peers are not told that this gateway serves: {error:#}");
            }
        }
    }
}

/// Metric of each slice of the prefixes of a site.
fn metrics(prefixes: &[IpNet], rack: &SiteRack) -> Metrics {
    let metric = |slice: IpNet| {
        let ranking = rack::ranking(&slice, &rack.members);
        let before = ranking.iter().take_while(|member| **member != rack.own).count();
        (pair(&slice), OWNER_METRIC + before as u32)
    };
    rack::slices(prefixes, &rack.members).into_iter().map(metric).collect()
}

#[cfg(test)]
mod tests {
    use viaduct_proto::keys::SecretKey;
    use viaduct_proto::rack::Member;

    use super::*;

    #[test]
    fn one_member_has_the_lowest_metric_for_each_slice() {
        let member = |key, weight| Member {
            key: SecretKey::from_bytes([key; 32]).public(),
            weight,
            slices: Vec::new(),
        };
        let members = vec![member(1, 1), member(2, 1), member(3, 0)];
        let names = ["a1", "a2", "a3"].map(str::to_owned).to_vec();
        let rack = |own| SiteRack {
            names: names.clone(),
            members: members.clone(),
            own,
            route_table: 118,
        };
        let prefixes = ["10.2.0.0/16".parse().unwrap(), "fd00:2::/48".parse().unwrap()];
        let all = [0, 1, 2].map(|own| metrics(&prefixes, &rack(own)));
        assert_eq!(all[0].len(), 32);
        for slice in all[0].keys() {
            let mut found = all.each_ref().map(|metrics| metrics[slice]);
            assert_eq!(found[2], 102, "a drained member is the last one");
            found.sort_unstable();
            assert_eq!(found, [100, 101, 102]);
        }
    }
}
