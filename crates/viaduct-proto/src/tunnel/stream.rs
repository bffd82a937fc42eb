//! State of a stream at one end (slides 14 and 15).
//!
//! ```text
//!   the opener's direction                        the other end's, likewise
//!     open ───── SYN ─────▶ open                  a SYN back opens it
//!     open ───── DATA ────▶ open
//!   ending ───── FIN ─────▶ ended, consumes what is buffered
//!   closed ◀─── FINACK ──── closed
//!
//!   at any time
//!     over ───── RST ─────▶ drops what is buffered, over
//!   forgotten ◀── FIN ──────
//! ```

use bytes::Bytes;

use super::queue::Queue;
use super::stats::Delay;
use super::tokens::AccountId;
use crate::time::Instant;

/// State of the direction from this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sending {
    /// The other end opened the stream, and this end has not accepted it.
    #[default]
    Idle,
    Open,
    /// FIN is sent when the queue is empty.
    Ending,
    /// FIN was sent.
    Ended,
    /// FIN was confirmed.
    Closed,
}

/// State of the direction towards this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(super) enum Receiving {
    /// This end opened the stream, and the other end has not accepted it.
    #[default]
    Idle,
    Open,
    /// FIN was received.
    Ended,
    /// All bytes are consumed, and FIN is confirmed.
    Closed,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) account: AccountId,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// True if RST was sent, and the FIN that answers it is outstanding.
    pub(super) resetting: bool,
    /// Bytes that wait to be sent.
    pub(super) out: Queue,
    /// Bytes that wait to be read.
    inbox: Queue,
    /// Bytes that were read and are not yet consumed.
    reading: u64,
    /// Bytes that were consumed and not yet acknowledged.
    pub(super) freed: u64,
    /// True if the writer waits to be told that it may continue.
    stopped: bool,
    /// True if the reader was told that there are bytes.
    reported_readable: bool,
    /// True if the reader was told that no bytes follow.
    reported_finished: bool,
    /// True if the stream is in the mux's list of pending acknowledgements.
    pub(super) listed: bool,
    pub(super) delay: Delay,
    pub(super) sent: u64,
    pub(super) received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notification {
    Readable,
    Finished,
}

impl Stream {
    /// Creates a stream that this end opens.
    pub(super) fn opened(account: AccountId) -> Stream {
        Stream::new(account, Sending::Open, Receiving::Idle)
    }

    /// Creates a stream that the other end has opened.
    pub(super) fn offered(account: AccountId) -> Stream {
        Stream::new(account, Sending::Idle, Receiving::Open)
    }

    fn new(account: AccountId, sending: Sending, receiving: Receiving) -> Stream {
        Stream { account, sending, receiving, ..Stream::default() }
    }

    /// Bytes received and not yet acknowledged.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.inbox.len() as u64 + self.reading + self.freed
    }

    /// Returns whether both directions are closed.
    pub(super) fn is_over(&self) -> bool {
        !self.resetting && self.sending == Sending::Closed && self.receiving == Receiving::Closed
    }

    /// Returns whether bytes may be queued: the direction is open, and fewer than `most` wait.
    pub(super) fn may_write(&mut self, most: usize) -> bool {
        let open = matches!(self.sending, Sending::Idle | Sending::Open);
        let may = open && self.out.len() < most;
        self.stopped |= open && !may;
        may
    }

    /// Queues bytes to be sent. Returns false, and queues nothing, if `bytes` is empty or the
    /// direction is not open.
    pub(super) fn write(&mut self, now: Instant, bytes: Bytes) -> bool {
        if self.sending != Sending::Open || bytes.is_empty() {
            return false;
        }
        self.out.push(bytes);
        self.delay.queued(now, self.sent + self.out.len() as u64);
        true
    }

    /// Moves the next `count` bytes to `out`. Returns whether to tell the writer to continue.
    pub(super) fn send(
        &mut self,
        now: Instant,
        count: usize,
        most: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.out.move_to(count, out);
        self.sent += count as u64;
        self.delay.sent(now, self.sent);
        let go = self.stopped && self.out.len() <= most / 2 && self.sending == Sending::Open;
        self.stopped &= !go;
        go
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) -> Option<Notification> {
        self.inbox.push_copy(bytes);
        self.received += bytes.len() as u64;
        (!std::mem::replace(&mut self.reported_readable, true)).then_some(Notification::Readable)
    }

    pub(super) fn read(&mut self) -> Option<Bytes> {
        let Some(bytes) = self.inbox.pop(usize::MAX) else {
            self.reported_readable = false;
            return None;
        };
        self.reading += bytes.len() as u64;
        Some(bytes)
    }

    /// Returns the notification that no bytes follow, if it is due now.
    pub(super) fn finished(&mut self) -> Option<Notification> {
        let all = self.receiving >= Receiving::Ended && self.inbox.is_empty() && !self.resetting;
        (all && !std::mem::replace(&mut self.reported_finished, true))
            .then_some(Notification::Finished)
    }

    /// Marks `count` of the bytes read as consumed; returns how many bytes can now be acknowledged.
    pub(super) fn consumed(&mut self, count: usize) -> u64 {
        let count = self.reading.min(count as u64);
        self.reading -= count;
        self.freed += count;
        self.freed
    }

    /// Drops all queued bytes and closes both directions.
    pub(super) fn drop_all(&mut self) {
        self.out.clear();
        self.inbox.clear();
        (self.reading, self.freed) = (0, 0);
        (self.sending, self.receiving) = (Sending::Closed, Receiving::Closed);
    }
}
