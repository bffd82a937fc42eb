//! Datagrams of one direction that wait on behalf of a handler.

use std::collections::VecDeque;

use crate::time::Instant;

/// What the smallest datagram counts as, in bytes: each takes memory, however little it carries.
const LEAST: usize = 64;

/// How many bytes wait, and until when.
#[derive(Debug)]
pub(super) struct Backlog {
    most: usize,
    held: usize,
    /// When each leaves, in that order, and what it counts as.
    leaving: VecDeque<(Instant, usize)>,
}

impl Backlog {
    /// Of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Backlog { most, held: 0, leaving: VecDeque::new() }
    }

    /// Whether there is room for `bytes` more. There always is for one, however long it is.
    pub(super) fn has_room(&mut self, now: Instant, bytes: usize) -> bool {
        while let Some((_, left)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.held -= left;
            self.leaving.pop_front();
        }
        self.held == 0 || self.held + bytes.max(LEAST) <= self.most
    }

    /// So many wait until `at`, no earlier than those before them.
    pub(super) fn hold(&mut self, at: Instant, bytes: usize) {
        self.held += bytes.max(LEAST);
        self.leaving.push_back((at, bytes.max(LEAST)));
    }
}
