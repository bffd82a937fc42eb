//! Requests of wrapped programs to the handlers of their flows, and events that the handlers report
//! to programs (section 3.6 of the TESLA paper).
//!
//! ```text
//!   program ── its socket, a request ──▶ interposer ── ProgramRequest ──▶ worker ──▶ chain
//!   handler ── event ──▶ worker ──┬──▶ watchers of the flow
//!                                 └──▶ EventSink: the master of the programs
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use tracing::debug;
use viaduct_proto::time::Instant;
use viaduct_proto::wrap::aware::YES;
use viaduct_sys::socket::seqpacket;

use super::flow::Middle;
use super::worker::Worker;

/// Key by which a program identifies a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketId {
    /// By the cookie of the program's socket.
    Cookie(u64),
    /// By the addresses of an inbound connection: the client's, and the program's.
    Ends(SocketAddr, SocketAddr),
}

/// Request of a program.
pub struct ProgramRequest {
    /// Candidate keys of the flow, of which the first known one is used.
    pub candidates: Vec<SocketId>,
    /// Content of the request.
    pub kind: RequestKind,
}

/// Kinds of requests to a flow's handlers.
pub enum RequestKind {
    /// Control call: the handler's name, the request, and a callback. The callback gets `None` if
    /// the handler gives no answer, or if there is no such flow.
    Control(String, Vec<u8>, Box<dyn FnOnce(Option<Vec<u8>>) + Send>),
    /// Query of a socket option by level and name. The callback gets `None` if no handler supplies
    /// a value; the value of the program's own socket then applies.
    Option(i32, i32, Box<dyn FnOnce(Option<i32>) + Send>),
    /// Subscription to events, which are sent over this socket as records. The first record
    /// confirms the subscription.
    Watch(OwnedFd),
}

/// Listener for the events of all flows.
pub trait EventSink: fmt::Debug + Send {
    /// Reports an event of a handler of this flow.
    fn event(&mut self, flow: u64, said: &[u8]);

    /// Reports the end of the flow.
    fn over(&mut self, flow: u64);
}

/// Programs' flows, and the listeners for their events.
#[derive(Debug, Default)]
pub struct Aware {
    socket_id: HashMap<usize, SocketId>,
    flows: HashMap<SocketId, usize>,
    watchers: HashMap<usize, Vec<OwnedFd>>,
    sink: Option<Box<dyn EventSink>>,
}

impl Aware {
    /// Associates flow `key` with a program's socket.
    pub fn add(&mut self, key: usize, socket_id: Option<SocketId>) {
        if let Some(socket_id) = socket_id {
            self.socket_id.insert(key, socket_id);
            self.flows.insert(socket_id, key);
        }
    }

    /// Removes a flow that has ended, or has become part of another.
    pub fn forget(&mut self, key: usize, flow: Option<u64>) {
        if let Some(socket_id) = self.socket_id.remove(&key)
            && self.flows.get(&socket_id) == Some(&key)
        {
            self.flows.remove(&socket_id);
        }
        self.watchers.remove(&key);
        if let (Some(sink), Some(flow)) = (&mut self.sink, flow) {
            sink.over(flow);
        }
    }

    /// Sets the listener for all events.
    pub fn set_sink(&mut self, sink: Box<dyn EventSink>) {
        self.sink = Some(sink);
    }

    /// Returns the first flow that matches one of `any`.
    pub fn find(&self, any: &[SocketId]) -> Option<usize> {
        any.iter().find_map(|socket_id| self.flows.get(socket_id).copied())
    }

    fn notify(&mut self, key: usize, flow: u64, said: &[u8]) {
        if let Some(watchers) = self.watchers.get_mut(&key) {
            // A watcher that does not read loses records beyond its buffer; a watcher whose other
            // end is closed is removed.
            watchers.retain(|to| match seqpacket::send(to, said, None) {
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                Ok(()) => true,
            });
        }
        if let Some(sink) = &mut self.sink {
            sink.event(flow, said);
        }
    }
}

impl Worker {
    /// Handles a program's request to the handlers of its flow.
    pub(super) fn handle_request(&mut self, request: ProgramRequest, now: Instant) {
        let key = self.programs.aware.find(&request.candidates);
        match (request.kind, key) {
            (RequestKind::Control(to, message, answer), Some(key)) => {
                answer(match self.flows.at(key).middle() {
                    Middle::Relay(relay) => relay.control(&to),
                    Middle::Chain(chain_io) => chain_io.control(&to, &message, now),
                });
                self.runnable.push(key);
            }
            (RequestKind::Control(_, _, answer), None) => answer(None),
            (RequestKind::Option(level, name, answer), key) => {
                let chain_io = key.and_then(|key| self.flows.at(key).chain_io());
                answer(chain_io.and_then(|chain_io| chain_io.getsockopt(level, name, now)));
                self.runnable.extend(key);
            }
            (RequestKind::Watch(to), Some(key)) => {
                if seqpacket::send(&to, &[YES], None).is_ok() {
                    self.programs.aware.watchers.entry(key).or_default().push(to);
                }
            }
            // Dropping the descriptor reports that there is no such flow.
            (RequestKind::Watch(_), None) => {}
        }
    }

    /// Passes on the events of the handlers of flow `key`.
    pub(super) fn pass_events(&mut self, key: usize) {
        let Some(flow) = self.flows.get(key) else { return };
        let id = flow.id;
        let events = flow.chain_io().map(|chain_io| chain_io.events()).unwrap_or_default();
        for event in events {
            debug!("event of a handler: {}", String::from_utf8_lossy(&event));
            self.programs.aware.notify(key, id, &event);
        }
    }
}

impl fmt::Debug for ProgramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramRequest")
            .field("candidates", &self.candidates)
            .finish_non_exhaustive()
    }
}
