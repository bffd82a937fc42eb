//! The socket by which a node tells what it knows: a table to everybody, and every change to those that
//! say that they follow.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use crate::status::socket;

/// What a client says that wants to hear of every change.
pub const FOLLOW: &[u8] = b"follow\n";
/// How long it may take to say that, and to read a table.
const WITHIN: Duration = Duration::from_secs(2);
/// Clients at once.
const MOST: usize = 1_024;

/// The socket, and what is told.
pub struct Desk {
    listener: UnixListener,
    _name: socket::Name,
    line: watch::Sender<Arc<Vec<u8>>>,
    places: Arc<Semaphore>,
}

impl Desk {
    /// At `path`. Whoever uses this machine may ask: it is no secret by where one gets through.
    ///
    /// # Errors
    /// Somebody answers there, or it cannot be made.
    pub fn open(path: &Path) -> Result<Desk> {
        let (listener, name) = socket::open(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let places = Arc::new(Semaphore::new(MOST));
        Ok(Desk { listener, _name: name, line: watch::Sender::default(), places })
    }

    /// This is what is known from now on.
    pub fn publish(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        self.line.send_replace(Arc::new(line));
    }

    /// Takes in clients, for ever.
    pub async fn serve(&self) {
        loop {
            let client = socket::asker(&self.listener).await;
            // Too many: the one that comes now is let go.
            if let Ok(place) = self.places.clone().try_acquire_owned() {
                let lines = self.line.subscribe();
                tokio::spawn(async move {
                    tell(client, lines).await;
                    drop(place);
                });
            }
        }
    }
}

/// Tells one client, until it has gone or is too slow.
async fn tell(mut client: UnixStream, mut lines: watch::Receiver<Arc<Vec<u8>>>) {
    let mut said = [0; FOLLOW.len()];
    let line = lines.borrow_and_update().clone();
    if !write(&mut client, &line).await {
        return;
    }
    let follows = tokio::time::timeout(WITHIN, client.read_exact(&mut said)).await;
    if !matches!(follows, Ok(Ok(_))) || said != FOLLOW {
        return;
    }
    loop {
        let mut end = [0];
        tokio::select! {
            changed = lines.changed() => if changed.is_err() { return },
            // It has gone, or says more than there is to say.
            _ = client.read(&mut end) => return,
        }
        let line = lines.borrow_and_update().clone();
        if !write(&mut client, &line).await {
            return;
        }
    }
}

async fn write(client: &mut UnixStream, line: &[u8]) -> bool {
    matches!(tokio::time::timeout(WITHIN, client.write_all(line)).await, Ok(Ok(())))
}
