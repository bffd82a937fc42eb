//! Loads of our own, light enough that what is measured is what stands between their two ends: bodies
//! are sent from the page cache and dropped by the receiver's kernel, and copied at neither end.
//!
//! ```text
//!   [Load]    one thread for small requests, one for each bulk flow  ─┐        each pinned
//!   [Crowd]   many connections, begun at once                        ─┼─▶ … ─▶ [Server]
//! ```
//!
//! All of it is HTTP, so that a cache may stand between as well. [Trickles] has clients of that transport,
//! which speak to `viaduct serve`.

mod bulk;
mod crowd;
mod datagrams;
mod fetches;
mod requests;
mod server;
mod trickles;

pub use crowd::{Crowd, Times};
pub use fetches::{Fetched, Fetches};
pub use server::Server;
pub use trickles::{Continuations, Counted, Trickles};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use viaduct_sys::thread::pin;

use crate::topology::Node;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A few bytes; the server ends the connection.
    Little,
    /// A few bytes; the connection stays open.
    Stay,
    /// Bytes without end.
    Endless,
}

impl Ask {
    const ALL: [Ask; 3] = [Ask::Little, Ask::Stay, Ask::Endless];

    /// The request.
    fn text(self) -> &'static [u8] {
        match self {
            Ask::Little => b"GET /little HTTP/1.1\r\nHost: lab\r\n\r\n",
            Ask::Stay => b"GET /stay HTTP/1.1\r\nHost: lab\r\n\r\n",
            Ask::Endless => b"GET /endless HTTP/1.1\r\nHost: lab\r\n\r\n",
        }
    }

    /// What a request asks for, whatever headers it has grown on the way.
    fn parse(request: &[u8]) -> Option<Ask> {
        Ask::ALL.into_iter().find(|ask| request.starts_with(&ask.text()[..6]))
    }
}

/// What a load makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Connections, each for one small request; so many at any time.
    Requests(usize),
    /// So many flows, as fast as they can be.
    Bulk(usize),
}

/// A running load; it ends with this value.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a load's threads share with whoever watches it.
#[derive(Debug, Default)]
struct Shared {
    done: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// Starts it in `node`, on `core`, towards `to`.
    pub fn start(node: &Node, core: usize, shape: Shape, to: SocketAddr) -> Load {
        let (shared, netns) = (Arc::<Shared>::default(), node.netns().clone());
        let theirs = shared.clone();
        let thread = thread::spawn(move || {
            let work = || {
                pin(core)?;
                match shape {
                    Shape::Requests(at_once) => requests::run(to, at_once, &theirs),
                    Shape::Bulk(flows) => bulk::run(to, flows, &theirs),
                }
            };
            if !matches!(netns.enter(work), Ok(Ok(()))) {
                theirs.failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        Load { shared, thread: Some(thread) }
    }

    /// Requests answered so far, or bytes arrived.
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Connections that broke.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
