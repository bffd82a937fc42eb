//! Route tables of the overlay nodes on this machine, for handlers and proxies: a thread per node
//! reads the table's updates from the node's socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use viaduct_proto::handlers::{Overlays, Tables};
use viaduct_proto::overlay::Table;

/// Request for a node's table, and for an update at every change.
pub const FOLLOW: &[u8] = b"follow\n";
/// Read timeout. A node publishes its table every second; a silent node is considered stopped.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Delay before the next attempt to connect.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum time for which the first flow waits for the first table.
const FIRST_TABLE_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns a lookup of node tables by socket path. The thread of a node starts when a flow first
/// needs its table.
pub fn overlays() -> Overlays {
    Arc::new(|path| {
        let follower = Arc::new(Follower { path: path.into(), ..Follower::default() });
        let tables: Tables = Arc::new(move || follower.table());
        tables
    })
}

#[derive(Default)]
struct Follower {
    path: PathBuf,
    started: OnceLock<()>,
    /// Latest table, if known; and true once a table has been read or an attempt to read it has
    /// failed.
    state: Mutex<(Option<Arc<Table>>, bool)>,
    changed: Condvar,
}

impl Follower {
    fn table(self: &Arc<Self>) -> Option<Arc<Table>> {
        self.started.get_or_init(|| {
            let follower = Arc::downgrade(self);
            // If the thread cannot be started, there is never a table, and flows connect directly.
            let _ = std::thread::Builder::new().name("overlay".to_owned()).spawn(move || {
                while let Some(follower) = follower.upgrade() {
                    let _ = follower.follow();
                    follower.set(None);
                    drop(follower);
                    std::thread::sleep(RETRY_DELAY);
                }
            });
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            drop(
                self.changed
                    .wait_timeout_while(state, FIRST_TABLE_TIMEOUT, |(_, has_tried)| !*has_tried),
            );
        });
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Reads the node's updates until the node is silent or has closed the connection, or no flow
    /// needs its table any more.
    fn follow(self: &Arc<Self>) -> std::io::Result<()> {
        let mut stream = connect(&self.path)?;
        stream.write_all(FOLLOW)?;
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while Arc::strong_count(self) > 1 && lines.read_line(&mut line)? > 0 {
            let table = serde_json::from_str(&line).map_err(std::io::Error::other)?;
            self.set(Some(Arc::new(table)));
            line.clear();
        }
        Ok(())
    }

    fn set(&self, table: Option<Arc<Table>>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = (table, true);
        self.changed.notify_all();
    }
}

fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.set_write_timeout(Some(READ_TIMEOUT))?;
    Ok(stream)
}
