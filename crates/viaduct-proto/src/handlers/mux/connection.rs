//! Connection that several flows share.

use super::TICK;
use super::state::{ChainId, ConnState, MuxState};
use crate::flow::{Address, Context, FIRST, Failure, Output, SpawnKind};
use crate::time::{Duration, Instant};
use crate::tunnel::Carrier;
use crate::tunnel::wire::peek_hello;

/// Time for which an unused connection is kept for further flows.
const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time within which the other end must answer on a new connection.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum bytes of frames produced at once.
const TURN: usize = 64 << 10;

pub(super) struct SharedConnection {
    number: u64,
    output: Output,
    /// Bytes received before the first message was complete.
    early: Vec<u8>,
    /// Time by which the other end must answer; `None` before the connection is established and
    /// once the other end has answered.
    welcome: Option<Instant>,
    /// True if the other end has opened a stream on the connection.
    served: bool,
    /// Time since which no stream has been on the connection; only known at the connecting end.
    idle: Option<Instant>,
    over: bool,
}

impl SharedConnection {
    fn new(number: u64, output: Output) -> SharedConnection {
        SharedConnection {
            number,
            output,
            early: Vec::new(),
            welcome: None,
            served: false,
            idle: None,
            over: false,
        }
    }

    /// Starts to connect the shared connection spawned for a stream; `None` if no longer needed.
    pub(super) fn connecting(
        cx: &mut Context<'_>,
        mux: &mut MuxState,
        number: u64,
    ) -> Option<SharedConnection> {
        let conn = mux.conn(number)?;
        let (to, from) = (conn.to.clone()?, conn.from);
        cx.claim(&mux.key(&ChainId::Connection(number)));
        if let Some(from) = from {
            // Any free port, because the first flow's port may be reused before the connection is
            // closed.
            cx.output(FIRST).bind(Address::Ip((from, 0).into()));
        }
        cx.output(FIRST).connect(to);
        Some(SharedConnection::new(number, FIRST))
    }

    pub(super) fn accepted(
        cx: &mut Context<'_>,
        mux: &mut MuxState,
        output: Output,
    ) -> SharedConnection {
        let number = mux.add_conn(None, None);
        cx.claim(&mux.key(&ChainId::Connection(number)));
        let mut connection = SharedConnection::new(number, output);
        connection.learn_names(cx, mux);
        connection.await_answer(cx);
        cx.set_timer(TICK, connection.welcome);
        connection
    }

    fn await_answer(&mut self, cx: &Context<'_>) {
        self.welcome = Some(cx.now() + WELCOME_TIMEOUT);
    }

    fn learn_names(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        let names = (cx.output(self.output).getsockname(), cx.output(self.output).getpeername());
        if let Some(conn) = mux.conn(self.number) {
            conn.names = names;
        }
    }

    pub(super) fn connected(
        &mut self,
        cx: &mut Context<'_>,
        mux: &mut MuxState,
        result: Result<(), Failure>,
    ) {
        if let Err(why) = result {
            return self.shut_down(cx, mux, why);
        }
        self.learn_names(cx, mux);
        self.await_answer(cx);
        if let Some(conn) = mux.conn(self.number) {
            conn.link = Some(conn.tunnel.dial(cx.now(), Carrier::Stream));
        }
        self.settle(cx, mux);
    }

    /// Handles bytes of the connection. Returns false if the connection has ended.
    pub(super) fn handle_bytes(
        &mut self,
        cx: &mut Context<'_>,
        mux: &mut MuxState,
        data: &[u8],
    ) -> bool {
        let Some(conn) = mux.conn(self.number) else { return false };
        match conn.link {
            Some(link) => conn.tunnel.handle_bytes(cx.now(), link, 0, data),
            None => {
                self.early.extend_from_slice(data);
                let hello = match peek_hello(&self.early) {
                    Ok(None) => return true,
                    Ok(Some(hello)) => hello,
                    Err(error) => {
                        cx.say(format_args!("the other end does not speak mux: {error}"));
                        self.shut_down(cx, mux, Failure::Reset);
                        return false;
                    }
                };
                conn.tunnel.accept_link(cx.now(), hello.link, Carrier::Stream);
                conn.link = Some(hello.link);
                let early = std::mem::take(&mut self.early);
                conn.tunnel.handle_bytes(cx.now(), hello.link, 0, &early);
            }
        }
        self.settle(cx, mux);
        !self.over
    }

    pub(super) fn set_writable(&mut self, cx: &mut Context<'_>, mux: &mut MuxState, may: bool) {
        if let Some((conn, link)) = mux.conn(self.number).and_then(|l| l.link.map(|at| (l, at))) {
            conn.tunnel.set_writable(link, may);
        }
        if may {
            self.settle(cx, mux);
        }
    }

    pub(super) fn timeout(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        if let Some(conn) = mux.conn(self.number) {
            conn.tunnel.handle_timeout(cx.now());
        }
        self.settle(cx, mux);
    }

    /// Refuses a stream whose chain cannot be created.
    pub(super) fn refuse(&mut self, cx: &mut Context<'_>, mux: &mut MuxState, stream: u64) {
        if let Some((state, Some(conn))) = mux.stream(stream)
            && let Some(id) = state.id
        {
            conn.tunnel.reset(id, Failure::Unreachable);
        }
        mux.remove_stream(stream);
        self.settle(cx, mux);
    }

    /// Handles events of the streams, sends frames, and sets the timer.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        if self.over {
            return;
        }
        for stream in mux.open_waiting(self.number) {
            cx.wake(&mux.key(&ChainId::Stream(stream)));
        }
        self.wake_streams(cx, mux);
        let is_left = mux.is_idle(self.number);
        let Some(conn) = mux.conn(self.number) else { return };
        let stats = conn.link.and_then(|link| conn.tunnel.link_stats(link));
        let waits = !stats.is_some_and(|stats| stats.up);
        self.welcome = self.welcome.filter(|_| waits);
        if self.welcome.is_some_and(|until| cx.now() >= until) {
            cx.say("the other end does not answer; does it have mux?");
            return self.shut_down(cx, mux, Failure::TimedOut);
        }
        let Some(link) = conn.link else { return };
        if !conn.tunnel.links().any(|there| there == link) {
            if let Some(why) = &conn.broken {
                cx.say(format_args!("the connection to the other end broke: {why}"));
            }
            return self.shut_down(cx, mux, Failure::Reset);
        }
        let more = self.send(cx, conn);
        // The connecting end closes an unused connection, once all data of its flows has been
        // delivered.
        let idle = is_left && conn.to.is_some() && conn.tunnel.stats().open == 0;
        let next = if more { Some(cx.now()) } else { conn.tunnel.poll_timeout() };
        self.idle = idle.then(|| self.idle.unwrap_or(cx.now()));
        // Sending has made room for the streams.
        self.wake_streams(cx, mux);
        match self.idle.map(|since| since + IDLE_TIMEOUT) {
            Some(end) if cx.now() >= end => self.shut_down(cx, mux, Failure::Reset),
            end => cx.set_timer(TICK, [end, next, self.welcome].into_iter().flatten().min()),
        }
    }

    /// Wakes the streams that have events, and spawns chains for new streams.
    fn wake_streams(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        let (woken, new) = mux.poll_events(self.number);
        for stream in new {
            self.served = true;
            cx.spawn(SpawnKind::Accepted, &ChainId::Stream(stream).emit());
        }
        for stream in woken {
            cx.wake(&mux.key(&ChainId::Stream(stream)));
        }
    }

    /// Sends frames while the tunnel has some; the output's `may_write` stops the tunnel. Returns
    /// true if the limit of a turn was reached and more frames may follow.
    fn send(&mut self, cx: &mut Context<'_>, conn: &mut ConnState) -> bool {
        let mut frames = Vec::new();
        while conn.tunnel.poll_transmit(cx.now(), &mut frames).is_some() {
            if frames.len() >= TURN {
                let _ = cx.output(self.output).write(std::mem::take(&mut frames).into());
                return true;
            }
        }
        if !frames.is_empty() {
            // A failed write is ignored, since a broken connection reports its failure itself.
            let _ = cx.output(self.output).write(frames.into());
        }
        false
    }

    /// Ends the connection and its flows, because the connection is broken or no longer needed.
    pub(super) fn shut_down(&mut self, cx: &mut Context<'_>, mux: &mut MuxState, why: Failure) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        // The application of an accepted connection without flows may still wait for a result.
        if !self.served && mux.conn(self.number).is_some_and(|conn| conn.to.is_none()) {
            cx.upstream().failed(why);
        }
        for stream in mux.remove_conn(self.number, why) {
            cx.wake(&mux.key(&ChainId::Stream(stream)));
        }
        cx.release(&mux.key(&ChainId::Connection(self.number)));
        cx.set_timer(TICK, None);
        cx.output(self.output).close();
    }
}
