//! Table of a node on this machine, for handlers: a thread follows the node's socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use viaduct_proto::handlers::{Overlays, Tables};
use viaduct_proto::overlay::Table;

use super::desk::FOLLOW;

/// Read timeout: a node publishes its table every second, and is considered gone otherwise.
const SILENT: Duration = Duration::from_secs(3);
/// Delay before the next attempt.
const AGAIN: Duration = Duration::from_millis(500);
/// Time for which the first flow waits for the first table.
const FIRST: Duration = Duration::from_millis(200);

/// Follows nodes, each from the first flow on that needs its table.
pub fn overlays() -> Overlays {
    Arc::new(|path| {
        let known = Arc::new(Known { path: path.into(), ..Known::default() });
        let tables: Tables = Arc::new(move || known.table());
        tables
    })
}

#[derive(Default)]
struct Known {
    path: PathBuf,
    began: OnceLock<()>,
    /// Latest table, and whether a table has come or an attempt has failed.
    state: Mutex<(Option<Arc<Table>>, bool)>,
    told: Condvar,
}

impl Known {
    fn table(self: &Arc<Self>) -> Option<Arc<Table>> {
        self.began.get_or_init(|| {
            let known = self.clone();
            // Without a thread no table is ever known, and flows go directly.
            let _ = std::thread::Builder::new().name("overlay".to_owned()).spawn(move || {
                loop {
                    let _ = known.follow();
                    known.set(None);
                    std::thread::sleep(AGAIN);
                }
            });
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.told.wait_timeout_while(state, FIRST, |(_, heard)| !*heard));
        });
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Follows the node until it is silent or gone.
    fn follow(&self) -> std::io::Result<()> {
        let mut stream = connect(&self.path)?;
        stream.write_all(FOLLOW)?;
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while lines.read_line(&mut line)? > 0 {
            let table = serde_json::from_str(&line).map_err(std::io::Error::other)?;
            self.set(Some(Arc::new(table)));
            line.clear();
        }
        Ok(())
    }

    fn set(&self, table: Option<Arc<Table>>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = (table, true);
        self.told.notify_all();
    }
}

fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SILENT))?;
    stream.set_write_timeout(Some(SILENT))?;
    Ok(stream)
}
