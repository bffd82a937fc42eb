//! Chain I/O, and the handlers' requests.

use std::io;

use viaduct_proto::flow::{Action, Address, BottomId, Half};
use viaduct_proto::time::Instant;

use super::net_conn::{Ending, NetConn};
use super::{ChainIo, ChainRequest, Stage};
use crate::engine::conn::Conn;
use crate::engine::flow::Moved;
use crate::rate_limited::RateLimitedLog;

/// Maximum number of reads from each end before other flows are served.
const TURNS: usize = 16;
/// Log lines of handlers, rate-limited: remote hosts can provoke them.
static SAID: RateLimitedLog<String> = RateLimitedLog::new(4);

impl ChainIo {
    /// Time at which the flow is driven even without an event: the handlers' earliest timer, or
    /// immediately if there are requests.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.requests.is_empty() { self.chain.poll_timeout() } else { Some(Instant::ZERO) }
    }

    /// Moves as many bytes as possible. `held` is set for each end (the application's, the flow's
    /// own connection) that accepts no bytes yet. `Err` if the application's end broke.
    pub fn drive(
        &mut self,
        [mut app, mut main]: [Option<&mut Conn>; 2],
        held: [bool; 2],
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<Moved> {
        if self.chain.measures() {
            self.net_conns
                .iter()
                .for_each(|net_conn| net_conn.measure(main.as_deref(), &mut self.chain));
        }
        self.chain.handle_timeout(now);
        let mut moved = Moved::default();
        for _ in 0..TURNS {
            let from_app = self.read_app(&mut app, scratch, now)?;
            let mut from_network = 0;
            for net_conn in &mut self.net_conns {
                from_network += net_conn.read(&mut main, &mut self.chain, scratch, now);
            }
            self.act();
            // Options apply only to bytes that are written after they are set.
            self.apply_options(main.as_deref());
            let mut written = if held[0] { 0 } else { self.write_app(&mut app, now)? };
            for (n, net_conn) in self.net_conns.iter_mut().enumerate() {
                if n > 0 || !held[1] {
                    written += net_conn.write(&mut main, &mut self.chain, now);
                }
            }
            moved.written += written as u64;
            // Sent bytes may have completed a direction, or unblocked the other.
            self.act();
            self.end_directions(&mut app, &mut main)?;
            let breaking = self.net_conns.iter().any(NetConn::is_breaking);
            if from_app == 0 && from_network == 0 && written == 0 && !breaking {
                let nobody =
                    self.stage == Stage::Opening && self.net_conns.iter().all(NetConn::is_left);
                moved.done = (self.alone || self.app.shut || nobody) && self.is_over();
                self.remove_closed();
                return Ok(moved);
            }
            moved.bytes[0] += from_app;
            moved.bytes[1] += from_network;
        }
        moved.more = true;
        Ok(moved)
    }

    /// Returns whether no more bytes will be sent to the network. A chain that has no connections
    /// but a running timer waits for new connections, because its last bytes may not have arrived.
    fn is_over(&self) -> bool {
        let waits = self.chain.poll_timeout().is_some();
        self.net_conns.iter().all(NetConn::is_over)
            && !(waits && self.net_conns.iter().all(NetConn::is_left))
    }

    /// Delivers the remaining bytes of the broken end; returns how many are left, and adds those
    /// written to `moved`.
    pub fn deliver_rest(
        &mut self,
        [mut app, main]: [Option<&mut Conn>; 2],
        scratch: &mut [u8],
        moved: &mut Moved,
        now: Instant,
    ) -> u64 {
        if let Stage::Failed(_) = self.stage {
            // The network's end broke.
            let written = self.write_app(&mut app, now);
            return written.map_or(0, |_| self.chain.incoming().len() as u64);
        }
        let is_read = self.aborted || self.read_rest(app, scratch, now);
        if is_read && self.chain.held() == 0 {
            self.abort(now);
        }
        if let Ok(more) = self.drive([None, main], [true, false], scratch, now) {
            moved.written += more.written;
        }
        let outgoing =
            self.net_conns.iter().map(|net_conn| self.chain.outgoing(net_conn.id).len() as u64);
        // At least 1 until the handlers have aborted towards the other end.
        outgoing.sum::<u64>() + self.chain.held() + u64::from(!self.aborted)
    }

    /// Makes the handlers abort towards the other end, even if data is still queued. Returns false
    /// if they were already told to abort.
    pub fn abort(&mut self, now: Instant) -> bool {
        let aborts = !std::mem::replace(&mut self.aborted, true);
        if aborts {
            self.chain.abort(now);
        }
        aborts
    }

    /// Reads the remaining bytes of the application's broken end. Returns true if none are left to
    /// read.
    fn read_rest(&mut self, app: Option<&mut Conn>, scratch: &mut [u8], now: Instant) -> bool {
        let Some(conn) = app else { return true };
        self.app.readable = true;
        while self.chain.may_write() {
            self.app.paused = false;
            match self.app.read(conn, scratch) {
                Ok(Some(data)) if !data.is_empty() => _ = self.chain.write(now, data),
                // An end of stream that follows an error was not sent by the application.
                _ => return true,
            }
        }
        self.app.ended
    }

    pub(super) fn read_app(
        &mut self,
        app: &mut Option<&mut Conn>,
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<u64> {
        let Some(conn) = app else { return Ok(0) };
        self.app.paused = !self.chain.may_write();
        let Some(read) = self.app.read(conn, scratch)? else { return Ok(0) };
        let bytes = read.len() as u64;
        match read.is_empty() {
            true => self.chain.shutdown(now, Half::Write),
            false => self.app.ended |= !self.chain.write(now, read),
        }
        Ok(bytes)
    }

    pub(super) fn write_app(
        &mut self,
        app: &mut Option<&mut Conn>,
        now: Instant,
    ) -> io::Result<usize> {
        let Some(conn) = app else { return Ok(0) };
        let mut written = 0;
        while let Some(count) = self.app.write(conn, self.chain.incoming())? {
            self.chain.consumed(now, count);
            written += count;
        }
        Ok(written)
    }

    /// Carries out the chain's actions, or records them as requests.
    pub(super) fn act(&mut self) {
        while let Some(action) = self.chain.poll_action() {
            match action {
                Action::Bind(id, Address::Ip(at)) => {
                    // Only the last address for a connection is used.
                    self.binds.retain(|(of, _)| *of != id);
                    self.binds.push((id, at));
                }
                Action::Connect(id, to) => {
                    let bound = self.binds.iter().position(|(of, _)| *of == id);
                    let from = bound.map(|at| self.binds.swap_remove(at).1);
                    self.requests.push(ChainRequest::Connect(id, to, from));
                }
                Action::Claim(key) => self.requests.push(ChainRequest::Claim(key)),
                Action::Release(key) => self.requests.push(ChainRequest::Release(key)),
                Action::Give(key) => self.requests.push(ChainRequest::Give(key)),
                Action::Wake(key) => self.requests.push(ChainRequest::Wake(key)),
                Action::Spawn(spawn) => self.requests.push(ChainRequest::Spawn(spawn)),
                Action::Close(id) => {
                    // A connection that was requested but not begun yet is not begun.
                    self.requests.retain(|request| !request.connects(id));
                    self.net_conn(id, |net_conn| net_conn.end = Some(Ending::Close));
                }
                Action::Shutdown(id, Half::Write) => {
                    self.net_conn(id, |net_conn| {
                        net_conn.end = net_conn.end.or(Some(Ending::Shut));
                    });
                }
                Action::Shutdown(id, Half::Read) => {
                    self.net_conn(id, |net_conn| net_conn.state.ended = true);
                }
                Action::Receive(id, may) => {
                    self.net_conn(id, |net_conn| net_conn.state.paused = !may);
                }
                Action::Connected(Ok(())) | Action::Accepted => self.stage = Stage::Open,
                Action::Connected(Err(why)) | Action::Failed(why) => {
                    self.stage = Stage::Failed(why);
                }
                Action::Finished => self.finished = true,
                Action::Say(line) => SAID.warn(line.clone(), line),
                Action::Event(event) => self.events.push(event),
                Action::SetOption(..) => self.sets_options = true,
                _ => {}
            }
        }
    }

    /// Shuts down, on each connection that is present, the directions that have finished.
    pub(super) fn end_directions(
        &mut self,
        app: &mut Option<&mut Conn>,
        main: &mut Option<&mut Conn>,
    ) -> io::Result<()> {
        // The main connection of a broken flow is reset soon, and must not look as if it had ended
        // in order.
        let breaks = matches!(self.stage, Stage::Failed(_));
        self.net_conns.iter_mut().skip(usize::from(breaks)).for_each(|net_conn| net_conn.end(main));
        match app {
            Some(conn) if self.finished => self.app.shut(conn),
            _ => Ok(()),
        }
    }

    pub(super) fn net_conn(&mut self, id: BottomId, what: impl FnOnce(&mut NetConn)) {
        self.net_conns.iter_mut().find(|net_conn| net_conn.id == id).map(what);
    }
}
