//! Flows over Trickles: each has a connection of its own, through a port that the flows of a loop
//! share.
//!
//! ```text
//!   flow ─ Conn ─ TricklesConn ─┐
//!   flow ─ Conn ─ TricklesConn ─┤ Port ─ Connector ══ packets ══▶ servers
//!   flow ◀─ PlainTcp ───────────┘  a server that supports only TCP: the flow continues over TCP
//! ```
//!
//! | file | |
//! |---|---|
//! | here | [`Trickles`]: ports of a loop, one for each [`PacketFormats`] in use |
//! | `formats` | permitted packet formats |
//! | `flow_target` | packet formats and encryption of a flow |
//! | `port` | a port |
//! | `slot` | state of a connection at its port |
//! | `server_cache` | cache of servers known to support only TCP, or Trickles |
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
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_trickles::revert_stale_changes;

pub use conn::TricklesConn;
pub use flow_target::{Early, TricklesTarget};
pub use formats::PacketFormats;

use port::SharedPort;
use slot::SlotEvent;

use super::conn::Conn;
use super::outbound::{OpenRequest, Opened, Outbound};

/// Ports of a loop.
#[derive(Debug)]
pub struct Trickles {
    ports: BTreeMap<PacketFormats, SharedPort>,
    registry: Registry,
    token: Token,
    /// Name of the loop, used in the names of rules.
    instance: String,
    run_dir: PathBuf,
    /// Bytes that the flows of a port may have requested and not yet read.
    buffer: usize,
}

/// Outlet to a port: opens connections for flows with the parameters `target`.
#[derive(Debug)]
pub struct Outlet {
    /// `None` if no port is open for the packet formats of `target`.
    port: Option<SharedPort>,
    target: TricklesTarget,
}

impl Trickles {
    /// Returns a set without ports. Packets are reported to the loop under `token`. Rules and their
    /// journal in `run_dir` are named after `name`, which must be unique in this network namespace.
    /// The flows of a port may have requested, and not yet read, at most `buffer` bytes.
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

    /// Opens the ports for `wanted` that are not open yet. Errors: a port cannot be opened, because
    /// a capability is missing or a rule cannot be set.
    pub fn open(&mut self, wanted: impl IntoIterator<Item = PacketFormats>) -> Result<()> {
        for formats in wanted {
            if self.ports.contains_key(&formats) {
                continue;
            }
            let instance = format!("{}_trickles_{formats}", self.instance);
            revert_stale_changes(&self.run_dir);
            let port = SharedPort::open(formats, instance, self.run_dir.clone(), self.buffer);
            let port = port.with_context(|| format!("trickles: cannot open a port ({formats})"))?;
            let fd = port.lock().as_fd().as_raw_fd();
            self.registry.register(&mut SourceFd(&fd), self.token, Interest::READABLE)?;
            self.ports.insert(formats, port);
        }
        Ok(())
    }

    /// Outlet to the port of `target`.
    pub fn outlet(&self, target: TricklesTarget) -> Outlet {
        Outlet { port: self.ports.get(&target.formats).cloned(), target }
    }

    /// Handles received packets and the timers due by `now`, and sends packets.
    fn turn(&mut self, now: Instant) {
        self.ports.values().for_each(|port| port.lock().turn(now));
    }

    /// Takes the next event: the token of the end, and the event.
    fn poll_event(&mut self) -> Option<(Token, SlotEvent)> {
        self.ports.values().find_map(|port| port.lock().poll_event())
    }

    /// Time until the next timer, for which the loop may sleep.
    pub fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        self.ports.values().filter_map(|port| port.lock().poll_timeout(now)).min()
    }

    /// Returns whether the data of all ended connections has been delivered.
    pub fn are_done(&self) -> bool {
        self.ports.values().all(|port| port.lock().is_done())
    }
}

impl Outbound for Outlet {
    fn open(&self, request: &OpenRequest, now: Instant) -> io::Result<Opened> {
        let port = self.port.as_ref().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let conn = TricklesConn::connect(port, request.ip()?, self.target, now)?;
        Ok(Conn::Trickles(conn).into())
    }

    fn can_splice(&self) -> bool {
        false
    }

    /// Returns whether the server is known to support only TCP, and TCP is permitted.
    fn is_known_to_fail(&self, to: &Address, now: Instant) -> bool {
        let port = self.port.as_ref().filter(|_| self.target.key.is_none());
        port.is_some_and(|port| matches!(to, Address::Ip(to) if port.lock().is_plain(*to, now)))
    }
}
