//! Programs that know of their handlers: they send requests and receive events (TESLA, 3.6).
//!
//! ```text
//!   program ── its socket, a request ──▶ interposer ── Asked ──▶ worker: whose flow? ──▶ chain
//!   handler ── event ──▶ worker ──┬──▶ those who watch the flow
//!                                 └──▶ Listens: the master of the programs
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

/// Identification of a flow by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// By the cookie of the program's socket.
    Cookie(u64),
    /// By the addresses of an inbound connection: client's, own.
    Ends(SocketAddr, SocketAddr),
}

/// Request of a program.
pub struct Asked {
    /// Candidates for the flow: the first one known is meant.
    pub whose: Vec<Whose>,
    /// Content of the request.
    pub what: What,
}

/// Kinds of requests to a flow's handlers.
pub enum What {
    /// Control call: the handler's name, the request, and a callback for the answer. `None`: no
    /// answer.
    Control(String, Vec<u8>, Box<dyn FnOnce(Option<Vec<u8>>) + Send>),
    /// Subscription to events, sent as records; the first record confirms it.
    Watch(OwnedFd),
}

/// Listener for the events of all flows.
pub trait Listens: fmt::Debug + Send {
    /// Reports an event of a handler of this flow.
    fn event(&mut self, flow: u64, said: &[u8]);

    /// Reports the end of the flow.
    fn over(&mut self, flow: u64);
}

/// Programs' flows, and the listeners for their events.
#[derive(Debug, Default)]
pub struct Aware {
    whose: HashMap<usize, Whose>,
    flows: HashMap<Whose, usize>,
    watchers: HashMap<usize, Vec<OwnedFd>>,
    listens: Option<Box<dyn Listens>>,
}

impl Aware {
    /// Associates flow `key` with a program's socket.
    pub fn know(&mut self, key: usize, whose: Option<Whose>) {
        if let Some(whose) = whose {
            self.whose.insert(key, whose);
            self.flows.insert(whose, key);
        }
    }

    /// Removes a flow that is over, or has joined another.
    pub fn forget(&mut self, key: usize, flow: Option<u64>) {
        if let Some(whose) = self.whose.remove(&key)
            && self.flows.get(&whose) == Some(&key)
        {
            self.flows.remove(&whose);
        }
        self.watchers.remove(&key);
        if let (Some(listens), Some(flow)) = (&mut self.listens, flow) {
            listens.over(flow);
        }
    }

    /// Sets the listener for all events.
    pub fn listen(&mut self, listens: Box<dyn Listens>) {
        self.listens = Some(listens);
    }

    /// Returns the first flow that matches one of `any`.
    pub fn find(&self, any: &[Whose]) -> Option<usize> {
        any.iter().find_map(|whose| self.flows.get(whose).copied())
    }

    fn tell(&mut self, key: usize, flow: u64, said: &[u8]) {
        if let Some(watchers) = self.watchers.get_mut(&key) {
            // A watcher that does not read loses records beyond its buffer; one that has gone
            // is removed.
            watchers.retain(|to| match seqpacket::send(to, said, None) {
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                Ok(()) => true,
            });
        }
        if let Some(listens) = &mut self.listens {
            listens.event(flow, said);
        }
    }
}

impl Worker {
    /// Handles a program's request to the handlers of its flow.
    pub(super) fn ask(&mut self, asked: Asked, now: Instant) {
        let key = self.aware.find(&asked.whose);
        match (asked.what, key) {
            (What::Control(to, request, answer), Some(key)) => {
                answer(match self.flows.at(key).middle() {
                    Middle::Relay(relay) => relay.control(&to),
                    Middle::Through(through) => through.control(&to, &request, now),
                });
                self.again.push(key);
            }
            (What::Control(_, _, answer), None) => answer(None),
            (What::Watch(to), Some(key)) => {
                if seqpacket::send(&to, &[YES], None).is_ok() {
                    self.aware.watchers.entry(key).or_default().push(to);
                }
            }
            // Dropping the descriptor says that there is no such flow.
            (What::Watch(_), None) => {}
        }
    }

    /// Passes on the events of the handlers of flow `key`.
    pub(super) fn pass_events(&mut self, key: usize) {
        let Some(flow) = self.flows.get(key) else { return };
        let id = flow.id;
        let events = flow.through().map(|through| through.events()).unwrap_or_default();
        for event in events {
            debug!("a handler says: {}", String::from_utf8_lossy(&event));
            self.aware.tell(key, id, &event);
        }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("whose", &self.whose).finish_non_exhaustive()
    }
}
