//! The lab's own load generators. They cost so little that measurements show the cost of the
//! programs between client and server: bodies are sent from the page cache and dropped by the
//! receiver's kernel, without a copy at either end.
//!
//! ```text
//!   [Load]    one thread for small requests, one for each bulk flow  ─┐        each pinned
//!   [Crowd]   many connections, opened concurrently                  ─┼─▶ … ─▶ [Server]
//! ```
//!
//! All of this traffic is HTTP, so that a cache may be in the path. [Checked] instead generates
//! traffic at a constant rate and checks every byte. [Pairs] sends datagrams between many
//! addresses, and [SliceStream] sends them to all slices of a site. [Trickles] contains clients of
//! that transport, which connect to `viaduct serve`; [Downloads] are checked downloads by them.

mod bulk;
mod checked;
mod crowd;
mod datagrams;
mod downloads;
mod fetches;
mod pairs;
mod requests;
mod server;
mod slices;
mod trickles;

pub use checked::{Checked, CheckedReport, MIN_PAUSE, PACED_RATE, Traffic};
pub use crowd::{Crowd, Times};
pub use downloads::{Downloaded, Downloads, Gap};
pub use fetches::{Fetched, Fetches};
pub use pairs::{PairDatagram, Pairs, lost_share};
pub use server::Server;
pub use slices::{SliceDatagram, SliceStream, missing_share};
pub use trickles::{Continuations, Counted, Trickles};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use viaduct_sys::process::thread::pin;

use crate::topology::Node;

/// Requested answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A few bytes; the server closes the connection.
    Little,
    /// A few bytes; the connection stays open.
    Stay,
    /// Endless data.
    Endless,
}

impl Ask {
    const ALL: [Ask; 3] = [Ask::Little, Ask::Stay, Ask::Endless];

    fn text(self) -> &'static [u8] {
        match self {
            Ask::Little => b"GET /little HTTP/1.1\r\nHost: lab\r\n\r\n",
            Ask::Stay => b"GET /stay HTTP/1.1\r\nHost: lab\r\n\r\n",
            Ask::Endless => b"GET /endless HTTP/1.1\r\nHost: lab\r\n\r\n",
        }
    }

    /// Recognizes a request, regardless of headers added on the way.
    fn parse(request: &[u8]) -> Option<Ask> {
        Ask::ALL.into_iter().find(|ask| request.starts_with(&ask.text()[..6]))
    }
}

/// Shape of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Connections with one small request each; this many are open at any time.
    Requests(usize),
    /// This many bulk flows, without a rate limit.
    Bulk(usize),
}

/// Running load; stopped when dropped.
#[derive(Debug)]
pub struct Load {
    state: Arc<LoadState>,
    thread: Option<JoinHandle<()>>,
}

/// State shared between a load's threads and its handle.
#[derive(Debug, Default)]
struct LoadState {
    done: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// Starts the load in `node` on `core`, towards `to`.
    pub fn start(node: &Node, core: usize, shape: Shape, to: SocketAddr) -> Load {
        let (state, netns) = (Arc::<LoadState>::default(), node.netns().clone());
        let theirs = state.clone();
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
        Load { state, thread: Some(thread) }
    }

    /// Returns the number of requests answered, or of bytes received, so far.
    pub fn done(&self) -> u64 {
        self.state.done.load(Ordering::Relaxed)
    }

    /// Returns the number of failed connections.
    pub fn failed(&self) -> u64 {
        self.state.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
