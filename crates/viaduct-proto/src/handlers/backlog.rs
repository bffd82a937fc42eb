//! Accounting of a handler's delayed datagrams in one direction.

use std::collections::VecDeque;

use crate::time::Instant;

/// Minimum size that is counted for a datagram, in bytes, because even a short one takes memory.
const MIN_CHARGE: usize = 64;

/// Bytes of delayed datagrams, and when they leave.
#[derive(Debug)]
pub(super) struct Backlog {
    most: usize,
    held: usize,
    /// Departure time and counted size of each datagram, in order of departure.
    leaving: VecDeque<(Instant, usize)>,
}

impl Backlog {
    /// Backlog of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Backlog { most, held: 0, leaving: VecDeque::new() }
    }

    /// Returns whether there is room for `bytes` more; an empty backlog takes any datagram.
    pub(super) fn has_room(&mut self, now: Instant, bytes: usize) -> bool {
        while let Some((_, left)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.held -= left;
            self.leaving.pop_front();
        }
        self.held == 0 || self.held + bytes.max(MIN_CHARGE) <= self.most
    }

    /// Adds a datagram that leaves at `at`, which must not be before those added earlier.
    pub(super) fn hold(&mut self, at: Instant, bytes: usize) {
        self.held += bytes.max(MIN_CHARGE);
        self.leaving.push_back((at, bytes.max(MIN_CHARGE)));
    }
}
