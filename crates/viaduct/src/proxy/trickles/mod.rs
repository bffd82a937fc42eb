//! Flows that go on by Trickles: each is a connection of its own, over a port that all of a loop's share.
//!
//! ```text
//!   flow ─ Leg ─ Trickle ─┐
//!   flow ─ Leg ─ Trickle ─┤ Port ─ Connector ══ packets ══▶ servers
//!   flow ◀─ PlainTcp ─────┘    a server that knows only TCP: the flow goes on over the kernel's
//! ```
//!
//! | file | noun |
//! |---|---|
//! | here | [`Trickles`]: all ports of a loop, one for each of the [`Ways`] that its policies name |
//! | [`ways`] | which packets may be tried |
//! | [`course`] | that, and whether all is encrypted |
//! | `port` | a port |
//! | `seat` | how a connection over it stands |
//! | `known` | servers that are known to know only TCP, or Trickles |
//! | [`trickle`] | a connection as an end of a flow |
//! | `pump` | how the loop drives all this |

mod course;
mod known;
mod port;
mod pump;
mod seat;
mod trickle;
mod ways;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use viaduct_proto::time::Instant;

pub use course::{Course, Early};
pub use trickle::Trickle;
pub use ways::Ways;

use port::SharedPort;
use seat::News;

/// All ports of a loop.
#[derive(Debug)]
pub struct Trickles {
    ports: BTreeMap<Ways, SharedPort>,
    registry: Registry,
    token: Token,
    /// What its loop is called, as rules are.
    instance: String,
    run_dir: PathBuf,
    /// Bytes that the flows of a port may have asked for and not taken yet.
    buffer: usize,
}

/// The ways out.
#[derive(Clone, Debug, Default)]
pub struct Outlets(Arc<BTreeMap<Ways, SharedPort>>);

impl Trickles {
    /// Without a port. The loop is woken by `token`; rules and their journal in `run_dir` are called after
    /// `name`, which no other loop of this network namespace has. The flows of a port have asked for `buffer` bytes
    /// at most that they have not taken.
    pub fn new(
        registry: Registry,
        token: Token,
        name: &str,
        run_dir: PathBuf,
        buffer: usize,
    ) -> Trickles {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let instance = name.chars().map(plain).collect();
        Trickles { ports: BTreeMap::new(), registry, token, instance, run_dir, buffer }
    }

    /// Opens the ports of these ways that are not open yet.
    ///
    /// # Errors
    /// Privilege is missing, or a rule cannot be set.
    pub fn open(&mut self, wanted: impl IntoIterator<Item = Ways>) -> Result<()> {
        for ways in wanted {
            if self.ports.contains_key(&ways) {
                continue;
            }
            let instance = format!("{}_trickles_{ways}", self.instance);
            let port = SharedPort::open(ways, instance, self.run_dir.clone(), self.buffer);
            let port = port.with_context(|| format!("trickles: {ways}"))?;
            let fd = port.lock().as_fd().as_raw_fd();
            self.registry.register(&mut SourceFd(&fd), self.token, Interest::READABLE)?;
            self.ports.insert(ways, port);
        }
        Ok(())
    }

    /// The ways out that are open.
    pub fn outlets(&self) -> Outlets {
        Outlets(Arc::new(self.ports.clone()))
    }

    /// Takes what has come, does what is due by `now`, and sends.
    fn turn(&mut self, now: Instant) {
        self.ports.values().for_each(|port| port.lock().turn(now));
    }

    /// The token of an end of which there is something to say, and what.
    fn poll_news(&mut self) -> Option<(Token, News)> {
        self.ports.values().find_map(|port| port.lock().poll_news())
    }

    /// How long the loop may sleep.
    pub fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        self.ports.values().filter_map(|port| port.lock().poll_timeout(now)).min()
    }

    /// Whether all that was said has arrived.
    pub fn are_done(&self) -> bool {
        self.ports.values().all(|port| port.lock().is_done())
    }
}

impl Outlets {
    /// Whether the server at `to` is known to know only TCP, and that will do.
    pub fn is_plain(&self, course: Course, to: SocketAddr, now: Instant) -> bool {
        let port = self.0.get(&course.ways).filter(|_| course.key.is_none());
        port.is_some_and(|port| port.lock().is_plain(to, now))
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// There is no way there, no port is left, or these ways could not be opened.
    pub fn connect(&self, course: Course, to: SocketAddr, now: Instant) -> io::Result<Trickle> {
        let port = self.0.get(&course.ways).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Trickle::connect(port, to, course, now)
    }
}
