//! Socket on which a node publishes its table: once to each client, and at each update to clients
//! that have sent [`FOLLOW`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::overlay_table::FOLLOW;
use crate::status_socket;

/// Time within which a client must send its request, and within which it must read a table.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CLIENTS: usize = 1_024;
/// Maximum number of clients of one user, so that no user can occupy all of [`MAX_CLIENTS`].
const MAX_PER_USER: usize = 256;

/// Socket of a node, and the table that it publishes.
pub struct TableSocket {
    listener: UnixListener,
    _name: status_socket::Name,
    line: watch::Sender<Arc<Vec<u8>>>,
    permits: Arc<Semaphore>,
    /// Permits of the users that have clients.
    users: Mutex<HashMap<u32, Arc<Semaphore>>>,
}

impl TableSocket {
    /// Opens the socket at `path`. All users of this machine may read it, because the table is not
    /// secret. Errors: another process serves a socket at `path`, or the socket cannot be created.
    pub fn open(path: &Path) -> Result<TableSocket> {
        let (listener, name) = status_socket::open_with_mode(path, 0o666)?;
        let permits = Arc::new(Semaphore::new(MAX_CLIENTS));
        let (line, users) = (watch::Sender::default(), Mutex::default());
        Ok(TableSocket { listener, _name: name, line, permits, users })
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
            // If there are too many clients, the new client is dropped.
            if let Some(permits) = self.admit(&client) {
                let lines = self.line.subscribe();
                tokio::spawn(async move {
                    serve_client(client, lines).await;
                    drop(permits);
                });
            }
        }
    }

    /// Takes the permits of a new client; `None` if its user, or all users together, have too many
    /// clients.
    fn admit(&self, client: &UnixStream) -> Option<Permits> {
        let user = client.peer_cred().ok()?.uid();
        let is_trusted = user == 0 || user == rustix::process::getuid().as_raw();
        let own = if is_trusted { None } else { Some(self.admit_user(user)?) };
        Some((own, self.permits.clone().try_acquire_owned().ok()?))
    }

    fn admit_user(&self, user: u32) -> Option<OwnedSemaphorePermit> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, of| of.available_permits() < MAX_PER_USER);
        let own = users.entry(user).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_USER)));
        own.clone().try_acquire_owned().ok()
    }
}

/// Permits of a client: one of its user's (`None` for root and the node's own user), and one of
/// those for all clients.
type Permits = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

/// Serves one client until the client closes the connection or is too slow.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_keeps_a_share_of_the_clients_and_gets_it_back() {
        let dir = std::env::temp_dir().join(format!("viaduct-table-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("node.sock");
        let socket = TableSocket::open(&path).unwrap();
        let one = || socket.admit_user(65_533);
        let mut held: Vec<_> = (0..MAX_PER_USER).map(|_| one().expect("there is room")).collect();
        assert!(one().is_none() && socket.admit_user(65_532).is_some());
        held.pop();
        assert!(one().is_some());
        held.clear();
        assert!(one().is_some());
        assert_eq!(socket.users.lock().unwrap().len(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
