//! Upgrade of a running service without interruption: this process starts the new program,
//! hands it the sockets and the state, and then ends ([`viaduct_proto::upgrade`] has the order
//! of the messages).
//!
//! ```text
//!   viaduct upgrade ──▶ requests ──┐
//!   SIGHUP, the file was replaced ─┴──▶ Upgrader ───── starts ─────▶ Takeover
//!                                          │ Handover: the service       │
//!                                          └────────── Channel ──────────┘
//! ```
//!
//! | file | |
//! |---|---|
//! | here | the connection between the two processes, the program's file, the config in force |
//! | `upgrader` | the old process's side |
//! | `takeover` | the new process's side |
//! | `requests` | the socket at which `viaduct upgrade` asks |
//!
//! SIGHUP upgrades only under a service manager that follows the new process (systemd); otherwise
//! the signal is a reload.
//!
//! The services have their own parts: `engine::upgrade` for proxies, `gateway::upgrade`.

mod requests;
mod takeover;
mod upgrader;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use viaduct_proto::upgrade::{
    MAX_DESCRIPTORS, MAX_MESSAGE, MAX_SERVICE_DESCRIPTORS, MORE, Message,
};
use viaduct_sys::socket::seqpacket;

pub use requests::{Reply, Report, Request, bind, serve};
pub use takeover::{Takeover, old_process};
pub use upgrader::{HandedOver, Handover, Outcome, Upgrader, next_outcome};

/// Name of the option with which the new program is started; its value is the number of a
/// descriptor.
pub const OPTION: &str = "--takeover";
/// Time limit of each message before the transfer, for example of the message that reports the new
/// process as ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of each step during the transfer, while neither process serves.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum length of the config, in bytes.
const MAX_CONFIG: u64 = 4 << 20;

/// Connection between the two processes.
#[derive(Clone, Debug)]
pub struct Channel(Arc<OwnedFd>);

impl Channel {
    /// Returns a connection over `socket`, with the time limit `limit` for each send and receive.
    fn new(socket: OwnedFd, limit: Duration) -> io::Result<Channel> {
        seqpacket::set_timeout(&socket, limit)?;
        Ok(Channel(Arc::new(socket)))
    }

    /// Socket of the connection, on which other threads may send messages.
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.0.clone()
    }

    /// Sends a message with its descriptors. If there are too many descriptors for a single
    /// message, further messages carry them, and nothing else may be sent in between.
    ///
    /// # Errors
    /// The message exceeds a bound, or the other process has ended.
    pub fn send(&self, message: &Message, mut fds: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = message.emit()?;
        let send = |bytes: &[u8], fds: &[BorrowedFd<'_>]| {
            seqpacket::send_many(&self.0, bytes, fds).context("cannot send to the other process")
        };
        while fds.len() > MAX_DESCRIPTORS {
            let (first, rest) = fds.split_at(MAX_DESCRIPTORS);
            send(MORE, first)?;
            fds = rest;
        }
        send(&bytes, fds)
    }

    /// Receives the next message; `None` if the other process has ended.
    fn receive(&self) -> Result<Option<(Message, Vec<OwnedFd>)>> {
        let (mut bytes, mut fds) = (vec![0; MAX_MESSAGE], Vec::new());
        let length = loop {
            let received = match seqpacket::receive_many(&self.0, &mut bytes) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    bail!("the other process does not answer")
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                received => received.context("cannot receive from the other process")?,
            };
            if received.lost_fds {
                bail!(
                    "the limit of open descriptors is too low: raise it (ulimit -n, LimitNOFILE=)"
                );
            }
            if received.length == 0 {
                return Ok(None);
            }
            let is_more = bytes[..received.length] == *MORE && !received.fds.is_empty();
            fds.extend(received.fds);
            if !is_more || fds.len() > MAX_SERVICE_DESCRIPTORS {
                break if received.is_truncated { MAX_MESSAGE + 1 } else { received.length };
            }
        };
        bytes.resize(length, 0);
        let message = Message::parse(&bytes, fds.len())?;
        Ok(Some((message, fds)))
    }
}

/// File of the running program.
#[derive(Clone, Debug)]
pub struct ProgramFile {
    path: PathBuf,
    /// Device and inode of the file that runs.
    running: Option<(u64, u64)>,
}

impl ProgramFile {
    /// Program file of this process. Must be called right after the start, before the file can
    /// be replaced.
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
    /// Creates a value with the text `text`. All its clones share the text.
    pub fn new(text: Option<String>) -> ConfigText {
        ConfigText(Arc::new(Mutex::new(text)))
    }

    /// Replaces the text after a reload.
    pub fn set(&self, text: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Returns the text.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Copies the text to a memory file, for the new process.
    ///
    /// # Errors
    /// The kernel has no memory left.
    pub fn to_file(&self) -> Result<Option<File>> {
        let Some(text) = self.get() else { return Ok(None) };
        let mut file = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
        file.write_all(text.as_bytes()).context("cannot pass the config on")?;
        Ok(Some(file))
    }
}

/// Reads the text that the old process has copied to a memory file.
///
/// # Errors
/// The text is too long, or not UTF-8.
pub fn config_text(fd: OwnedFd) -> Result<String> {
    let file = File::from(fd);
    let length = file.metadata()?.len();
    if length > MAX_CONFIG {
        bail!("the config of the old process is longer than {MAX_CONFIG} bytes");
    }
    let mut text = vec![0; usize::try_from(length)?];
    file.read_exact_at(&mut text, 0)?;
    Ok(String::from_utf8(text)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use viaduct_proto::upgrade::{ListenRecord, ServiceRecord};

    use super::*;

    #[test]
    fn a_service_has_more_descriptors_than_one_message_carries() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let [ours, theirs] = [ours, theirs].map(|of| Channel::new(of, START_TIMEOUT).unwrap());
        for listeners in [MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1, 2 * MAX_DESCRIPTORS + 9] {
            let fds = vec![ours.0.as_fd(); listeners];
            let of = ListenRecord { listeners: fds.len() as u16, ..ListenRecord::default() };
            let service = ServiceRecord { workers: vec![of], ..ServiceRecord::default() };
            let service = Message::Service(service);
            ours.send(&service, &fds).unwrap();
            let (received, fds) = theirs.receive().unwrap().unwrap();
            assert_eq!((received, fds.len()), (service, listeners));
        }
        ours.send(&Message::Ready, &[]).unwrap();
        assert_eq!(theirs.receive().unwrap().unwrap().0, Message::Ready);
    }
}
