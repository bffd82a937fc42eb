//! `mux`: flows of one program to one destination share a connection, and its congestion
//! control state. The protocol is that of the [tunnel](crate::tunnel) ("Taming the LFN", slides
//! 13 to 20).
//!
//! ```text
//!   flow ─ Stream ─┐                                                              ┌─ Stream ─ flow
//!   flow ─ Stream ─┼─ MuxState ─ SharedConnection ══ SharedConnection ─ MuxState ─┼─ Stream ─ flow
//!   flow ─ Stream ─┘                       one Tunnel each                        └─ Stream ─ flow
//! ```
//!
//! Each flow of the program is a *stream*, in a chain of its own. The *shared connection* is a
//! chain without an application. It is spawned for the first stream to a destination, and closed
//! shortly after the last one. At the other end the accepted connection becomes the shared
//! connection, and spawns a chain for each stream of its tunnel. Handlers above `mux` process each
//! flow, and those below it the shared connection.
//!
//! `state` has the shared connections and their streams; `connection` and `stream` are the two
//! roles of a handler.

mod connection;
mod state;
mod stream;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::Shell;
use super::multipath::{buffer, time};
use crate::flow::{
    About, Address, Arguments, Context, End, FIRST, Factory, Failure, Half, Handler, Output, Timer,
};
use crate::time::Duration;
use crate::tunnel::Settings;
use connection::SharedConnection;
use state::{ChainId, MuxState};
use stream::Stream;

const TICK: Timer = Timer(0);
/// Maximum number of shared connections in a report.
const MAX_REPORTED: usize = 64;

struct MuxFactory(Arc<Mutex<MuxState>>);

struct Mux {
    shared: Arc<Mutex<MuxState>>,
    /// Local address that the flow must have, if any.
    from: Option<IpAddr>,
    role: Role,
}

enum Role {
    Fresh,
    /// A flow on a shared connection.
    Stream(Stream),
    Connection(SharedConnection),
}

pub(super) fn about() -> About {
    About::new("mux", "shares one connection among a program's flows to one destination")
        .setting("buffer", "BYTES", "bytes that the other end may send ahead; 8M by default")
        .setting("silence", "TIME", "maximum silence of the connection; unlimited by default")
        .both_ends()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let silence = arguments.take("silence", "a time such as 30s, 5m or 2h", time)?;
    let settings = Settings {
        limit: buffer(arguments)? as u64,
        // Ten years stand for no timeout: the transport itself reports a broken connection.
        silence: silence.unwrap_or(Duration::from_secs(10 * 365 * 24 * 60 * 60)),
        ..Settings::default()
    };
    let shared = MuxState::new(settings, &shell.entropy);
    Ok(Arc::new(MuxFactory(Arc::new(Mutex::new(shared)))))
}

impl Factory for MuxFactory {
    fn name(&self) -> &'static str {
        "mux"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Mux { shared: self.0.clone(), from: None, role: Role::Fresh })
    }

    fn shares(&self) -> bool {
        true
    }

    fn reaches(&self, to: &Address) -> bool {
        lock(&self.0).conn_to(to, None).is_some()
    }

    fn state(&self) -> Option<String> {
        let shared = lock(&self.0);
        let mut text = String::new();
        for connection in shared.conns.values().take(MAX_REPORTED) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{connection}");
        }
        Some(text).filter(|text| !text.is_empty())
    }
}

impl Handler for Mux {
    fn bind(&mut self, _cx: &mut Context<'_>, at: Address) {
        self.from = match at {
            Address::Ip(at) => Some(at.ip()),
            Address::Name(..) => None,
        };
    }

    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        let stream = Stream::connecting(cx, &mut lock(&self.shared), to, self.from);
        self.role = Role::Stream(stream);
    }

    fn spawned(&mut self, cx: &mut Context<'_>, message: &[u8]) {
        let shared = &mut lock(&self.shared);
        self.role = match ChainId::parse(message) {
            Some(ChainId::Connection(number)) => SharedConnection::connecting(cx, shared, number)
                .map_or(Role::Fresh, Role::Connection),
            Some(ChainId::Stream(number)) => Role::Stream(Stream::accepted(cx, shared, number)),
            None => Role::Fresh,
        };
    }

    fn unspawned(&mut self, cx: &mut Context<'_>, message: &[u8]) {
        match (&mut self.role, ChainId::parse(message)) {
            // The connection is removed, so that no further stream waits for it, and all streams
            // that wait for it fail.
            (Role::Stream(_), Some(ChainId::Connection(number))) => {
                let shared = &mut lock(&self.shared);
                for stream in shared.remove_conn(number, Failure::Unreachable) {
                    cx.wake(&shared.key(&ChainId::Stream(stream)));
                }
            }
            (Role::Connection(connection), Some(ChainId::Stream(number))) => {
                connection.refuse(cx, &mut lock(&self.shared), number);
            }
            _ => {}
        }
    }

    fn accepted(&mut self, cx: &mut Context<'_>, from: Output) {
        let connection = SharedConnection::accepted(cx, &mut lock(&self.shared), from);
        self.role = Role::Connection(connection);
    }

    fn woken(&mut self, cx: &mut Context<'_>, _key: &[u8]) {
        let shared = &mut lock(&self.shared);
        match &mut self.role {
            Role::Stream(stream) => stream.settle(cx, shared),
            Role::Connection(connection) => connection.settle(cx, shared),
            Role::Fresh => {}
        }
    }

    fn abandoned(&mut self, cx: &mut Context<'_>) {
        let shared = &mut lock(&self.shared);
        match &mut self.role {
            Role::Stream(stream) => stream.reset(cx, shared),
            Role::Connection(connection) => connection.shut_down(cx, shared, Failure::Reset),
            Role::Fresh => {}
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        match &mut self.role {
            Role::Stream(stream) => stream.write(cx, &mut lock(&self.shared), data),
            Role::Connection(_) | Role::Fresh => false,
        }
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        if let (Role::Stream(stream), Half::Write) = (&mut self.role, half) {
            stream.end(cx, &mut lock(&self.shared), End::Shutdown);
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        match &mut self.role {
            Role::Stream(stream) => stream.end(cx, &mut lock(&self.shared), End::Close),
            Role::Connection(_) | Role::Fresh => cx.output(FIRST).close(),
        }
    }

    fn held(&self) -> u64 {
        match &self.role {
            Role::Stream(stream) => stream.held(&mut lock(&self.shared)),
            Role::Connection(_) | Role::Fresh => 0,
        }
    }

    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        if let Role::Stream(stream) = &mut self.role {
            stream.may_avail(cx, &mut lock(&self.shared), may);
        }
    }

    fn getsockname(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.names(cx).0
    }

    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.names(cx).1
    }

    fn connected(&mut self, cx: &mut Context<'_>, _from: Output, result: Result<(), Failure>) {
        if let Role::Connection(connection) = &mut self.role {
            connection.connected(cx, &mut lock(&self.shared), result);
        }
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        match &mut self.role {
            Role::Connection(connection) => {
                connection.handle_bytes(cx, &mut lock(&self.shared), &data)
            }
            Role::Stream(_) | Role::Fresh => false,
        }
    }

    fn finished(&mut self, cx: &mut Context<'_>, from: Output) {
        self.failed(cx, from, Failure::Reset);
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        if let Role::Connection(connection) = &mut self.role {
            connection.shut_down(cx, &mut lock(&self.shared), why);
        }
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        if let Role::Connection(connection) = &mut self.role {
            connection.set_writable(cx, &mut lock(&self.shared), may);
        }
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        if let Role::Connection(connection) = &mut self.role {
            connection.timeout(cx, &mut lock(&self.shared));
        }
    }

    /// Answers any request with the state of the flow's shared connection.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        match &self.role {
            Role::Stream(stream) if to == "mux" => {
                Some(lock(&self.shared).about(stream.connection)?.into_bytes())
            }
            Role::Stream(_) => None,
            Role::Connection(_) | Role::Fresh => cx.output(FIRST).control(to, request),
        }
    }
}

impl Mux {
    /// Local and remote address of the flow: those of the shared connection.
    fn names(&self, cx: &mut Context<'_>) -> (Option<Address>, Option<Address>) {
        match &self.role {
            Role::Stream(stream) => lock(&self.shared).names(stream.connection),
            Role::Connection(_) | Role::Fresh => {
                (cx.output(FIRST).getsockname(), cx.output(FIRST).getpeername())
            }
        }
    }
}

fn lock(shared: &Mutex<MuxState>) -> MutexGuard<'_, MuxState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
