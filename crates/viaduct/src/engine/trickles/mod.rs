//! Flows that go on by Trickles: each is a connection of its own, over a port shared by the
//! loop.
//!
//! ```text
//!   flow ─ Conn ─ TricklesConn ─┐
//!   flow ─ Conn ─ TricklesConn ─┤ Port ─ Connector ══ packets ══▶ servers
//!   flow ◀─ PlainTcp ───────────┘  a server that knows only TCP: the flow goes on by TCP
//! ```
//!
//! | file | noun |
//! |---|---|
//! | here | [`Trickles`]: ports of a loop, one for each [`PacketFormats`] in use |
//! | `formats` | permitted packet formats |
//! | `flow_target` | packet formats and encryption of a flow |
//! | `port` | a port |
//! | `slot` | state of a connection at its port |
//! | `server_cache` | cache of servers known to know only TCP, or Trickles |
//! | `conn` | a connection as an end of a flow |
//! | `drive` | integration with the loop |

mod conn;
mod drive;
mod flow_target;
mod formats;
mod port;
mod server_cache;
mod slot;

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

pub use conn::TricklesConn;
pub use flow_target::{Early, TricklesTarget};
pub use formats::PacketFormats;

use port::SharedPort;
use slot::SlotEvent;

/// Ports of a loop.
#[derive(Debug)]
pub struct Trickles {
    ports: BTreeMap<PacketFormats, SharedPort>,
    registry: Registry,
    token: Token,
    /// Name of the loop, used in the names of rules.
    instance: String,
    run_dir: PathBuf,
    /// Bytes that the flows of a port may have requested and not yet taken.
    buffer: usize,
}

/// Outlets to the open ports.
#[derive(Clone, Debug, Default)]
pub struct Outlets(Arc<BTreeMap<PacketFormats, SharedPort>>);

impl Trickles {
    /// Returns a set without ports. The loop is woken by `token`. Rules and their journal in
    /// `run_dir` are named after `name`, which must be unique in this network namespace. The
    /// flows of a port may have at most `buffer` bytes requested and not yet taken.
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

    /// Opens the ports for `wanted` that are not open yet.
    ///
    /// # Errors
    /// Privilege is missing, or a rule cannot be set.
    pub fn open(&mut self, wanted: impl IntoIterator<Item = PacketFormats>) -> Result<()> {
        for formats in wanted {
            if self.ports.contains_key(&formats) {
                continue;
            }
            let instance = format!("{}_trickles_{formats}", self.instance);
            let port = SharedPort::open(formats, instance, self.run_dir.clone(), self.buffer);
            let port = port.with_context(|| format!("trickles: {formats}"))?;
            let fd = port.lock().as_fd().as_raw_fd();
            self.registry.register(&mut SourceFd(&fd), self.token, Interest::READABLE)?;
            self.ports.insert(formats, port);
        }
        Ok(())
    }

    /// Outlets to the open ports.
    pub fn outlets(&self) -> Outlets {
        Outlets(Arc::new(self.ports.clone()))
    }

    /// Handles received packets and the timers due by `now`, and sends.
    fn turn(&mut self, now: Instant) {
        self.ports.values().for_each(|port| port.lock().turn(now));
    }

    /// Takes the next event: the token of the end, and the event.
    fn poll_event(&mut self) -> Option<(Token, SlotEvent)> {
        self.ports.values().find_map(|port| port.lock().poll_event())
    }

    /// Time until the next timer: the loop may sleep for so long.
    pub fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        self.ports.values().filter_map(|port| port.lock().poll_timeout(now)).min()
    }

    /// Returns whether all written data has been delivered.
    pub fn are_done(&self) -> bool {
        self.ports.values().all(|port| port.lock().is_done())
    }
}

impl Outlets {
    /// Returns whether the server at `to` is known to know only TCP, and TCP is permitted.
    pub fn is_plain(&self, target: TricklesTarget, to: SocketAddr, now: Instant) -> bool {
        let port = self.0.get(&target.formats).filter(|_| target.key.is_none());
        port.is_some_and(|port| port.lock().is_plain(to, now))
    }

    /// Begins a connection.
    ///
    /// # Errors
    /// There is no route, no port number is left, or the port could not be opened.
    pub fn connect(
        &self,
        target: TricklesTarget,
        to: SocketAddr,
        now: Instant,
    ) -> io::Result<TricklesConn> {
        let port = self.0.get(&target.formats).ok_or(io::ErrorKind::AddrNotAvailable)?;
        TricklesConn::connect(port, to, target, now)
    }
}
