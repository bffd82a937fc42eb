//! The socket that a service says its status by, and its name's only owner.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use viaduct_sys::dir_lock::DirLock;

/// How long a client of the status socket may take to read.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// When a client that could not be accepted is tried again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The name of a service's socket, which goes with this value.
#[derive(Debug)]
#[must_use]
pub struct Name {
    path: PathBuf,
    /// Device and inode: another service may have taken the name since.
    file: Option<(u64, u64)>,
}

impl Name {
    /// Of the socket that this process has just bound to `path`.
    pub fn of(path: &Path) -> Name {
        Name { file: file_of(path), path: path.to_owned() }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _lock = self.path.parent().map(DirLock::take);
        if self.file.is_some() && file_of(&self.path) == self.file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|of| (of.dev(), of.ino()))
}

/// Opens the status socket `path`, and makes the directory that it is in; in a runtime.
///
/// # Errors
/// A service of this name runs, or it cannot be made.
pub fn open(path: &Path) -> Result<(UnixListener, Name)> {
    // Of two that start at the same instant one finds the other's socket.
    let _lock = DirLock::around(path).with_context(|| format!("run-dir of {}", path.display()))?;
    check_free(path)?;
    let _ = fs::remove_file(path);
    let bound = UnixListener::bind(path);
    let listener = bound.with_context(|| format!("status socket {}", path.display()))?;
    Ok((listener, Name::of(path)))
}

/// The next client of a status socket.
pub async fn asker(listener: &UnixListener) -> tokio::net::UnixStream {
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            // Out of descriptors, say: spinning would not help.
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Sends the status as one JSON object and closes.
///
/// # Errors
/// It cannot be said in JSON.
pub fn show(mut client: tokio::net::UnixStream, status: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(status)?;
    tokio::spawn(tokio::time::timeout(READ_WITHIN, async move { client.write_all(&text).await }));
    Ok(())
}

/// Refuses a name whose service answers, which would be robbed of its socket. One that was killed has
/// left its socket, and does not answer.
///
/// # Errors
/// It answers.
pub fn check_free(socket: &Path) -> Result<()> {
    match UnixStream::connect(socket) {
        Ok(_) => bail!(
            "{}: a service of this name runs, or still ends its flows: wait for its end, or give \
                this \
             one another name or run-dir",
            socket.display()
        ),
        Err(_) => Ok(()),
    }
}
