//! Programs that know of their handlers: they ask them, and are told what they say (TESLA, 3.6).
//!
//! ```text
//!   program ── its socket, a request ──▶ interposer ── Asked ──▶ worker: whose flow? ──▶ chain
//!   handler ── event ──▶ worker ──┬──▶ those who watch the flow
//!                                 └──▶ Listens: whoever runs the programs
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use tracing::debug;
use viaduct_proto::time::Instant;
use viaduct_proto::wrap::aware::YES;
use viaduct_sys::records;

use super::flow::Middle;
use super::worker::Worker;

/// Which flow a program means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// That of its socket with this cookie.
    Cookie(u64),
    /// One that has come to it: from there, to here.
    Ends(SocketAddr, SocketAddr),
}

/// What a program asks.
pub struct Asked {
    /// Of which flow: any of these.
    pub whose: Vec<Whose>,
    /// What it wants.
    pub what: What,
}

/// What a program wants of a flow's handlers.
pub enum What {
    /// Their answer to a request: the handler's name, and what it is asked. `None`: nobody answers.
    Control(String, Vec<u8>, Box<dyn FnOnce(Option<Vec<u8>>) + Send>),
    /// To be told their events, by records; the first says that it will be.
    Watch(OwnedFd),
}

/// Who wants to hear of all events.
pub trait Listens: fmt::Debug + Send {
    /// A handler of this flow says this.
    fn event(&mut self, flow: u64, said: &[u8]);

    /// The flow is over.
    fn over(&mut self, flow: u64);
}

/// Whose flows there are, and who hears of them.
#[derive(Debug, Default)]
pub struct Aware {
    whose: HashMap<usize, Whose>,
    flows: HashMap<Whose, usize>,
    watchers: HashMap<usize, Vec<OwnedFd>>,
    listens: Option<Box<dyn Listens>>,
}

impl Aware {
    /// Flow `key` is of this program's socket.
    pub fn know(&mut self, key: usize, whose: Option<Whose>) {
        if let Some(whose) = whose {
            self.whose.insert(key, whose);
            self.flows.insert(whose, key);
        }
    }

    /// It is over, or part of another.
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

    /// Has this hear of all events from now on.
    pub fn listen(&mut self, listens: Box<dyn Listens>) {
        self.listens = Some(listens);
    }

    /// The flow that is any of these.
    pub fn find(&self, any: &[Whose]) -> Option<usize> {
        any.iter().find_map(|whose| self.flows.get(whose).copied())
    }

    fn tell(&mut self, key: usize, flow: u64, said: &[u8]) {
        if let Some(watchers) = self.watchers.get_mut(&key) {
            // One that does not read loses what it has no room for; one that has gone is forgotten.
            watchers.retain(|to| match records::send(to, said, None) {
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
    /// Asks the handlers of a program's flow.
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
                if records::send(&to, &[YES], None).is_ok() {
                    self.aware.watchers.entry(key).or_default().push(to);
                }
            }
            // Its being dropped says that there is no such flow.
            (What::Watch(_), None) => {}
        }
    }

    /// Passes on what the handlers of flow `key` have said.
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
