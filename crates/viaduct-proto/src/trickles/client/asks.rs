//! Which bytes a client wants, and which it has asked for.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::time::Instant;
use crate::trickles::wire::Ask;

/// Bytes that are wanted, and the user continuation that yields them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) position: u64,
    pub(super) length: u64,
    pub(super) user: Bytes,
}

/// A packet that is to come.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) sent: Instant,
    /// What it was asked to carry.
    pub(super) want: Option<Want>,
}

/// Wants, and expected packets by number.
#[derive(Debug, Default)]
pub(super) struct Asks {
    wants: VecDeque<Want>,
    pub(super) fresh: BTreeMap<u64, Expected>,
    pub(super) again: BTreeMap<u64, Expected>,
}

impl Asks {
    /// Wants more, after all else.
    pub(super) fn want(&mut self, want: Want) {
        if want.length > 0 {
            self.wants.push_back(want);
        }
    }

    /// Wants again what did not come, before all else.
    pub(super) fn want_again(&mut self, want: Option<Want>) {
        if let Some(want) = want.filter(|want| want.length > 0) {
            let place = self.wants.iter().position(|later| later.position > want.position);
            match place {
                Some(place) => self.wants.insert(place, want),
                None => self.wants.push_back(want),
            }
        }
    }

    pub(super) fn is_wanting(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Takes up to `room` bytes of what is wanted first.
    pub(super) fn take(&mut self, room: usize) -> Option<Want> {
        let first = self.wants.front_mut()?;
        let length = first.length.min(room as u64);
        let taken = Want { position: first.position, length, user: first.user.clone() };
        first.position += length;
        first.length -= length;
        if first.length == 0 {
            self.wants.pop_front();
        }
        (length > 0).then_some(taken)
    }

    /// Nothing that was asked for will come any more.
    pub(super) fn forget_all(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let again = std::mem::take(&mut self.again);
        for expected in fresh.into_values().chain(again.into_values()) {
            self.want_again(expected.want);
        }
    }

    /// Nothing at or beyond `position` exists.
    pub(super) fn end_at(&mut self, position: u64) {
        for want in &mut self.wants {
            want.length = want.length.min(position.saturating_sub(want.position));
        }
        self.wants.retain(|want| want.length > 0);
    }
}

/// Wants as the groups of a request: those of one user continuation together.
pub(super) fn groups(wants: &[Want]) -> Vec<(&[u8], Vec<Ask>)> {
    let mut groups: Vec<(&[u8], Vec<Ask>)> = Vec::new();
    for want in wants {
        let ask = Ask { position: want.position, length: want.length as u32 };
        match groups.last_mut() {
            Some((user, asks)) if *user == &want.user[..] => asks.push(ask),
            _ => groups.push((&want.user, vec![ask])),
        }
    }
    groups
}
