//! The socket that a service says its status by, and its name's only owner.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, bail};

/// Refuses a name whose service answers, which would be robbed of its socket. One that was killed has
/// left its socket, and does not answer.
///
/// # Errors
/// It answers.
pub fn check_free(socket: &Path) -> Result<()> {
    match UnixStream::connect(socket) {
        Ok(_) => bail!(
            "{}: a service of this name runs, or still ends its flows: wait for its end, or give this \
             one another name or run-dir",
            socket.display()
        ),
        Err(_) => Ok(()),
    }
}
