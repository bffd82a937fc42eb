//! Flow over several connections: one after another (`migrate`, section 4.4 of the TESLA paper), in
//! parallel (`stripe`, section 1), or both. Data lost with one connection is resent on another.
//!
//! ```text
//!                     ┌─ send buffer: until acknowledged ──▶ ┐  paths, each an output flow
//!   application ──────┤                                      ├─ slot 0: live ─────── bottom
//!                     └─ receive buffer: reorders ◀────────  ┘  slot 0: joining ──── bottom
//!                                                               slot 1: live ─────── bottom
//! ```
//!
//! **Opening.** The connecting end sends a hello and may send data immediately. The welcome in
//! return gives both ends a secret ([`secret`]), whose ID the accepting end claims. **Joining.**
//! Only the connecting end opens more connections: one for each slot, and another one when a slot's
//! connection has broken or is silent ([`path`]). The chain that accepts such a connection gives it
//! to the chain that has claimed the session. That chain sends a challenge, and uses the connection
//! once the proof arrives. Only then does the connection replace the slot's former one. **Data.**
//! Data is numbered by its offset in the flow, and acknowledged by the amount delivered. Data on a
//! lost connection is retransmitted. Each end buffers at most `buffer` bytes. **Closing.** The flow
//! is over when each end has all of the other's data and its end of stream.

mod delivery_rate;
mod join;
mod maintain;
mod path;
mod plan;
mod receive;
mod receive_buffer;
mod secret;
mod send_buffer;
mod session;
mod transfer;
mod wire;

use std::sync::Arc;

use bytes::Bytes;

use crate::flow::{
    Address, Context, End, FIRST, Failure, Half, Handler, Output, SocketOption, SocketOptions,
    Timer,
};
use crate::time::Instant;
use crate::timers::TimerTable;
use path::{Path, Stage};
pub(super) use plan::{MAX_PATHS, Plan, buffer, time};
use receive_buffer::ReceiveBuffer;
use send_buffer::SendBuffer;
use session::Session;
use wire::Frame;

/// Deadlines of a flow, in the order in which they are acted on. Connections and slots have
/// deadlines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deadline {
    /// No connection has been usable for the maximum time: the flow fails.
    Reconnect,
    /// The application has closed the flow and its data is acknowledged, but the other end has not
    /// ended the flow: the flow is reset.
    Linger,
    /// An acknowledgement is sent.
    Ack,
}

pub(super) struct Multipath {
    plan: Arc<Plan>,
    session: Session,
    paths: Vec<Path>,
    /// True if the first output flow takes bytes; used only until that flow is a path.
    is_writable: bool,
    out: SendBuffer,
    received: ReceiveBuffer,
    /// True if upstream takes bytes.
    open: bool,
    /// True if upstream was told to stop writing.
    stopped: bool,
    last_ack: u64,
    deadlines: TimerTable<Deadline>,
    /// True if the application has closed the flow.
    closed: bool,
    /// True if the application will read no more data.
    is_read_closed: bool,
    /// True if the application's end was reset; the other end is reset after the written data.
    aborted: bool,
    /// Local and remote address of the first connection.
    names: [Option<Address>; 2],
    options: SocketOptions,
    over: bool,
}

impl Multipath {
    pub(super) fn new(plan: Arc<Plan>) -> Multipath {
        Multipath {
            session: Session::new(&plan),
            received: ReceiveBuffer::new(plan.buffer),
            plan,
            paths: Vec::new(),
            is_writable: true,
            out: SendBuffer::default(),
            open: true,
            stopped: false,
            last_ack: 0,
            deadlines: TimerTable::default(),
            closed: false,
            is_read_closed: false,
            aborted: false,
            names: [None, None],
            options: SocketOptions::default(),
            over: false,
        }
    }

    fn path(&mut self, output: Output) -> Option<&mut Path> {
        self.paths.iter_mut().find(|path| path.output == output)
    }

    /// Enters a stage of a connection's handshake.
    fn enter(&mut self, cx: &Context<'_>, output: Output, stage: Stage) {
        if let Some(path) = self.path(output) {
            path.enter(stage, cx.now());
        }
    }

    /// Adds the first connection.
    fn begin(&mut self, cx: &mut Context<'_>, output: Output, stage: Stage) {
        let mut path = Path::new(output, 0, stage, cx.now());
        path.is_writable = self.is_writable;
        self.paths.push(path);
    }

    /// Sends a message on a connection. A failed write is ignored, since a broken connection
    /// reports its failure itself.
    fn say(cx: &mut Context<'_>, on: Output, frame: &Frame) {
        let _ = cx.output(on).write(frame.emit());
    }

    /// Tells a `route` handler below that the flow survives the loss of this connection.
    fn report_movable(cx: &mut Context<'_>, output: Output) {
        let _ = cx.output(output).control("route", b"move");
    }

    fn remember_names(&mut self, cx: &mut Context<'_>, of: Output) {
        if self.names[1].is_none() {
            self.names = [cx.output(of).getsockname(), cx.output(of).getpeername()];
        }
    }

    /// Drops a connection; its data is retransmitted on another.
    fn drop_path(&mut self, cx: &mut Context<'_>, output: Output) {
        self.paths.retain(|path| path.output != output);
        self.lost(output, cx.now());
        cx.unplumb(output);
    }

    /// Handles a possible loss on a connection: retransmits data and the last acknowledgement.
    fn lost(&mut self, output: Output, now: Instant) {
        self.out.lost(output);
        self.deadlines.set(Deadline::Ack, now);
    }

    /// Fails the flow, and logs the reason.
    fn fail(&mut self, cx: &mut Context<'_>, why: Failure, line: &dyn std::fmt::Display) {
        if !self.over {
            cx.say(line);
            self.fail_silently(cx, why);
        }
    }

    /// Fails the flow without a log line, and tells the application.
    fn fail_silently(&mut self, cx: &mut Context<'_>, why: Failure) {
        let answered = self.session.answered;
        self.close_paths(cx, true);
        match answered {
            true => cx.upstream().failed(why),
            false => cx.upstream().connected(Err(why)),
        }
    }

    /// Ends all connections: immediately, or after the data written on them has been sent.
    fn close_paths(&mut self, cx: &mut Context<'_>, at_once: bool) {
        self.over = true;
        cx.set_timer(TICK, None);
        self.session.release(cx);
        for path in std::mem::take(&mut self.paths) {
            match at_once || !path.carries() {
                true => cx.unplumb(path.output),
                false => cx.output(path.output).close(),
            }
        }
    }

    /// Returns whether the other end may have received all data and ended the flow: all data was
    /// sent at least once, and the other end sends no more. The other end's last acknowledgements
    /// may have been lost with a connection.
    fn may_have_ended(&self) -> bool {
        self.received.said_end && (self.out.end_was_sent || self.out.lacks_only_the_end())
    }

    fn end(&mut self, cx: &mut Context<'_>, end: End) {
        self.out.end();
        self.closed |= end == End::Close;
        self.is_read_closed |= self.closed;
        self.settle(cx);
    }
}

const TICK: Timer = Timer(0);

/// Result of handling a message. An error means that the connection must be dropped.
type Handled = Result<(), String>;

impl Handler for Multipath {
    fn start(&mut self, cx: &mut Context<'_>) {
        let first = cx.plumb();
        Multipath::report_movable(cx, first);
    }

    fn bind(&mut self, cx: &mut Context<'_>, at: Address) {
        cx.output(FIRST).bind(at);
    }

    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        self.session.to = Some(to.clone());
        self.begin(cx, FIRST, Stage::Connecting);
        if let Some(from) = self.plan.from.first() {
            cx.output(FIRST).bind(from.clone());
        }
        cx.output(FIRST).connect(to);
    }

    fn connected(&mut self, cx: &mut Context<'_>, from: Output, result: Result<(), Failure>) {
        self.has_connected(cx, from, result);
        self.settle(cx);
    }

    fn accepted(&mut self, cx: &mut Context<'_>, from: Output) {
        self.begin(cx, from, Stage::Accepted);
        self.session.answered = true;
        self.settle(cx);
    }

    fn taken(&mut self, cx: &mut Context<'_>, output: Output, said: Bytes) {
        self.take(cx, output, &said);
        self.settle(cx);
    }

    fn unclaimed(&mut self, cx: &mut Context<'_>, output: Output) {
        Multipath::say(cx, output, &Frame::Unknown);
        self.over = true;
        cx.set_timer(TICK, None);
        cx.output(output).close();
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        if self.over || self.out.ended {
            return false;
        }
        self.out.push(data);
        self.settle(cx);
        true
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match half {
            Half::Write => self.end(cx, End::Shutdown),
            Half::Read => self.is_read_closed = true,
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        match self.session.is_begun() {
            true => self.end(cx, End::Close),
            false => cx.output(FIRST).close(),
        }
    }

    fn abort(&mut self, cx: &mut Context<'_>) {
        (self.aborted, self.is_read_closed) = (true, true);
        self.settle(cx);
    }

    /// Unacknowledged data, which a reset of another connection would overtake.
    fn held(&self) -> u64 {
        if self.over { 0 } else { self.out.costs().0 as u64 }
    }

    fn setsockopt(&mut self, cx: &mut Context<'_>, option: SocketOption) {
        self.options.set(option);
        match self.paths.is_empty() {
            true => cx.output(FIRST).setsockopt(option),
            false => {
                self.paths.iter().for_each(|path| cx.output(path.output).setsockopt(option));
            }
        }
    }

    fn getsockopt(&mut self, _cx: &mut Context<'_>, level: i32, name: i32) -> Option<i32> {
        self.options.get(level, name)
    }

    fn getsockname(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.names[0].clone().or_else(|| cx.output(FIRST).getsockname())
    }

    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.names[1].clone().or_else(|| cx.output(FIRST).getpeername())
    }

    /// `retry`: the network has changed; all connections are marked as suspect, and are replaced.
    /// Any other request is answered with the status.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        if to != self.plan.name {
            let output = self.paths.first().map_or(FIRST, |path| path.output);
            return cx.output(output).control(to, request);
        }
        if request == b"retry" && self.session.is_begun() && !self.over {
            self.paths.iter_mut().for_each(Path::mark_suspect);
            self.session.retry_now(cx.now());
            self.settle(cx);
        }
        let live = self.paths.iter().filter(|path| path.is_usable()).count();
        let (kept, unsent) = self.out.costs();
        Some(format!("paths {live}\nkept {kept}\nunsent {unsent}\n").into_bytes())
    }

    fn avail(&mut self, cx: &mut Context<'_>, from: Output, data: Bytes) -> bool {
        let takes = self.handle_bytes(cx, from, &data);
        self.settle(cx);
        takes
    }

    fn finished(&mut self, cx: &mut Context<'_>, from: Output) {
        self.handle_broken(cx, from, Failure::Reset);
        self.settle(cx);
    }

    fn failed(&mut self, cx: &mut Context<'_>, from: Output, why: Failure) {
        self.handle_broken(cx, from, why);
        self.settle(cx);
    }

    fn may_write(&mut self, cx: &mut Context<'_>, from: Output, may: bool) {
        match self.path(from) {
            Some(path) => path.is_writable = may,
            None => self.is_writable = may,
        }
        if may {
            // An acknowledgement may have waited for room on the connection.
            self.deadlines.set(Deadline::Ack, cx.now());
            self.send_pongs(cx, from);
        }
        self.settle(cx);
    }

    /// Connections are still read, for acknowledgements. Data is buffered up to the limit.
    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        self.open = may;
        self.settle(cx);
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        self.tick(cx);
        self.settle(cx);
    }
}
