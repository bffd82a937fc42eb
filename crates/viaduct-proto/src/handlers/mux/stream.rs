//! Flow on a shared connection.

use std::net::IpAddr;

use bytes::Bytes;

use super::End;
use super::state::{ChainId, ConnState, MuxState};
use crate::flow::{Address, Context, Early, FIRST, Failure, SpawnKind};
use crate::tunnel::StreamId;

/// Maximum bytes delivered at once, so that upstream can apply backpressure.
const TURN: usize = 64 << 10;

/// Handler of a flow on a shared connection.
pub(super) struct Stream {
    number: u64,
    pub(super) connection: u64,
    /// Data written before the stream was opened.
    early: Early,
    /// True if the application may not write until the stream is opened.
    waits: bool,
    /// True if the application was notified that the flow is established.
    established: bool,
    /// True if the application currently takes no bytes.
    stopped: bool,
    /// True if the application will write no more data.
    ended: bool,
    /// True if the application has closed the flow, so that it will also read no more data.
    closed: bool,
    /// True if the application was notified of the end of the stream.
    finished: bool,
    over: bool,
}

impl Stream {
    fn new(number: u64, connection: u64, established: bool) -> Stream {
        let early = Early::default();
        let [waits, stopped, ended, closed, finished, over] = [false; 6];
        Stream {
            number,
            connection,
            early,
            waits,
            established,
            stopped,
            ended,
            closed,
            finished,
            over,
        }
    }

    /// Opens a stream on a shared connection to `to`, or on a new one if none has room. Streams
    /// with different `from` never share a connection.
    pub(super) fn connecting(
        cx: &mut Context<'_>,
        mux: &mut MuxState,
        to: Address,
        from: Option<IpAddr>,
    ) -> Stream {
        let known = mux.conn_to(&to, from);
        let connection = known.unwrap_or_else(|| mux.add_conn(Some(to), from));
        let number = mux.add_stream(connection, None);
        cx.claim(&mux.key(&ChainId::Stream(number)));
        if let Some(conn) = mux.conn(connection) {
            conn.waiting.push(number);
        }
        match known {
            Some(_) => cx.wake(&mux.key(&ChainId::Connection(connection))),
            None => cx.spawn(SpawnKind::Alone, &ChainId::Connection(connection).emit()),
        }
        cx.upstream().may_write(false);
        Stream { waits: true, ..Stream::new(number, connection, false) }
    }

    /// Stream that the other end has opened.
    pub(super) fn accepted(cx: &mut Context<'_>, mux: &mut MuxState, number: u64) -> Stream {
        cx.claim(&mux.key(&ChainId::Stream(number)));
        let mut connection = 0;
        if let Some((state, conn)) = mux.stream(number) {
            connection = state.connection;
            state.readable = true;
            conn.zip(state.id).into_iter().for_each(|(conn, id)| conn.tunnel.accept(id));
        }
        cx.upstream().accepted();
        let stream = Stream::new(number, connection, true);
        stream.wake_self(cx, mux);
        stream.wake_connection(cx, mux);
        stream
    }

    pub(super) fn write(&mut self, cx: &mut Context<'_>, mux: &mut MuxState, data: Bytes) -> bool {
        if self.over || self.ended {
            return false;
        }
        let Some((state, Some(conn))) = mux.stream(self.number) else { return false };
        let Some(id) = state.id else {
            self.early.push(data);
            return true;
        };
        let takes = data.is_empty() || conn.tunnel.write(cx.now(), id, data);
        if takes && !conn.tunnel.may_write(id) {
            cx.upstream().may_write(false);
        }
        self.wake_connection(cx, mux);
        takes
    }

    /// Handles the end of the application's data.
    pub(super) fn end(&mut self, cx: &mut Context<'_>, mux: &mut MuxState, end: End) {
        self.ended = true;
        self.closed |= end == End::Close;
        let Some((state, conn)) = mux.stream(self.number) else { return };
        match (state.id, conn) {
            (Some(id), Some(conn)) => conn.tunnel.shutdown(id),
            _ => self.early.end(end),
        }
        self.wake_connection(cx, mux);
        self.settle(cx, mux);
    }

    pub(super) fn may_avail(&mut self, cx: &mut Context<'_>, mux: &mut MuxState, may: bool) {
        self.stopped = !may;
        if may {
            self.settle(cx, mux);
        }
    }

    /// Bytes that the program at the other end has not read. A reset of the stream would drop them.
    pub(super) fn held(&self, mux: &mut MuxState) -> u64 {
        let Some((state, Some(conn))) = mux.stream(self.number) else { return 0 };
        let stats = state.id.and_then(|id| conn.tunnel.stream_stats(id));
        self.early.len() + stats.map_or(0, |stats| stats.queued + stats.outstanding)
    }

    pub(super) fn settle(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        if self.over {
            return;
        }
        self.send_early(cx, mux);
        let Some((state, conn)) = mux.stream(self.number) else { return };
        if let Some(why) = state.failed {
            mux.remove_stream(self.number);
            return self.fail(cx, why);
        }
        let news = (state.accepted, std::mem::take(&mut state.writable), state.finished);
        let (accepted, writable, finished) = news;
        if accepted && !std::mem::replace(&mut self.established, true) {
            cx.upstream().connected(Ok(()));
        }
        if writable {
            cx.upstream().may_write(true);
        }
        if let (Some(id), Some(conn)) = (state.id, conn) {
            let readable = state.readable;
            match self.deliver(cx, conn, id, readable) {
                Delivered::None => {}
                Delivered::All => state.readable = false,
                Delivered::Some => self.wake_self(cx, mux),
                Delivered::Unwanted => return self.reset(cx, mux),
            }
        }
        if finished && !std::mem::replace(&mut self.finished, true) {
            cx.upstream().finished();
        }
        if self.finished && self.ended {
            mux.remove_stream(self.number);
            self.finish(cx);
        }
        self.wake_connection(cx, mux);
    }

    /// Delivers data that can be read.
    fn deliver(
        &self,
        cx: &mut Context<'_>,
        conn: &mut ConnState,
        id: StreamId,
        readable: bool,
    ) -> Delivered {
        if !readable || !self.established || self.stopped {
            return Delivered::None;
        }
        let mut delivered = 0;
        while delivered < TURN {
            let Some(data) = conn.tunnel.read(id) else { return Delivered::All };
            delivered += data.len();
            conn.tunnel.consumed(cx.now(), id, data.len());
            // A closed flow drops incoming data. Once the other end has read all of the flow's own
            // data, the flow is reset, as a TCP connection would be. A reset before that would make
            // the tunnel drop data that the other end has not read.
            let stats = || conn.tunnel.stream_stats(id);
            let is_read = || stats().is_none_or(|stats| stats.queued + stats.outstanding == 0);
            if self.closed && is_read() {
                return Delivered::Unwanted;
            }
            if !self.closed {
                // The result is ignored, because an application that no longer reads may still
                // write.
                let _ = cx.upstream().avail(data);
            }
        }
        Delivered::Some
    }

    /// Sends data that was written before the stream was opened.
    fn send_early(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        let Some((state, Some(conn))) = mux.stream(self.number) else { return };
        let Some(id) = state.id else { return };
        let (pieces, end) = self.early.take();
        for piece in pieces {
            conn.tunnel.write(cx.now(), id, piece);
        }
        if end.is_some() {
            conn.tunnel.shutdown(id);
        }
        if std::mem::take(&mut self.waits) && conn.tunnel.may_write(id) {
            cx.upstream().may_write(true);
        }
    }

    /// Handles a flow that broke, or could not be established.
    pub(super) fn fail(&mut self, cx: &mut Context<'_>, why: Failure) {
        match self.established {
            true => cx.upstream().failed(why),
            false => cx.upstream().connected(Err(why)),
        }
        self.finish(cx);
    }

    /// Drops the flow, with any buffered data.
    pub(super) fn reset(&mut self, cx: &mut Context<'_>, mux: &mut MuxState) {
        if self.over {
            return;
        }
        if let Some((state, Some(conn))) = mux.stream(self.number)
            && let Some(id) = state.id
        {
            conn.tunnel.reset(id, Failure::Reset);
        }
        mux.remove_stream(self.number);
        self.wake_connection(cx, mux);
        self.finish(cx);
    }

    fn finish(&mut self, cx: &mut Context<'_>) {
        self.over = true;
        // The output was never connected; closing it ends the chain.
        cx.output(FIRST).close();
    }

    fn wake_connection(&self, cx: &mut Context<'_>, mux: &MuxState) {
        cx.wake(&mux.key(&ChainId::Connection(self.connection)));
    }

    /// Wakes this stream again, because more can be delivered.
    fn wake_self(&self, cx: &mut Context<'_>, mux: &MuxState) {
        cx.wake(&mux.key(&ChainId::Stream(self.number)));
    }
}

enum Delivered {
    /// Nothing to deliver, or delivery is not possible now.
    None,
    /// All data was delivered.
    All,
    /// A turn's worth was delivered; there may be more.
    Some,
    /// The flow is closed, so the data is not wanted.
    Unwanted,
}
