//! State of a connection: the sequence and acknowledgement numbers of its TCP headers.
//!
//! ```text
//!   sent by us     acked ......... next ..(window)..▶
//!   sent by peer   ............... heard              what we acknowledge
//! ```
//!
//! Lost bytes are never retransmitted. The receiver acknowledges the highest number received,
//! whether or not bytes below it are missing. After the handshake, only segments with an authentic
//! datagram change the numbers, so forged segments cannot cause strict connection tracking to
//! refuse our segments.

use std::net::SocketAddr;

use super::segment::{self, Kind, Segment};
use crate::repair::Outbox;
use crate::time::{Duration, Instant};
use crate::upgrade::ConnectionRecord;

/// Maximum distance from the acknowledged number to the next one if windows are scaled: half of the
/// window that segments advertise, so that late segments stay within the window.
const WIDE: u32 = 1 << 29;
/// The same distance before a scaled window was seen, or if the path removes the window scale
/// option.
const NARROW: u32 = 60_000;
/// Time until the first retransmission of a SYN. The second retransmission follows after twice this
/// time; the connection is given up after another three times this time.
const SYN_RETRY: Duration = Duration::from_millis(250);
/// Number of SYNs sent for one connection.
const MAX_SYNS: u32 = 3;

/// Connection that this gateway has opened or accepted.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) local: SocketAddr,
    remote: SocketAddr,
    state: State,
    /// Sequence number of the next byte.
    next: u32,
    /// Sequence number after the highest one sent so far.
    top: u32,
    acked: u32,
    heard: u32,
    scaled: bool,
    /// Maximum distance from `acked` to `next`.
    reach: u32,
    /// Time of the last authentic datagram, or of the connection's opening.
    pub(super) heard_at: Instant,
}

#[derive(Debug)]
enum State {
    /// SYNs are sent until one is answered.
    Opening {
        /// Datagram to be sent once the connection is open.
        first: Vec<u8>,
        syns: u32,
        retry_at: Instant,
    },
    Open,
}

impl Connection {
    /// Opens a connection with the initial sequence number `isn`; `first` is its first datagram.
    /// The SYN is due immediately.
    pub(super) fn open(
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        isn: u32,
        first: &[u8],
    ) -> Connection {
        let next = isn.wrapping_add(1);
        Connection {
            local,
            remote,
            state: State::Opening { first: first.to_vec(), syns: 0, retry_at: now },
            next,
            top: next,
            acked: next,
            heard: 0,
            scaled: false,
            reach: NARROW,
            heard_at: now,
        }
    }

    /// Creates a connection from a segment with an authentic datagram.
    pub(super) fn accept(now: Instant, segment: &Segment, scaled: bool) -> Connection {
        Connection {
            local: segment.destination,
            remote: segment.source,
            state: State::Open,
            next: segment.ack,
            top: segment.ack,
            acked: segment.ack,
            heard: segment.seq.wrapping_add(segment.length),
            scaled,
            reach: if scaled { WIDE } else { NARROW },
            heard_at: now,
        }
    }

    /// State for the handover to a new process; `None` while the connection is being opened.
    pub(super) fn record(&self) -> Option<ConnectionRecord> {
        self.is_open().then(|| ConnectionRecord {
            local: self.local,
            remote: self.remote,
            numbers: [self.next, self.top, self.acked, self.heard],
            scaled: self.scaled,
            reach: self.reach,
            heard_at: self.heard_at.as_nanos(),
        })
    }

    /// Restores a connection of the previous process.
    pub(super) fn restored(record: &ConnectionRecord) -> Connection {
        let [next, top, acked, heard] = record.numbers;
        Connection {
            local: record.local,
            remote: record.remote,
            state: State::Open,
            next,
            top,
            acked,
            heard,
            scaled: record.scaled,
            reach: record.reach,
            heard_at: Instant::from_nanos(record.heard_at),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Handles a SYN-ACK. If it answers this connection's SYN, opens the connection, sends the
    /// first datagram, and returns true.
    pub(super) fn handle_syn_ack(
        &mut self,
        now: Instant,
        answer: &Segment,
        mss: u16,
        out: &mut Outbox,
    ) -> bool {
        let is_ours = answer.destination == self.local && answer.ack == self.next;
        let State::Opening { first, .. } = &mut self.state else { return false };
        if !is_ours {
            return false;
        }
        let first = std::mem::take(first);
        self.state = State::Open;
        self.heard = answer.seq.wrapping_add(1);
        (self.scaled, self.heard_at) = (answer.scaled, now);
        self.send(&first, mss, out);
        true
    }

    /// Returns whether the numbers of an authentic segment continue this connection. If not, the
    /// peer has opened another connection between the same ports.
    pub(super) fn continues(&self, segment: &Segment) -> bool {
        let end = segment.seq.wrapping_add(segment.length);
        let is_near = end.wrapping_sub(self.heard) <= WIDE || self.heard.wrapping_sub(end) <= WIDE;
        let is_late = self.acked.wrapping_sub(segment.ack) <= WIDE;
        is_near && (is_late || self.acknowledges(segment))
    }

    /// Returns whether a segment's acknowledgement number is valid: from `acked`, which
    /// acknowledges nothing new, to `top`.
    fn acknowledges(&self, segment: &Segment) -> bool {
        segment.ack.wrapping_sub(self.acked) <= self.top.wrapping_sub(self.acked)
    }

    /// Updates the numbers from a segment with an authentic datagram.
    pub(super) fn handle_data(&mut self, now: Instant, segment: &Segment) {
        self.heard_at = now;
        let end = segment.seq.wrapping_add(segment.length);
        let ahead = end.wrapping_sub(self.heard);
        if ahead <= WIDE {
            self.heard = end;
        }
        if self.acknowledges(segment) {
            self.acked = segment.ack;
            if is_after(self.acked, self.next) {
                self.next = self.acked;
            }
        }
        if self.scaled {
            self.reach = WIDE;
        }
    }

    /// Sends a datagram. If the connection is not open yet, keeps the datagram to be sent first, in
    /// place of an earlier one. Returns whether the datagram was sent.
    pub(super) fn send(&mut self, datagram: &[u8], mss: u16, out: &mut Outbox) -> bool {
        if let State::Opening { first, .. } = &mut self.state {
            datagram.clone_into(first);
            return false;
        }
        let most = self.next.wrapping_sub(self.acked).saturating_add(datagram.len() as u32 + 2);
        // A firewall would drop bytes beyond the window. So the numbers after `acked` are reused,
        // as in a retransmission.
        if most > self.reach {
            self.next = self.acked;
        }
        let segment = self.segment(Kind::Data);
        let Some(length) = out.push_with(|out| segment::emit(&segment, mss, Some(datagram), out))
        else {
            return false;
        };
        self.next = self.next.wrapping_add(length);
        if is_after(self.next, self.top) {
            self.top = self.next;
        }
        true
    }

    /// Time at which the next SYN is due, or at which the connection is given up; `None` if the
    /// connection is open.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Opening { retry_at, .. } => Some(retry_at),
            State::Open => None,
        }
    }

    /// Sends a SYN if one is due. Returns false if the connection is given up because no SYN was
    /// answered.
    pub(super) fn handle_timeout(&mut self, now: Instant, mss: u16, out: &mut Outbox) -> bool {
        let segment = Segment { seq: self.next.wrapping_sub(1), ack: 0, ..self.segment(Kind::Syn) };
        let State::Opening { syns, retry_at, .. } = &mut self.state else { return true };
        if now < *retry_at {
            return true;
        }
        if *syns == MAX_SYNS {
            return false;
        }
        *syns += 1;
        *retry_at = now + SYN_RETRY * *syns;
        out.push_with(|out| segment::emit(&segment, mss, None, out));
        true
    }

    fn segment(&self, kind: Kind) -> Segment {
        Segment {
            source: self.local,
            destination: self.remote,
            kind,
            seq: self.next,
            ack: self.heard,
            scaled: true,
            length: 0,
        }
    }
}

/// Returns whether sequence number `a` is after `b`, in serial number arithmetic.
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}
