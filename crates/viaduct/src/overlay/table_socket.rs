//! Socket on which a node publishes its table: once to each client, and again at each change to
//! clients that have requested to follow.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use crate::overlay_table::FOLLOW;
use crate::status_socket;

/// Time within which a client must send its request, and read a table.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CLIENTS: usize = 1_024;

/// Socket of a node, and the table that it publishes.
pub struct TableSocket {
    listener: UnixListener,
    _name: status_socket::Name,
    line: watch::Sender<Arc<Vec<u8>>>,
    permits: Arc<Semaphore>,
}

impl TableSocket {
    /// Opens the socket at `path`. All users of this machine may read it, because the table is not
    /// secret. Errors: another process answers at `path`, or the socket cannot be created.
    pub fn open(path: &Path) -> Result<TableSocket> {
        let (listener, name) = status_socket::open(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let permits = Arc::new(Semaphore::new(MAX_CLIENTS));
        Ok(TableSocket { listener, _name: name, line: watch::Sender::default(), permits })
    }

    /// Publishes a new table.
    pub fn publish(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        self.line.send_replace(Arc::new(line));
    }

    /// Accepts clients, forever.
    pub async fn serve(&self) {
        loop {
            let client = status_socket::accept(&self.listener).await;
            // With too many clients, the new one is dropped.
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                let lines = self.line.subscribe();
                tokio::spawn(async move {
                    serve_client(client, lines).await;
                    drop(permit);
                });
            }
        }
    }
}

/// Serves one client, until it closes the connection or is too slow.
async fn serve_client(mut client: UnixStream, mut lines: watch::Receiver<Arc<Vec<u8>>>) {
    let mut request = [0; FOLLOW.len()];
    let line = lines.borrow_and_update().clone();
    if !write(&mut client, &line).await {
        return;
    }
    let follows = tokio::time::timeout(CLIENT_TIMEOUT, client.read_exact(&mut request)).await;
    if !matches!(follows, Ok(Ok(_))) || request != FOLLOW {
        return;
    }
    loop {
        let mut end = [0];
        tokio::select! {
            changed = lines.changed() => if changed.is_err() { return },
            // The client has gone, or has sent more than the request.
            _ = client.read(&mut end) => return,
        }
        let line = lines.borrow_and_update().clone();
        if !write(&mut client, &line).await {
            return;
        }
    }
}

async fn write(client: &mut UnixStream, line: &[u8]) -> bool {
    matches!(tokio::time::timeout(CLIENT_TIMEOUT, client.write_all(line)).await, Ok(Ok(())))
}
