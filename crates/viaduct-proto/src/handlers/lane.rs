//! Queue of a handler for one direction of a flow.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::time::Instant;

/// Queued bytes in one direction, and the end that follows them.
#[derive(Debug)]
pub(super) struct Lane<E> {
    queue: VecDeque<(Instant, Bytes)>,
    len: usize,
    /// End of the direction, due after the last byte.
    end: Option<(Instant, E)>,
    /// True if the receiving neighbour takes bytes.
    open: bool,
    /// True if the source has been stopped.
    stopped: bool,
}

impl<E> Default for Lane<E> {
    fn default() -> Self {
        Lane { queue: VecDeque::new(), len: 0, end: None, open: true, stopped: false }
    }
}

impl<E> Lane<E> {
    /// Adds bytes that may be released at `ready`.
    pub(super) fn push(&mut self, ready: Instant, data: Bytes) {
        self.len += data.len();
        self.queue.push_back((ready, data));
    }

    /// Sets the end, which may be released at `ready`.
    pub(super) fn end(&mut self, ready: Instant, end: E) {
        self.end = Some((ready, end));
    }

    /// Number of queued bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sets whether the receiving neighbour takes bytes.
    pub(super) fn set_open(&mut self, open: bool) {
        self.open = open;
    }

    /// Takes the next bytes that may be released, at most `most`.
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

    /// Takes the end, if all bytes have been released and it is due.
    pub(super) fn pop_end(&mut self, now: Instant) -> Option<E> {
        if !self.queue.is_empty() {
            return None;
        }
        self.end.take_if(|(ready, _)| *ready <= now).map(|(_, end)| end)
    }

    /// Time at which the next bytes, or the end, are due. `None` if neither is queued, or if the
    /// neighbour takes no bytes and bytes are next.
    pub(super) fn next_ready(&self) -> Option<Instant> {
        let end = self.end.as_ref().map(|(ready, _)| *ready);
        match self.queue.front() {
            Some((ready, _)) => self.open.then_some(*ready),
            None => end,
        }
    }

    /// Returns false if the source must be stopped now, because `held` bytes are queued, and true
    /// if it may resume, because only half as many are left; `None` if nothing changes.
    pub(super) fn steer(&mut self, held: usize) -> Option<bool> {
        let full = self.len >= held.max(1);
        let stop = if self.stopped { self.len > held / 2 } else { full };
        (stop != self.stopped).then(|| {
            self.stopped = stop;
            !stop
        })
    }
}
