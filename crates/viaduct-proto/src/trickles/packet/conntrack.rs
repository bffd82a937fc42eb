//! Model of the windows and states of Linux's strict connection tracking, for tests only.
//!
//! For each direction the model keeps the highest number seen, the highest one allowed (what the
//! other side has acknowledged, plus its window), and the largest window. A packet is refused if it
//! starts beyond the allowed number, ends too far below the highest number seen, acknowledges bytes
//! that were not sent, or acknowledges too little. Tests against the real conntrack are in
//! `crates/viaduct/tests/trickles/strict_router`.

use super::tcp::{Kind, SCALE, Segment, WINDOW};

const MIN_ACK_WINDOW: u32 = 66_000;

#[derive(Clone, Copy, Debug, Default)]
struct Side {
    end: u32,
    max_end: u32,
    max_window: u32,
}

/// Fields of a packet that the tracker reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracked {
    pub(crate) kind: Kind,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Bytes of data.
    pub(crate) length: u32,
}

impl From<&Segment> for Tracked {
    fn from(segment: &Segment) -> Tracked {
        let Segment { kind, seq, ack, .. } = *segment;
        Tracked { kind, seq, ack, length: segment.mark.length.into() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Conntrack {
    /// Client, then server.
    sides: [Side; 2],
    syn: bool,
    answered: bool,
    scaled: bool,
}

/// Reason why a packet is INVALID.
pub(crate) type Invalid = &'static str;

impl Conntrack {
    pub(crate) fn new(scaled: bool) -> Conntrack {
        Conntrack { scaled, ..Conntrack::default() }
    }

    /// Processes a packet of the client (0) or the server (1). Errors: the reason why it is
    /// invalid.
    pub(crate) fn pass(&mut self, from: usize, packet: impl Into<Tracked>) -> Result<(), Invalid> {
        let packet = packet.into();
        let length = packet.length + u32::from(packet.kind.is_syn());
        let end = packet.seq.wrapping_add(length);
        match (packet.kind, from) {
            (Kind::Syn, 0) if !self.answered => {
                if !self.syn || after(end, self.sides[0].end) {
                    let max_window = WINDOW.into();
                    self.sides[0] = Side { end, max_end: end, max_window };
                }
                self.syn = true;
                return Ok(());
            }
            // Passed without a check.
            (Kind::Syn, 0) => return Ok(()),
            (Kind::SynAck, 1) if self.answered => return Ok(()),
            (Kind::SynAck, 1) if self.syn => {
                self.answered = true;
                self.sides[1] = Side { end, max_end: end, max_window: WINDOW.into() };
            }
            (Kind::Data, 1) if self.syn && !self.answered => return Ok(()),
            (Kind::Data, _) if self.answered => {}
            _ => return Err("no such packet in this state"),
        }
        self.in_window(from, &packet, end)
    }

    fn in_window(&mut self, from: usize, packet: &Tracked, end: u32) -> Result<(), Invalid> {
        let scale = if self.scaled && !packet.kind.is_syn() { SCALE } else { 0 };
        let window = u32::from(WINDOW) << scale;
        let (sender, receiver) = (self.sides[from], self.sides[1 - from]);
        if after(packet.seq, sender.max_end) {
            return Err("SEQ is over the upper bound");
        }
        if after(packet.ack, receiver.end) {
            return Err("ACK is over the upper bound");
        }
        if !after(end, sender.end.wrapping_sub(receiver.max_window).wrapping_sub(1)) {
            return Err("SEQ is under the lower bound");
        }
        let least = sender.max_window.max(MIN_ACK_WINDOW);
        if !after(packet.ack, receiver.end.wrapping_sub(least).wrapping_sub(1)) {
            return Err("ACK is under the lower bound");
        }
        let [ours, theirs] = [from, 1 - from];
        self.sides[ours].max_window = sender.max_window.max(window);
        if after(end, sender.end) {
            self.sides[ours].end = end;
        }
        if after(end, sender.max_end) {
            self.sides[theirs].max_window += end.wrapping_sub(sender.max_end);
        }
        if after(packet.ack.wrapping_add(window), receiver.max_end) {
            self.sides[theirs].max_end = packet.ack.wrapping_add(window);
        }
        Ok(())
    }
}

fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}
