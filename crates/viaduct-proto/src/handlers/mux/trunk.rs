//! Shared connection of several flows.

use super::TICK;
use super::shared::{Line, Shared, Word};
use crate::flow::{Address, Context, FIRST, Failure, Kin, Output};
use crate::time::{Duration, Instant};
use crate::tunnel::Carrier;
use crate::tunnel::wire::peek_hello;

/// Time for which an unused connection is kept for further flows.
const KEPT: Duration = Duration::from_millis(500);
/// Bytes of frames that are produced at once.
const TURN: usize = 64 << 10;

/// Trunk: the handler of the connection.
pub(super) struct Trunk {
    number: u64,
    output: Output,
    /// Bytes received before the first message was complete.
    early: Vec<u8>,
    /// The trunk has carried a flow.
    served: bool,
    /// Time since which no branch is on the trunk.
    idle: Option<Instant>,
    over: bool,
}

impl Trunk {
    fn new(number: u64, output: Output) -> Trunk {
        Trunk { number, output, early: Vec::new(), served: false, idle: None, over: false }
    }

    /// Trunk that was spawned for a branch, and connects. `None` if it is no longer needed.
    pub(super) fn connecting(
        cx: &mut Context<'_>,
        shared: &mut Shared,
        number: u64,
    ) -> Option<Trunk> {
        let line = shared.line(number)?;
        let (to, from) = (line.to.clone()?, line.from);
        cx.claim(&shared.key(&Word::Trunk(number)));
        if let Some(from) = from {
            // A port of its own, because the first flow's port may be reused before the trunk
            // is closed.
            cx.output(FIRST).bind(Address::Ip((from, 0).into()));
        }
        cx.output(FIRST).connect(to);
        Some(Trunk::new(number, FIRST))
    }

    /// Trunk on an accepted connection.
    pub(super) fn accepted(cx: &mut Context<'_>, shared: &mut Shared, output: Output) -> Trunk {
        let number = shared.add_line(None, None);
        cx.claim(&shared.key(&Word::Trunk(number)));
        let mut trunk = Trunk::new(number, output);
        trunk.learn_names(cx, shared);
        trunk
    }

    fn learn_names(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        let names = (cx.output(self.output).getsockname(), cx.output(self.output).getpeername());
        if let Some(line) = shared.line(self.number) {
            line.names = names;
        }
    }

    pub(super) fn connected(
        &mut self,
        cx: &mut Context<'_>,
        shared: &mut Shared,
        result: Result<(), Failure>,
    ) {
        if let Err(why) = result {
            return self.broke(cx, shared, why);
        }
        self.learn_names(cx, shared);
        if let Some(line) = shared.line(self.number) {
            line.link = Some(line.tunnel.dial(cx.now(), Carrier::Stream));
        }
        self.settle(cx, shared);
    }

    /// Handles bytes of the connection; false if the trunk has ended.
    pub(super) fn hear(&mut self, cx: &mut Context<'_>, shared: &mut Shared, data: &[u8]) -> bool {
        let Some(line) = shared.line(self.number) else { return false };
        match line.link {
            Some(link) => line.tunnel.handle_bytes(cx.now(), link, 0, data),
            None => {
                self.early.extend_from_slice(data);
                let hello = match peek_hello(&self.early) {
                    Ok(None) => return true,
                    Ok(Some(hello)) => hello,
                    Err(error) => {
                        cx.say(format_args!("the other end does not speak this: {error}"));
                        self.broke(cx, shared, Failure::Reset);
                        return false;
                    }
                };
                line.tunnel.accept_link(cx.now(), hello.link, Carrier::Stream);
                line.link = Some(hello.link);
                let early = std::mem::take(&mut self.early);
                line.tunnel.handle_bytes(cx.now(), hello.link, 0, &early);
            }
        }
        self.settle(cx, shared);
        !self.over
    }

    pub(super) fn set_room(&mut self, cx: &mut Context<'_>, shared: &mut Shared, room: bool) {
        if let Some((line, link)) = shared.line(self.number).and_then(|l| l.link.map(|at| (l, at)))
        {
            line.tunnel.set_room(link, room);
        }
        if room {
            self.settle(cx, shared);
        }
    }

    pub(super) fn timeout(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        if let Some(line) = shared.line(self.number) {
            line.tunnel.handle_timeout(cx.now());
        }
        self.settle(cx, shared);
    }

    /// Refuses a branch whose chain cannot be made.
    pub(super) fn refuse(&mut self, cx: &mut Context<'_>, shared: &mut Shared, branch: u64) {
        if let Some((seat, Some(line))) = shared.branch(branch)
            && let Some(id) = seat.id
        {
            line.tunnel.reset(id, Failure::Unreachable);
        }
        shared.remove_branch(branch);
        self.settle(cx, shared);
    }

    /// Handles events of the branches' sessions, sends frames, and sets the timer.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        if self.over {
            return;
        }
        for branch in shared.open_waiting(self.number) {
            cx.wake(&shared.key(&Word::Branch(branch)));
        }
        self.tell(cx, shared);
        let is_left = shared.is_idle(self.number);
        let Some(line) = shared.line(self.number) else { return };
        let Some(link) = line.link else { return };
        if !line.tunnel.links().any(|there| there == link) {
            cx.say("the other end has broken the connection's protocol");
            return self.broke(cx, shared, Failure::Reset);
        }
        let more = self.send(cx, line);
        // The connecting end closes an unused connection, once all data of its flows has been
        // delivered.
        let idle = is_left && line.to.is_some() && line.tunnel.stats().open == 0;
        let next = if more { Some(cx.now()) } else { line.tunnel.poll_timeout() };
        self.idle = idle.then(|| self.idle.unwrap_or(cx.now()));
        // Sending has made room for the branches.
        self.tell(cx, shared);
        match self.idle.map(|since| since + KEPT) {
            Some(end) if cx.now() >= end => self.broke(cx, shared, Failure::Reset),
            end => cx.set_timer(TICK, end.into_iter().chain(next).min()),
        }
    }

    /// Wakes the branches whose sessions have events, and spawns branches for new sessions.
    fn tell(&mut self, cx: &mut Context<'_>, shared: &mut Shared) {
        let (woken, new) = shared.listen(self.number);
        for branch in new {
            self.served = true;
            cx.spawn(Kin::Accepted, &Word::Branch(branch).emit());
        }
        for branch in woken {
            cx.wake(&shared.key(&Word::Branch(branch)));
        }
    }

    /// Sends frames while the output takes them, which it limits by `may_write`. Returns true
    /// if a turn was filled, so that there may be more once it has been taken.
    fn send(&mut self, cx: &mut Context<'_>, line: &mut Line) -> bool {
        let mut frames = Vec::new();
        while line.tunnel.poll_transmit(cx.now(), &mut frames).is_some() {
            if frames.len() >= TURN {
                let _ = cx.output(self.output).write(std::mem::take(&mut frames).into());
                return true;
            }
        }
        if !frames.is_empty() {
            // A broken connection reports that itself.
            let _ = cx.output(self.output).write(frames.into());
        }
        false
    }

    /// Ends the trunk and its flows, because the connection is broken or no longer needed.
    pub(super) fn broke(&mut self, cx: &mut Context<'_>, shared: &mut Shared, why: Failure) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        // The application of an accepted connection without flows may still wait for a result.
        if !self.served && shared.line(self.number).is_some_and(|line| line.to.is_none()) {
            cx.upstream().failed(why);
        }
        for branch in shared.remove_line(self.number, why) {
            cx.wake(&shared.key(&Word::Branch(branch)));
        }
        cx.release(&shared.key(&Word::Trunk(self.number)));
        cx.set_timer(TICK, None);
        cx.output(self.output).close();
    }
}
