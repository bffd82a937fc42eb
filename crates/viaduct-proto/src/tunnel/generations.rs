//! Generations of a tunnel.
//!
//! A peer that hands over to another process leaves all of its links. As soon as it has left one,
//! the next link that is dialled begins a new *generation*, which shares nothing with the former
//! one: the two processes of the peer know nothing of each other's buffers.
//!
//! ```text
//!   former:   links 1, 2 ── last streams ──▶ the peer's old process
//!   current:  link 3     ── new streams ───▶ the peer's new process
//! ```

use std::iter;

use super::common::{Common, LinkError};
use super::core::Tunnel;
use super::mux::Mux;
use super::stats::TunnelStats;

/// Maximum number of former generations. A peer that hands over more often, while streams of each
/// generation are open, loses the oldest.
const MAX_FORMER: usize = 4;

impl Tunnel {
    /// Begins a generation without links. Its instance number differs from that of the former one,
    /// so that the peer does not mistake one for the other.
    pub(super) fn begin_generation(&mut self) {
        let instance = self.common.instance.wrapping_add(1);
        let mut current = Tunnel::new(self.common.settings.clone(), instance);
        current.next = self.next;
        current.common.totals = std::mem::take(&mut self.common.totals);
        let mut former = std::mem::replace(self, current);
        former.links.values_mut().for_each(Mux::leave);
        self.former = std::mem::take(&mut former.former);
        self.former.push(former);
        let mut open: Vec<_> = self.former.iter_mut().filter(|of| !of.links.is_empty()).collect();
        if open.len() > MAX_FORMER {
            let oldest = &mut open[0];
            for link in oldest.links.keys().copied().collect::<Vec<_>>() {
                oldest.fail(link, LinkError::Protocol("the peer leaves too many links"), true);
            }
        }
    }

    /// Forgets former generations that are over, but keeps their totals.
    pub(super) fn forget_former(&mut self) {
        let is_over = |of: &mut Tunnel| of.links.is_empty() && of.common.forgotten.is_empty();
        for former in self.former.extract_if(.., is_over) {
            self.common.totals.add(&former.common.totals);
        }
    }

    /// Generation of a link; the current one if there is no such link.
    pub(super) fn generation(&mut self, link: u32) -> &mut Tunnel {
        match self.former.iter().position(|former| former.links.contains_key(&link)) {
            Some(n) => &mut self.former[n],
            None => self,
        }
    }

    pub(super) fn generations(&self) -> impl Iterator<Item = &Tunnel> {
        iter::once(self).chain(&self.former)
    }

    pub(super) fn link(&self, link: u32) -> Option<&Mux> {
        self.generations().find_map(|of| of.links.get(&link))
    }

    /// Counters of this generation.
    pub(super) fn own_stats(&self) -> TunnelStats {
        let Common { tokens, window, totals, .. } = &self.common;
        let streams = || self.links.values().flat_map(|mux| mux.streams.values());
        let mut delay = totals.delay;
        streams().for_each(|stream| delay.add(&stream.delay));
        TunnelStats {
            links: self.links.values().filter(|mux| mux.hello.is_some()).count() as u64,
            open: streams().count() as u64,
            active: tokens.active,
            opened: totals.opened,
            accepted: totals.accepted,
            reset: totals.reset,
            sent: totals.sent,
            received: totals.received,
            tokens: tokens.total,
            tokens_left: tokens.remaining(),
            tokens_stranded: tokens.stranded(),
            window: window.total,
            held: window.held,
            delay,
        }
    }
}
