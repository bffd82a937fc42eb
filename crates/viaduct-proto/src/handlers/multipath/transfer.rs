//! Data transfer in both directions.

use super::path::{Path, Stage};
use super::wire::{self, Frame};
use super::{Deadline, Multipath, TICK};
use crate::flow::Context;
use crate::time::Duration;

/// Maximum bytes transferred in one turn, before the neighbouring handlers are called.
const TURN: usize = 64 << 10;
/// Unsent bytes at which the application is stopped.
const MAX_UNSENT: usize = 64 << 10;
/// Number of delivered bytes after which an acknowledgement is sent immediately.
const ACK_EVERY: u64 = 64 << 10;
/// Delay of an acknowledgement of fewer than [`ACK_EVERY`] bytes.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Time that a closed flow waits for the other end.
const LINGER: Duration = Duration::from_secs(60);

impl Multipath {
    /// Transfers what can be transferred, and sets the timer.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.over || !self.session.is_begun() {
            return;
        }
        self.update_connectivity(cx);
        let more = self.deliver(cx) | self.send(cx);
        self.send_ack(cx);
        self.apply_backpressure(cx);
        if self.out.is_done() && self.received.said_end {
            return self.close_paths(cx, false);
        }
        if self.aborted && !self.out.has_unsent() {
            return self.reset(cx);
        }
        if self.closed && self.deadlines.deadline(Deadline::Linger).is_none() && self.out.is_done()
        {
            self.deadlines.set(Deadline::Linger, cx.now() + LINGER);
        }
        if self.over {
            return;
        }
        let at = if more { Some(cx.now()) } else { self.deadline() };
        cx.set_timer(TICK, at);
    }

    /// Delivers data in order; returns whether there is more.
    pub(super) fn deliver(&mut self, cx: &mut Context<'_>) -> bool {
        let mut delivered = 0;
        while (self.open || self.is_read_closed) && delivered < TURN {
            let Some(data) = self.received.pop() else { break };
            delivered += data.len();
            if !self.is_read_closed {
                let _ = cx.upstream().avail(data);
            }
        }
        if self.received.ends() {
            self.deadlines.set(Deadline::Ack, cx.now());
            cx.upstream().finished();
        }
        (self.open || self.is_read_closed) && self.received.has_next()
    }

    /// Sends on connections that take bytes, preferring those where a block arrives soonest.
    /// Returns true if the turn is used up and unsent data is left.
    pub(super) fn send(&mut self, cx: &mut Context<'_>) -> bool {
        let mut sent = 0;
        while self.out.has_unsent() && sent < TURN && self.out.fits(self.session.window) {
            let Some((path, is_alone)) = self.soonest() else { return false };
            let output = self.paths[path].output;
            let Some(block) = self.out.send(output) else { return false };
            let (path, length) = (&mut self.paths[path], block.data.len());
            path.in_flight += length;
            path.reset_ping_interval();
            sent += length;
            let asks = !is_alone && path.delivery_rate.on_sent(length, cx.now());
            if asks {
                path.delivery_rate.on_ping();
            }
            let pieces = match block.is_end {
                true => [Some(Frame::End(block.at).emit()), None],
                false => wire::data(block.at, &block.data),
            };
            for piece in pieces.into_iter().flatten() {
                let _ = cx.output(output).write(piece);
            }
            if asks {
                Multipath::say(cx, output, &Frame::Ping);
            }
        }
        self.out.has_unsent() && sent >= TURN
    }

    /// Index of the connection on which a block sent now arrives soonest, among the connections
    /// that take a block; and whether it is the only usable connection.
    fn soonest(&self) -> Option<(usize, bool)> {
        let usable = || self.paths.iter().enumerate().filter(|(_, path)| path.is_usable());
        let is_alone = usable().count() == 1;
        let quickest = usable().filter_map(|(_, path)| path.delivery_rate.rate).max().unwrap_or(1);
        let may =
            |path: &Path| is_alone || path.delivery_rate.may_send(quickest, self.session.window);
        let ready = usable().filter(|(_, path)| path.is_writable && may(path));
        let (soonest, _) = ready.min_by_key(|(_, path)| path.delivery_rate.lag(quickest))?;
        Some((soonest, is_alone))
    }

    /// Acknowledges delivered data, immediately or after [`ACK_DELAY`].
    fn send_ack(&mut self, cx: &mut Context<'_>) {
        let (now, received) = (cx.now(), self.received.next_offset());
        let live = self.paths.iter().filter(|path| path.stage == Stage::Live && path.is_writable);
        // The connection that received data last is the most likely to work.
        let Some(path) = live.max_by_key(|path| (path.is_usable(), path.last_received)) else {
            self.deadlines.stop(Deadline::Ack);
            return;
        };
        if received > self.last_ack && self.deadlines.deadline(Deadline::Ack).is_none() {
            self.deadlines.set(Deadline::Ack, now + ACK_DELAY);
        }
        let due = self.deadlines.is_expired(Deadline::Ack, now);
        if !due && received - self.last_ack < ACK_EVERY {
            return;
        }
        Multipath::say(cx, path.output, &Frame::Ack(received));
        self.last_ack = received;
        self.deadlines.stop(Deadline::Ack);
    }

    /// Stops or resumes the application.
    fn apply_backpressure(&mut self, cx: &mut Context<'_>) {
        let (kept, unsent) = self.out.costs();
        // Limit minus headroom, which is smaller for a small buffer.
        let below = |brim: usize| brim - MAX_UNSENT.min(brim / 2);
        let full = below(self.session.window.min(self.plan.buffer));
        let stop = match self.stopped {
            false => unsent >= MAX_UNSENT || kept >= full,
            true => unsent > MAX_UNSENT / 2 || kept > below(full),
        };
        if stop != std::mem::replace(&mut self.stopped, stop) {
            cx.upstream().may_write(!stop);
        }
    }
}
