//! Calls of the flows' ends on their link.

use std::net::SocketAddr;

use bytes::Bytes;

use super::Mux;
use crate::flow::{Address, Failure};
use crate::time::{Duration, Instant};
use crate::tunnel::common::{Common, Event};
use crate::tunnel::session::{Sending, Session};
use crate::tunnel::wire::{Frame, Opening};

/// Maximum delay of an acknowledgement, in which others may join it.
const ACK_DELAY: Duration = Duration::from_millis(5);
/// Upper bound of the threshold from which on freed bytes are acknowledged at once.
const ACK_AT_ONCE: u64 = 32 << 10;

impl Mux {
    /// Opens a session. There must be a [vacant](Mux::vacant) one.
    pub(in crate::tunnel) fn open(
        &mut self,
        cx: &mut Common,
        to: Address,
        source: Option<SocketAddr>,
    ) -> u32 {
        let number = self.next;
        self.next += 2;
        self.insert(number, Session::opened(cx.tokens.open()));
        cx.totals.opened += 1;
        let opening = Box::new(Opening { to, source });
        self.control.push_back((number, Frame::Syn(Some(opening))));
        number
    }

    /// Accepts a session that the peer has opened.
    pub(in crate::tunnel) fn accept(&mut self, number: u32) {
        if let Some(session) = self.sessions.get_mut(&number)
            && session.sending == Sending::Idle
        {
            session.sending = Sending::Open;
            self.control.push_back((number, Frame::Syn(None)));
        }
    }

    pub(in crate::tunnel) fn may_write(&mut self, cx: &Common, number: u32) -> bool {
        let session = self.sessions.get_mut(&number);
        session.is_some_and(|session| session.may_write(cx.settings.queue))
    }

    pub(in crate::tunnel) fn write(
        &mut self,
        now: Instant,
        cx: &mut Common,
        number: u32,
        bytes: Bytes,
    ) -> bool {
        self.accept(number);
        let Some(session) = self.sessions.get_mut(&number) else { return false };
        let waited = !session.out.is_empty();
        if !session.write(now, bytes) {
            return false;
        }
        if !waited {
            cx.tokens.set_queued(session.account, true);
            self.ready.push_back(number);
            self.refused = None;
        }
        true
    }

    pub(in crate::tunnel) fn read(&mut self, cx: &mut Common, number: u32) -> Option<Bytes> {
        let id = self.id(number);
        let session = self.sessions.get_mut(&number)?;
        let bytes = session.read();
        if session.finished().is_some() {
            cx.events.push_back(Event::Finished(id));
        }
        bytes
    }

    pub(in crate::tunnel) fn consumed(
        &mut self,
        now: Instant,
        cx: &mut Common,
        number: u32,
        count: usize,
    ) {
        // Each session gets less of the buffer if there are many, or if it is small.
        let each = cx.room.total() / (8 * self.sessions.len().max(1) as u64);
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let freed = session.consumed(count);
        if freed >= each.clamp(1, ACK_AT_ONCE) {
            self.acknowledge(cx, number);
        } else if freed > 0 && !std::mem::replace(&mut session.listed, true) {
            self.acks.push(number);
            self.ack_at = self.ack_at.or(Some(now + ACK_DELAY));
        }
        self.settle(cx, number);
    }

    pub(in crate::tunnel) fn shutdown(&mut self, number: u32) {
        self.accept(number);
        if let Some(session) = self.sessions.get_mut(&number)
            && session.sending == Sending::Open
        {
            session.sending = Sending::Ending;
            self.end(number);
        }
    }

    /// Sends FIN, if it is due.
    pub(super) fn end(&mut self, number: u32) {
        let session = self.session(number);
        if session.sending == Sending::Ending && session.out.is_empty() {
            session.sending = Sending::Ended;
            self.control.push_back((number, Frame::Fin));
        }
    }

    pub(in crate::tunnel) fn reset(&mut self, cx: &mut Common, number: u32, why: Failure) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if std::mem::replace(&mut session.resetting, true) {
            return;
        }
        let held = session.unacknowledged();
        cx.room.free(held, held);
        cx.tokens.set_queued(session.account, false);
        session.drop_all();
        cx.totals.reset += 1;
        self.control.push_back((number, Frame::Rst(why)));
    }

    /// Acknowledges the bytes that a session's reader has consumed.
    pub(super) fn acknowledge(&mut self, cx: &mut Common, number: u32) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        let before = session.unacknowledged();
        let freed = session.take_freed();
        if freed > 0 {
            cx.room.free(before, freed);
            let freed = u32::try_from(freed).expect("less than what is received in between");
            self.control.push_back((number, Frame::Ack(freed)));
        }
    }

    /// Sends all pending acknowledgements.
    pub(super) fn acknowledge_all(&mut self, cx: &mut Common) {
        self.ack_at = None;
        for number in std::mem::take(&mut self.acks) {
            if let Some(session) = self.sessions.get_mut(&number) {
                session.listed = false;
                self.acknowledge(cx, number);
            }
        }
    }
}
