//! One direction of a flow whose bytes wait inside a handler.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::time::Instant;

/// Bytes on their way in one direction, and what follows them.
#[derive(Debug)]
pub(super) struct Lane<E> {
    queue: VecDeque<(Instant, Bytes)>,
    len: usize,
    /// What comes after the last byte.
    end: Option<(Instant, E)>,
    /// Whether the neighbour that the bytes go to takes some.
    open: bool,
    /// Whether the neighbour that they come from was stopped.
    stopped: bool,
}

impl<E> Default for Lane<E> {
    fn default() -> Self {
        Lane { queue: VecDeque::new(), len: 0, end: None, open: true, stopped: false }
    }
}

impl<E> Lane<E> {
    /// Adds bytes that may go on at `ready`.
    pub(super) fn push(&mut self, ready: Instant, data: Bytes) {
        self.len += data.len();
        self.queue.push_back((ready, data));
    }

    /// Nothing follows but `end`, which may go on at `ready`.
    pub(super) fn end(&mut self, ready: Instant, end: E) {
        self.end = Some((ready, end));
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The neighbour that the bytes go to takes some, or does not.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open = open;
    }

    /// Takes the next bytes that may go on, at most `most`.
    pub(super) fn pop(&mut self, now: Instant, most: usize) -> Option<Bytes> {
        if !self.open || most == 0 {
            return None;
        }
        let (_, data) = self.queue.front_mut().filter(|(ready, _)| *ready <= now)?;
        let bytes = data.split_to(most.min(data.len()));
        if data.is_empty() {
            self.queue.pop_front();
        }
        self.len -= bytes.len();
        Some(bytes)
    }

    /// Takes the end, if all bytes have gone and it may go too.
    pub(super) fn pop_end(&mut self, now: Instant) -> Option<E> {
        if !self.queue.is_empty() {
            return None;
        }
        self.end.take_if(|(ready, _)| *ready <= now).map(|(_, end)| end)
    }

    /// When the next bytes, or the end, may go on; `None` while the neighbour takes none.
    pub(super) fn next_ready(&self) -> Option<Instant> {
        let end = self.end.as_ref().map(|(ready, _)| *ready);
        match self.queue.front() {
            Some((ready, _)) => self.open.then_some(*ready),
            None => end,
        }
    }

    /// Whether the source is to be told something, given that `held` bytes are too many: to stop
    /// (`false`) or to go on (`true`).
    pub(super) fn steer(&mut self, held: usize) -> Option<bool> {
        let full = self.len >= held.max(1);
        let stop = if self.stopped { self.len > held / 2 } else { full };
        (stop != self.stopped).then(|| {
            self.stopped = stop;
            !stop
        })
    }
}
