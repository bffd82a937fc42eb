//! Upgrade of a proxy without a cut: this process starts the new program and hands it the
//! listeners, the SYN tap, the locks of its rules and the flows; then it drains the flows that stay
//! ([`viaduct_proto::upgrade`] has the order of the messages).
//!
//! ```text
//!   viaduct upgrade ──▶ requests ──┐
//!   SIGHUP, the file is another ───┴──▶ giver: Upgrader ── starts ──▶ takeover: Takeover
//!                                          │  Export, SendFlows           │ Loops::restore
//!                                          ▼                              ▼
//!                                        workers                     new workers
//! ```
//!
//! | file | |
//! |---|---|
//! | here | the connection between the two processes, the program's file, the config in force |
//! | `giver` | the old process's side |
//! | `takeover` | the new process's side |
//! | `requests` | the socket at which `viaduct upgrade` asks |

mod giver;
mod requests;
mod takeover;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use viaduct_proto::upgrade::{MAX_MESSAGE, Message};
use viaduct_sys::socket::seqpacket;

pub use giver::{Outcome, Upgrader};
pub use requests::{Reply, Report, Request, bind, serve};
pub use takeover::{Inheritance, Takeover};

/// Name of the option with which the new program is started; its value is the number of a
/// descriptor.
pub const OPTION: &str = "--takeover";
/// Time in which the new process must be ready, and time in which the old one must answer it.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time in which each step must be done while no process accepts clients.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(4);

/// Connection between the two processes.
#[derive(Clone, Debug)]
struct Channel(Arc<OwnedFd>);

impl Channel {
    /// Returns a connection over `socket`, with a limit for each send and receive.
    fn new(socket: OwnedFd, limit: Duration) -> io::Result<Channel> {
        seqpacket::set_timeout(&socket, limit)?;
        Ok(Channel(Arc::new(socket)))
    }

    fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let sent = seqpacket::send_many(&self.0, &message.emit()?, fds);
        sent.context("cannot send to the other process")
    }

    /// Receives the next message; `None` if the other process has ended.
    fn receive(&self) -> Result<Option<(Message, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let received = match seqpacket::receive_many(&self.0, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                bail!("the other process does not answer")
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            received => received.context("cannot receive from the other process")?,
        };
        if received.lost_fds {
            bail!("the limit of open descriptors is too low: raise it (ulimit -n, LimitNOFILE=)");
        }
        if received.length == 0 {
            return Ok(None);
        }
        let length = if received.is_truncated { MAX_MESSAGE + 1 } else { received.length };
        bytes.resize(length, 0);
        let message = Message::parse(&bytes, received.fds.len())?;
        Ok(Some((message, received.fds)))
    }
}

/// File of the running program.
#[derive(Debug)]
pub struct ProgramFile {
    path: PathBuf,
    /// Device and inode of the file that runs.
    running: Option<(u64, u64)>,
}

impl ProgramFile {
    /// File of this process, which has just been started from it.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn running() -> io::Result<ProgramFile> {
        Ok(ProgramFile { path: std::env::current_exe()?, running: identity("/proc/self/exe") })
    }

    /// Returns whether another file has taken the program's place.
    fn is_replaced(&self) -> bool {
        let now = identity(&self.path);
        now.is_some() && now != self.running
    }
}

fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Text of the config file in force; `None` if there is no file.
#[derive(Clone, Debug, Default)]
pub struct ConfigText(Arc<Mutex<Option<String>>>);

impl ConfigText {
    /// Returns the text `text`.
    pub fn new(text: Option<String>) -> ConfigText {
        ConfigText(Arc::new(Mutex::new(text)))
    }

    /// Replaces the text after a reload.
    pub fn set(&self, text: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
