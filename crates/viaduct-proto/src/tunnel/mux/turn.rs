//! Sending on a link, in turns: the pending control frames, then one DATA frame of the stream whose
//! turn it is (slide 20).

use super::{Carrier, Lane, Mux};
use crate::time::Instant;
use crate::tunnel::common::{Common, Event};
use crate::tunnel::wire::{Frame, emit_data_head};

impl Mux {
    /// Appends the next turn's frames to `out`; returns the lane on which to send them.
    pub(crate) fn turn(&mut self, cx: &mut Common, out: &mut Vec<u8>) -> Option<Lane> {
        let lane = self.send_control(cx.now, out);
        match (lane, self.carrier) {
            (Some(lane), Carrier::Streams) => Some(lane),
            _ => self.send(cx, out).or(lane),
        }
    }

    /// Appends the pending control frames of one lane.
    fn send_control(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Lane> {
        if let Some(ping) = self.rtt.take_ping(now) {
            self.control.push_back((0, Frame::Ping(ping)));
            self.gone_before_ping = self.reported_gone.len();
        }
        let mut lane = None;
        while let Some((stream, frame)) = self.control.front() {
            let next = self.lane_of(*stream, frame);
            if *lane.get_or_insert(next) != next {
                break;
            }
            if let Some((stream, frame)) = self.control.pop_front() {
                frame.emit(stream, out);
            }
        }
        lane
    }

    /// Appends a DATA frame of the next stream that has bytes to send and tokens for them.
    fn send(&mut self, cx: &mut Common, out: &mut Vec<u8>) -> Option<Lane> {
        if self.hello.is_none() || self.stalled_at == Some(cx.tokens.changes) {
            return None;
        }
        for _ in 0..self.ready.len() {
            let number = self.ready.pop_front()?;
            let Some(stream) = self.streams.get(&number) else { continue };
            let (account, queued) = (stream.account, stream.out.len());
            if queued == 0 {
                continue; // the stream was reset
            }
            match cx.tokens.allowance(account, queued, cx.settings.mss) {
                0 => self.ready.push_back(number),
                count => {
                    self.emit(cx, number, count, out);
                    return Some(if self.carrier == Carrier::Stream { 0 } else { number });
                }
            }
        }
        self.stalled_at = Some(cx.tokens.changes);
        None
    }

    fn emit(&mut self, cx: &mut Common, number: u32, count: usize, out: &mut Vec<u8>) {
        let (id, most) = (self.id(number), cx.settings.queue);
        let stream = self.stream(number);
        let account = stream.account;
        emit_data_head(number, count, out);
        if stream.send(cx.now, count, most, out) {
            cx.events.push_back(Event::Writable(id));
        }
        let empty = stream.out.is_empty();
        cx.tokens.spend(account, count);
        if empty {
            cx.tokens.set_queued(account, false);
            self.end(number);
        } else {
            self.ready.push_back(number);
        }
        self.traffic.sent += count as u64;
        cx.totals.sent += count as u64;
        // Pending acknowledgements can be sent in the same record.
        if !self.acks.is_empty() {
            self.acknowledge_all(cx);
        }
    }
}
