//! Flow on a shared connection.

use std::net::IpAddr;

use bytes::Bytes;

use super::End;
use super::shared::{Line, Shared, Word};
use crate::flow::{Address, Context, FIRST, Failure, Kin};
use crate::handlers::early::Early;
use crate::tunnel::SessionId;

/// Bytes delivered at once, so that upstream can apply backpressure.
const TURN: usize = 64 << 10;

/// Branch: the handler of a flow.
pub(super) struct Branch {
    number: u64,
    trunk: u64,
    /// Data written before the session was opened.
    early: Early,
    /// The application was told that the flow is established.
    risen: bool,
    /// The application takes no bytes now.
    stopped: bool,
    /// The application writes no more; it has closed the flow, and also reads no more.
    ended: bool,
    closed: bool,
    /// The application was told of the end of the stream.
    finished: bool,
    over: bool,
}

impl Branch {
    fn new(number: u64, trunk: u64, risen: bool) -> Branch {
        let early = Early::default();
        let [stopped, ended, closed, finished, over] = [false; 5];
        Branch { number, trunk, early, risen, stopped, ended, closed, finished, over }
    }

    /// Branch that connects, on the trunk to `to` if there is one, or on a new one. Branches
    /// with different `from` never share a trunk.
    pub(super) fn connecting(
        cx: &mut Context<'_>,
        shared: &mut Shared,
        to: Address,
        from: Option<IpAddr>,
    ) -> Branch {
        let known = shared.line_to(&to, from);
        let trunk = known.unwrap_or_else(|| shared.add_line(Some(to), from));
        let number = shared.add_branch(trunk, None);
        cx.claim(&shared.key(&Word::Branch(number)));
        if let Some(line) = shared.line(trunk) {
            line.waiting.push(number);
        }
        match known {
            Some(_) => cx.wake(&shared.key(&Word::Trunk(trunk))),
            None => cx.spawn(Kin::Alone, &Word::Trunk(trunk).emit()),
        }
        Branch::new(number, trunk, false)
    }

    /// Branch that the other end has opened.
    pub(super) fn accepted(cx: &mut Context<'_>, shared: &mut Shared, number: u64) -> Branch {
        cx.claim(&shared.key(&Word::Branch(number)));
        let mut trunk = 0;
        if let Some((seat, line)) = shared.branch(number) {
            trunk = seat.trunk;
            seat.readable = true;
            line.zip(seat.id).into_iter().for_each(|(line, id)| line.tunnel.accept(id));
        }
        cx.upstream().accepted();
        let branch = Branch::new(number, trunk, true);
        branch.again(cx, shared);
        branch.stir(cx, shared);
        branch
    }

    pub(super) fn trunk(&self) -> u64 {
        self.trunk
    }

    pub(super) fn write(&mut self, cx: &mut Context<'_>, shared: &mut Shared, data: Bytes) -> bool {
        if self.over || self.ended {
            return false;
        }
        let Some((seat, Some(line))) = shared.branch(self.number) else { return false };
        let Some(id) = seat.id else {
            self.early.push(data);
            return true;
        };
        let takes = data.is_empty() || line.tunnel.write(cx.now(), id, data);
        if takes && !line.tunnel.may_write(id) {
            cx.upstream().may_write(false);
        }
        self.stir(cx, shared);
        takes
    }

    /// Handles the end of the application's data.
    pub(super) fn end(&mut self, cx: &mut Context<'_>, shared: &mut Shared, end: End) {
        self.ended = true;
        self.closed |= end == End::Close;
        let Some((seat, line)) = shared.branch(self.number) else { return };
        match (seat.id, line) {
            (Some(id), Some(line)) => line.tunnel.shutdown(id),
            _ => self.early.end(end),
        }
        self.stir(cx, shared);
        self.settle(cx, shared);
    }

    pub(super) fn may_avail(&mut self, cx: &mut Context<'_>, shared: &mut Shared, may: bool) {
        self.stopped = !may;
        if may {
            self.settle(cx, shared);
        }
    }

    /// Bytes that the other end's program has not taken, which a reset of the session would
    /// drop.
    pub(super) fn held(&self, shared: &mut Shared) -> u64 {
        let Some((seat, Some(line))) = shared.branch(self.number) else { return 0 };
        let stats = seat.id.and_then(|id| line.tunnel.session_stats(id));
        self.early.len() + stats.map_or(0, |session| session.queued + session.outstanding)
    }

    /// Handles the events of the session.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        if self.over {
            return;
        }
        self.say_early(cx, shared);
        let Some((seat, line)) = shared.branch(self.number) else { return };
        if let Some(why) = seat.failed {
            shared.remove_branch(self.number);
            return self.fail(cx, why);
        }
        let news = (seat.accepted, std::mem::take(&mut seat.writable), seat.finished);
        let (accepted, writable, finished) = news;
        if accepted && !std::mem::replace(&mut self.risen, true) {
            cx.upstream().connected(Ok(()));
        }
        if writable {
            cx.upstream().may_write(true);
        }
        if let (Some(id), Some(line)) = (seat.id, line) {
            let readable = seat.readable;
            match self.hand_on(cx, line, id, readable) {
                Handed::None => {}
                Handed::All => seat.readable = false,
                Handed::Some => self.again(cx, shared),
                Handed::Unwanted => return self.leave(cx, shared),
            }
        }
        if finished && !std::mem::replace(&mut self.finished, true) {
            cx.upstream().finished();
        }
        if self.finished && self.ended {
            shared.remove_branch(self.number);
            self.finish(cx);
        }
        self.stir(cx, shared);
    }

    /// Delivers data that can be read.
    fn hand_on(
        &self,
        cx: &mut Context<'_>,
        line: &mut Line,
        id: SessionId,
        readable: bool,
    ) -> Handed {
        if !readable || !self.risen || self.stopped {
            return Handed::None;
        }
        let mut handed = 0;
        while handed < TURN {
            let Some(data) = line.tunnel.read(id) else { return Handed::All };
            handed += data.len();
            line.tunnel.consumed(cx.now(), id, data.len());
            // A closed flow drops incoming data, and is reset once its own data is sent, as a
            // TCP connection would be.
            let gone = || line.tunnel.session_stats(id).is_none_or(|session| session.queued == 0);
            if self.closed && gone() {
                return Handed::Unwanted;
            }
            if !self.closed {
                // An application that no longer reads may still write.
                let _ = cx.upstream().avail(data);
            }
        }
        Handed::Some
    }

    /// Sends data that was written before the session was opened.
    fn say_early(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        let Some((seat, Some(line))) = shared.branch(self.number) else { return };
        let Some(id) = seat.id else { return };
        let (pieces, end) = self.early.take();
        for piece in pieces {
            line.tunnel.write(cx.now(), id, piece);
        }
        if end.is_some() {
            line.tunnel.shutdown(id);
        }
    }

    /// Handles a flow that broke, or could not be established.
    pub(super) fn fail(&mut self, cx: &mut Context<'_>, why: Failure) {
        match self.risen {
            true => cx.upstream().failed(why),
            false => cx.upstream().connected(Err(why)),
        }
        self.finish(cx);
    }

    /// Drops the flow, with any buffered data.
    pub(super) fn leave(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        if self.over {
            return;
        }
        if let Some((seat, Some(line))) = shared.branch(self.number)
            && let Some(id) = seat.id
        {
            line.tunnel.reset(id, Failure::Reset);
        }
        shared.remove_branch(self.number);
        self.stir(cx, shared);
        self.finish(cx);
    }

    fn finish(&mut self, cx: &mut Context<'_>) {
        self.over = true;
        // The output was never connected; closing it ends the chain.
        cx.output(FIRST).close();
    }

    /// Wakes the trunk, which has data to send.
    fn stir(&self, cx: &mut Context<'_>, shared: &Shared) {
        cx.wake(&shared.key(&Word::Trunk(self.trunk)));
    }

    /// Wakes this branch again, because more can be delivered.
    fn again(&self, cx: &mut Context<'_>, shared: &Shared) {
        cx.wake(&shared.key(&Word::Branch(self.number)));
    }
}

/// Result of a delivery.
enum Handed {
    /// Nothing to deliver, or delivery is not possible now.
    None,
    /// All data was delivered.
    All,
    /// A turn's worth was delivered; there may be more.
    Some,
    /// The flow is closed, so the data is not wanted.
    Unwanted,
}
