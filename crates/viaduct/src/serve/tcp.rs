//! Requests over TCP.
//!
//! ```text
//!   accept ──▶ permits (total, source) ──▶ connection: heads, plans ──▶ outgoing: bytes, rate
//!                                                │ find, read
//!                                                ▼
//!                                              disk (threads) ── pages
//! ```
//!
//! All connections share one event loop, which never blocks on the disk and never generates a
//! directory page. Each connection needs little memory: it stores a request head, but no copy of a
//! file's or page's bytes.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::debug;

use super::connection::serve_connection;
use super::disk::Disk;
use super::outgoing::{Limits, is_too_slow};
use super::sources::Sources;
use super::status::TcpStatus;
use crate::access_log::AccessLog;
use crate::rate_limited::RateLimitedLog;

/// Delay before the next attempt after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Rate limit of the warning that connections cannot be accepted: once a minute.
static ACCEPT_FAILURES: RateLimitedLog<()> = RateLimitedLog::new(1);

/// Counters of all connections.
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
pub struct ServerState {
    /// Files and pages.
    pub disk: Disk,
    /// Counters.
    pub counts: Counts,
    /// The access log.
    pub log: AccessLog,
    /// Limits of each connection.
    pub limits: Limits,
    permits: Arc<Semaphore>,
    sources: Sources,
}

impl ServerState {
    /// Creates the state for at most `connections` connections, and `per_source` from each source.
    pub fn new(
        disk: Disk,
        log: AccessLog,
        limits: Limits,
        connections: u32,
        per_source: u32,
    ) -> ServerState {
        ServerState {
            disk,
            counts: Counts::default(),
            log,
            limits,
            permits: Arc::new(Semaphore::new(connections as usize)),
            sources: Sources::new(per_source),
        }
    }

    /// Copy of the counters.
    pub fn status(&self) -> TcpStatus {
        let pages = self.disk.pages();
        TcpStatus {
            page_bytes: pages.bytes() as u64,
            pages_refused: pages.refused(),
            ..self.counts.0.get()
        }
    }
}

/// Accepts connections, and serves those that get a permit. A connection is accepted first, and
/// then waits for its permit: a listener that acquired a permit before it waits for a connection
/// would withhold the permit from the other listeners.
pub async fn accept(listener: TcpListener, state: Rc<ServerState>) {
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                // The process may be out of descriptors, which connections release when they end.
                ACCEPT_FAILURES.warn((), format_args!("cannot accept connections now: {error}"));
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Some(of_source) = state.sources.acquire(client.ip()) else {
            state.counts.add(|count| count.crowded += 1);
            continue;
        };
        let Ok(permit) = state.permits.clone().acquire_owned().await else { return };
        state
            .counts
            .add(|count| (count.connections, count.open) = (count.connections + 1, count.open + 1));
        let state = state.clone();
        tokio::task::spawn_local(async move {
            run(stream, client, &state).await;
            state.counts.add(|count| count.open -= 1);
            drop((permit, of_source));
        });
    }
}

async fn run(stream: TcpStream, client: SocketAddr, state: &ServerState) {
    if let Err(error) = serve_connection(&stream, client, state).await {
        debug!(%error, %client, "a connection ended");
        if is_too_slow(&error) {
            state.counts.add(|count| count.slow += 1);
            // The reset frees data that the kernel still keeps for the connection. An error means
            // that the connection is already closed, and that there is no such data.
            let _ = viaduct_sys::socket::tcp::reset_on_close(&stream);
        }
    }
}
