//! Requests over TCP.
//!
//! ```text
//!   accept ──▶ places (all, of a source) ──▶ connection: heads, plans ──▶ outgoing: bytes, rate
//!                                                │ find, read
//!                                                ▼
//!                                              disk (threads) ── pages
//! ```
//!
//! All connections share one event loop. Nothing in it blocks on a disk or makes a long page.
//! Each connection holds little memory: a head, and no bytes of a file or page of its own.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::debug;

use super::connection::converse;
use super::disk::Disk;
use super::outgoing::{Limits, is_too_slow};
use super::sources::Sources;
use super::status::TcpStatus;
use crate::access_log::AccessLog;
use crate::sparing::Sparing;

/// Delay before the next attempt after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Rate limit of the warning that connections cannot be accepted: once a minute.
static ACCEPT_FAILURES: Sparing<()> = Sparing::new(1);

/// Counters of connections.
#[derive(Debug, Default)]
pub struct Counts(Cell<TcpStatus>);

impl Counts {
    /// Changes the counters.
    pub fn add(&self, change: impl FnOnce(&mut TcpStatus)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }
}

/// State that the connections of all listeners share.
#[derive(Debug)]
pub struct Shared {
    /// Files and pages.
    pub disk: Disk,
    /// Counters.
    pub counts: Counts,
    /// The access log.
    pub log: AccessLog,
    /// Limits of each connection.
    pub limits: Limits,
    /// Places of all connections.
    places: Arc<Semaphore>,
    /// Places by source.
    sources: Sources,
}

impl Shared {
    /// Creates the state for at most `connections` connections, and `per_source` of one source.
    pub fn new(
        disk: Disk,
        log: AccessLog,
        limits: Limits,
        connections: u32,
        per_source: u32,
    ) -> Shared {
        Shared {
            disk,
            counts: Counts::default(),
            log,
            limits,
            places: Arc::new(Semaphore::new(connections as usize)),
            sources: Sources::new(per_source),
        }
    }

    /// Copy of the counters.
    pub fn status(&self) -> TcpStatus {
        let pages = self.disk.pages();
        TcpStatus {
            page_bytes: pages.held() as u64,
            pages_refused: pages.refused(),
            ..self.counts.0.get()
        }
    }
}

/// Accepts connections while there are places.
pub async fn accept(listener: TcpListener, shared: Rc<Shared>) {
    loop {
        let Ok(place) = shared.places.clone().acquire_owned().await else { return };
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // For example, no descriptor is left; connections that end free some.
                ACCEPT_FAILURES.warn((), format_args!("connections wait to be accepted: {error}"));
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Some(of_source) = shared.sources.place(client.ip()) else {
            shared.counts.add(|count| count.crowded += 1);
            continue;
        };
        shared
            .counts
            .add(|count| (count.connections, count.open) = (count.connections + 1, count.open + 1));
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            run(stream, client, &shared).await;
            shared.counts.add(|count| count.open -= 1);
            drop((place, of_source));
        });
    }
}

async fn run(stream: TcpStream, client: SocketAddr, shared: &Shared) {
    if let Err(error) = converse(&stream, client, shared).await {
        debug!(%error, %client, "a connection ended");
        if is_too_slow(&error) {
            shared.counts.add(|count| count.slow += 1);
            // Data that the kernel still holds for the connection is freed too. A closed
            // connection has none.
            let _ = viaduct_sys::socket::tcp::reset_on_close(&stream);
        }
    }
}
