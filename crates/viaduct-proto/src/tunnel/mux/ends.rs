//! Operations on a link's streams: open, accept, read, write, shut down, reset, acknowledge.

use std::net::SocketAddr;

use bytes::Bytes;

use super::{Mux, Timer};
use crate::flow::{Address, Failure};
use crate::time::Duration;
use crate::tunnel::common::{Common, Event};
use crate::tunnel::stream::{Sending, Stream};
use crate::tunnel::wire::{Frame, Opening};

/// Maximum delay of an acknowledgement, so that several can be sent together.
const ACK_DELAY: Duration = Duration::from_millis(5);
/// Upper bound of the threshold: as soon as a stream's reader has consumed this many bytes, they
/// are acknowledged without delay. With many streams the threshold is lower (see
/// [`Mux::consumed`]).
const ACK_AT_ONCE: u64 = 32 << 10;

impl Mux {
    /// Opens a stream. [`Mux::vacant`] must not be 0. If this takes the last stream number, sends
    /// LEAVE: neither end opens further streams on this link, and the end that dialled it dials
    /// another.
    pub(crate) fn open(&mut self, cx: &mut Common, to: Address, source: Option<SocketAddr>) -> u32 {
        let number = self.numbers.take();
        self.insert(number, Stream::opened(cx.tokens.open()));
        cx.totals.opened += 1;
        let opening = Box::new(Opening { to, source });
        self.control.push_back((number, Frame::Syn(Some(opening))));
        if self.numbers.are_used_up() {
            self.leave();
        }
        number
    }

    /// Accepts a stream that the peer has opened.
    pub(crate) fn accept(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && stream.sending == Sending::Idle
        {
            stream.sending = Sending::Open;
            self.control.push_back((number, Frame::Syn(None)));
        }
    }

    pub(crate) fn may_write(&mut self, cx: &Common, number: u32) -> bool {
        let stream = self.streams.get_mut(&number);
        stream.is_some_and(|stream| stream.may_write(cx.settings.queue))
    }

    pub(crate) fn write(&mut self, cx: &mut Common, number: u32, bytes: Bytes) -> bool {
        self.accept(number);
        let Some(stream) = self.streams.get_mut(&number) else { return false };
        let waited = !stream.out.is_empty();
        if !stream.write(cx.now, bytes) {
            return false;
        }
        if !waited {
            cx.tokens.set_queued(stream.account, true);
            self.ready.push_back(number);
            self.stalled_at = None;
        }
        true
    }

    pub(crate) fn read(&mut self, cx: &mut Common, number: u32) -> Option<Bytes> {
        let id = self.id(number);
        let stream = self.streams.get_mut(&number)?;
        let bytes = stream.read();
        if stream.finished().is_some() {
            cx.events.push_back(Event::Finished(id));
        }
        bytes
    }

    pub(crate) fn consumed(&mut self, cx: &mut Common, number: u32, count: usize) {
        // The threshold is lower if there are many streams or the buffer is small, because each
        // stream then gets less of the buffer.
        let each = cx.window.total / (8 * self.streams.len().max(1) as u64);
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let freed = stream.consumed(count);
        if freed >= each.clamp(1, ACK_AT_ONCE) {
            self.acknowledge(cx, number);
        } else if freed > 0 && !std::mem::replace(&mut stream.listed, true) {
            self.acks.push(number);
            let at = self.timers.deadline(Timer::Ack).unwrap_or(cx.now + ACK_DELAY);
            self.timers.set(Timer::Ack, at);
        }
        self.settle(cx, number);
    }

    pub(crate) fn shutdown(&mut self, number: u32) {
        self.accept(number);
        if let Some(stream) = self.streams.get_mut(&number)
            && stream.sending == Sending::Open
        {
            stream.sending = Sending::Ending;
            self.end(number);
        }
    }

    /// Sends FIN, if it is due.
    pub(super) fn end(&mut self, number: u32) {
        let stream = self.stream(number);
        if stream.sending == Sending::Ending && stream.out.is_empty() {
            stream.sending = Sending::Ended;
            self.control.push_back((number, Frame::Fin));
        }
    }

    pub(crate) fn reset(&mut self, cx: &mut Common, number: u32, why: Failure) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        if std::mem::replace(&mut stream.resetting, true) {
            return;
        }
        let held = stream.unacknowledged();
        cx.window.free(held, held);
        cx.tokens.set_queued(stream.account, false);
        stream.drop_all();
        cx.totals.reset += 1;
        self.control.push_back((number, Frame::Rst(why)));
    }

    /// Acknowledges the bytes that a stream's reader has consumed.
    pub(super) fn acknowledge(&mut self, cx: &mut Common, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let before = stream.unacknowledged();
        let freed = std::mem::take(&mut stream.freed);
        if freed > 0 {
            cx.window.free(before, freed);
            let freed = u32::try_from(freed).expect("freed bytes fit in 32 bits");
            self.control.push_back((number, Frame::Ack(freed)));
        }
    }

    pub(super) fn acknowledge_all(&mut self, cx: &mut Common) {
        self.timers.stop(Timer::Ack);
        for number in std::mem::take(&mut self.acks) {
            if let Some(stream) = self.streams.get_mut(&number) {
                stream.listed = false;
                self.acknowledge(cx, number);
            }
        }
    }
}
