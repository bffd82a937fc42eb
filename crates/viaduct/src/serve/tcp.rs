//! Requests that come by TCP.
//!
//! ```text
//!   accept ──▶ places (all, of a source) ──▶ connection: heads, plans ──▶ outgoing: bytes, and the client's rate
//!                                                │ find, read
//!                                                ▼
//!                                              disk (threads) ── pages
//! ```
//!
//! All connections share one loop, so nothing in it waits for a disk or makes a long page, and what one holds in
//! memory is small: a head, and no bytes of a file or page of its own.

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

/// Pause before the next attempt when a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// The log hears once a minute that connections cannot be accepted.
static ACCEPT_FAILURES: Sparing<()> = Sparing::new(1);

/// Counters of connections.
#[derive(Debug, Default)]
pub struct Counts(Cell<TcpStatus>);

impl Counts {
    /// Changes them.
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
    /// Places of all.
    places: Arc<Semaphore>,
    /// Places by source.
    sources: Sources,
}

impl Shared {
    /// For at most so many connections, and so many of one source.
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

    /// A copy of the counters.
    pub fn status(&self) -> TcpStatus {
        let pages = self.disk.pages();
        TcpStatus {
            page_bytes: pages.held() as u64,
            pages_refused: pages.refused(),
            ..self.counts.0.get()
        }
    }
}

/// Accepts connections as long as there are places.
pub async fn accept(listener: TcpListener, shared: Rc<Shared>) {
    loop {
        let Ok(place) = shared.places.clone().acquire_owned().await else { return };
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // No descriptor is left, say: those that end give some back.
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
            // What the kernel still holds for it is given back, too. A connection that is gone has none.
            let _ = viaduct_sys::tcp::reset_on_close(&stream);
        }
    }
}
