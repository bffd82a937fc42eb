//! Near end of a tunnel: flows enter here, and links are dialled from here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slab::Slab;
use tracing::{debug, info, warn};
use viaduct_proto::flow::Address;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::time::Instant;

use super::dial::Slot;
use super::link::Link;
use super::new_peer;
use super::peer::SharedPeer;
use super::settings::{Dial, TunnelSettings, title};
use super::stats::TunnelCounters;
use super::stream::TunnelStream;
use super::time;

/// Near end of a tunnel.
pub(super) struct Near {
    pub(super) dial: Dial,
    /// Copy of the settings of all tunnels, with the far end of this tunnel as the only peer.
    pub(super) settings: TunnelSettings,
    pub(super) peer: SharedPeer,
    pub(super) slots: Vec<Slot>,
    /// Earliest time of the next log line about a failed dial; `None` if the next failure is logged
    /// immediately, as a warning.
    next_log: Option<Instant>,
    /// Reason of the last failure: of a dial, or of a link that was up.
    reason: Option<String>,
    /// Time at which a link was last up.
    last_up: Option<Instant>,
}

/// Interval of log lines about failed dials.
const LOG_INTERVAL: Duration = Duration::from_secs(300);

/// Tunnels that each peer has dialled, the latest first.
pub(super) type Dialled = Arc<Mutex<HashMap<PublicKey, Vec<SharedPeer>>>>;

/// Outlet into the tunnels to a peer: opens streams for flows.
#[derive(Clone, Debug)]
pub struct Outlet {
    /// Public key of the peer.
    pub(super) key: PublicKey,
    /// Tunnel that this end dials, if there is one.
    pub(super) near: Option<SharedPeer>,
    /// Tunnels that peers have dialled; `None` if this end must not send flows through them.
    pub(super) dialled: Option<Dialled>,
    /// True if streams count as connected only when the peer has accepted them.
    pub(super) waits: bool,
    /// True if flows connect directly while no link is up.
    pub(super) is_fallback: bool,
}

impl Outlet {
    /// Returns whether flows connect directly now, because [`Outlet::is_fallback`] is set and no
    /// link is up or expected soon.
    pub fn is_bypassed(&self, now: Instant) -> bool {
        let is_expected = || self.near.as_ref().is_some_and(|near| near.lock().is_expected(now));
        self.is_fallback && self.ready().is_none() && !is_expected()
    }

    /// Tunnel in which a stream can be opened now.
    fn ready(&self) -> Option<SharedPeer> {
        let dialled = self.dialled.as_ref().and_then(|all| {
            all.lock().unwrap_or_else(PoisonError::into_inner).get(&self.key).cloned()
        });
        let both = self.near.iter().cloned().chain(dialled.into_iter().flatten());
        both.into_iter().find(|peer| peer.lock().tunnel.can_open())
    }

    /// Creates a stream to `to` for the client at `source`. The stream opens as soon as there is a
    /// link. `None` if there is no link, and this end does not dial the peer.
    pub fn open(&self, to: Address, source: SocketAddr) -> Option<TunnelStream> {
        let peer = self.ready().or_else(|| self.near.clone())?;
        Some(TunnelStream::open(&peer, to, source, self.waits))
    }
}

impl Near {
    /// Returns a near end whose links are due to be dialled immediately.
    pub(super) fn new(settings: &TunnelSettings, dial: &Dial, now: Instant) -> Near {
        let settings = TunnelSettings { peers: vec![dial.peer], ..settings.clone() };
        let slots = (0..dial.links).map(|_| Slot::new(now)).collect();
        let peer = new_peer(&settings, dial.peer, &dial.name, None);
        Near {
            dial: dial.clone(),
            settings,
            peer,
            slots,
            next_log: None,
            reason: None,
            last_up: None,
        }
    }

    /// Time at which flows stop waiting for links, because they can connect directly.
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        self.peer.lock().expected_until.filter(|_| self.dial.is_fallback)
    }

    /// Fails flows that have waited for links too long, although they can connect directly.
    pub(super) fn give_up_waiting(&self, now: Instant) {
        if self.gives_up_at().is_some_and(|at| at <= now) {
            let mut peer = self.peer.lock();
            peer.expected_until = None;
            peer.fail_waiting();
        }
    }

    /// Records that the far end has answered on a link.
    pub(super) fn mark_up(&mut self, now: Instant) {
        (self.next_log, self.reason, self.last_up) = (None, None, Some(now));
    }

    /// Records that a link that was up has broken for the reason `why`.
    pub(super) fn mark_broken(&mut self, why: &str, now: Instant) {
        (self.reason, self.last_up) = (Some(why.to_owned()), Some(now));
    }

    /// Counters of the tunnel, and the reason if the tunnel is down.
    pub(super) fn counters(&self) -> TunnelCounters {
        let mut counters = self.peer.lock().counters();
        counters.is_expected = self.peer.lock().is_expected(time());
        let up = counters.links.iter().any(|link| link.up);
        counters.down = self.reason.as_ref().filter(|_| !up).map(|reason| match self.last_up {
            None => format!("{reason}; it has not been up yet"),
            Some(at) => {
                let age = time().since(at).as_secs();
                format!("{reason}; last up {age} s ago")
            }
        });
        counters
    }

    /// Logs that a link did not come up: first as a warning, and later at most once per
    /// [`LOG_INTERVAL`] at the info level.
    pub(super) fn log_failure(&mut self, why: &str, now: Instant) {
        self.reason = Some(why.to_owned());
        let what = format!("a link of the {} did not come up: {why}", title(&self.dial.name));
        match self.next_log {
            Some(at) if now < at => return debug!("{what}"),
            Some(_) => info!("{what}; dialling continues"),
            None => warn!("{what}; it is dialled again until it is up"),
        }
        self.next_log = Some(now + LOG_INTERVAL);
    }

    /// Changes the number of links: missing links are dialled, surplus links are closed after their
    /// last stream.
    pub(super) fn set_links(&mut self, wanted: usize, links: &Slab<Link>, now: Instant) {
        if wanted == 0 {
            let mut peer = self.peer.lock();
            peer.expected_until = None;
            peer.fail_waiting();
        }
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
