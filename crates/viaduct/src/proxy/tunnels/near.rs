//! The near end of a tunnel: where flows enter, and the links that it dials.

use std::net::SocketAddr;
use std::time::Duration;

use slab::Slab;
use tracing::{debug, info, warn};
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_sys::clock;

use super::super::onward::Onward;
use super::super::stats::TunnelCounters;
use super::dial::Slot;
use super::link::Link;
use super::new_peer;
use super::peer::SharedPeer;
use super::session::Session;
use super::settings::{Dial, TunnelSettings};

/// The near end.
pub(super) struct Near {
    pub(super) dial: Dial,
    /// Those of all tunnels, with this one's far end as the only peer.
    pub(super) settings: TunnelSettings,
    pub(super) peer: SharedPeer,
    pub(super) slots: Vec<Slot>,
    /// When the log hears again that no link comes up; `None`: at once, as a warning.
    complain: Option<Instant>,
    /// Why the last link did not come up, or broke.
    reason: Option<String>,
    /// When a link was up last.
    last_up: Option<Instant>,
}

/// How often the log hears that no link of a tunnel comes up.
const COMPLAIN: Duration = Duration::from_secs(300);

/// The way into a tunnel.
#[derive(Clone, Debug)]
pub struct Outlet {
    peer: SharedPeer,
    /// Sessions count as connected only when the peer has accepted them.
    waits: bool,
}

impl Outlet {
    /// Opens a session to `to`, for `source`. It opens as soon as there is a link.
    pub fn open(&self, to: Address, source: SocketAddr) -> Session {
        Session::open(&self.peer, to, source, self.waits)
    }
}

impl Near {
    /// That dials its links as soon as it can.
    pub(super) fn new(settings: &TunnelSettings, dial: &Dial, now: Instant) -> Near {
        let settings = TunnelSettings { peers: vec![dial.peer], ..settings.clone() };
        let slots = (0..dial.links).map(|_| Slot::new(now)).collect();
        let peer = new_peer(&settings, dial.peer, &dial.name, None);
        Near {
            dial: dial.clone(),
            settings,
            peer,
            slots,
            complain: None,
            reason: None,
            last_up: None,
        }
    }

    /// The far end has answered on a link.
    pub(super) fn mark_up(&mut self, now: Instant) {
        (self.complain, self.reason, self.last_up) = (None, None, Some(now));
    }

    /// A link that was up broke, for this reason.
    pub(super) fn mark_broken(&mut self, why: &str, now: Instant) {
        (self.reason, self.last_up) = (Some(why.to_owned()), Some(now));
    }

    /// What its tunnel has counted, and why it is down if it is.
    pub(super) fn counters(&self) -> TunnelCounters {
        let mut counters = self.peer.lock().counters();
        let up = counters.links.iter().any(|link| link.up);
        counters.down = self.reason.as_ref().filter(|_| !up).map(|reason| match self.last_up {
            None => format!("{reason}; it has not been up yet"),
            Some(at) => {
                let age = Instant::from_nanos(clock::now()).since(at).as_secs();
                format!("{reason}; last up {age} s ago")
            }
        });
        counters
    }

    /// What people call its tunnel.
    pub(super) fn name(&self) -> Onward {
        Onward::Tunnel(self.dial.name.to_string())
    }

    /// A link did not come up, for this reason: at first a warning, then seldom a line.
    pub(super) fn complain(&mut self, why: &str, now: Instant) {
        self.reason = Some(why.to_owned());
        let what = format!("a link of the {} did not come up: {why}", self.name());
        match self.complain {
            Some(at) if now < at => return debug!("{what}"),
            Some(_) => info!("{what}; it is dialled still"),
            None => warn!("{what}; it is dialled again and again"),
        }
        self.complain = Some(now + COMPLAIN);
    }

    pub(super) fn outlet(&self) -> Outlet {
        Outlet { peer: self.peer.clone(), waits: self.settings.waits }
    }

    /// So many links from now on: new ones are dialled, those too many are left.
    pub(super) fn set_links(&mut self, wanted: usize, links: &Slab<Link>, now: Instant) {
        for slot in self.slots.iter_mut().skip(wanted) {
            slot.retire();
            if let Some(link) = slot.link.and_then(|key| links.get(key))
                && let Some((_, number)) = &link.place
            {
                self.peer.lock().tunnel.leave(*number);
            }
        }
        self.slots.iter_mut().take(wanted).for_each(|slot| slot.revive(now));
        while self.slots.len() < wanted {
            self.slots.push(Slot::new(now));
        }
    }
}
