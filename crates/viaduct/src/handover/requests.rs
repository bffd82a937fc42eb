//! Socket at which `viaduct upgrade` asks a running service to hand itself to a new process. Only
//! root and the service's own user may ask: the request names a program to start.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use tracing::{error, warn};
use viaduct_sys::socket::seqpacket;

use super::Upgrader;
use crate::status_socket::{self, Unpublished};

/// Time within which a client must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay before the next attempt after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Maximum length of a request in bytes.
const MAX_REQUEST: usize = 8 << 10;

/// Request for an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Program to start; `None` for the file from which the service was started.
    pub program: Option<PathBuf>,
}

/// Report of an upgrade that has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Process ID of the old process, which ends after its last flow, if it has any.
    pub old: u32,
    /// Process ID of the new process.
    pub new: u32,
    /// Number of flows that the new process continues.
    pub flows: usize,
    /// Number of peers that the new process continues.
    pub peers: usize,
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The new process serves.
    Upgraded(Report),
    /// Nothing has changed, for this reason.
    Refused(String),
}

/// Opens the socket `path` under a temporary name.
///
/// # Errors
/// The socket cannot be created.
pub fn bind(path: &Path) -> Result<(OwnedFd, Unpublished)> {
    let listen = |path: &Path| {
        let path = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        seqpacket::listen(path)
    };
    status_socket::beside(path, listen)
}

/// Answers requests at `listener` in a thread, until the process ends.
///
/// # Errors
/// No thread can be started.
pub fn serve(listener: OwnedFd, upgrader: Arc<Upgrader>) -> io::Result<()> {
    let run = move || {
        loop {
            wait(&listener, None);
            match seqpacket::accept(&listener) {
                Ok((client, peer)) => answer(&client, peer.user, &upgrader),
                Err(_) => thread::sleep(ACCEPT_RETRY),
            }
        }
    };
    thread::Builder::new().name("requests".to_owned()).spawn(run).map(drop)
}

fn answer(client: &OwnedFd, user: u32, upgrader: &Upgrader) {
    let reply = |reply: &Reply| {
        let sent = serde_json::to_vec(reply).map_err(io::Error::from);
        if let Err(error) = sent.and_then(|bytes| seqpacket::send(client, &bytes, None)) {
            warn!("cannot answer a request for an upgrade: {error}");
        }
    };
    let upgraded = read(client, user).and_then(|request| {
        upgrader.upgrade(request.program.as_deref(), |report| reply(&Reply::Upgraded(*report)))
    });
    if let Err(error) = upgraded {
        error!("not upgraded, nothing has changed: {error:#}");
        reply(&Reply::Refused(format!("{error:#}")));
    }
}

/// Reads the request of a client that runs as `user`. Errors: this user may not ask, or no valid
/// request arrives in time.
fn read(client: &OwnedFd, user: u32) -> Result<Request> {
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&user) {
        bail!("user {user} may not upgrade a service of user {own}: only that user and root may");
    }
    if !wait(client, Some(REQUEST_TIMEOUT)) {
        bail!("a client has connected and sent no request");
    }
    let mut bytes = [0; MAX_REQUEST];
    let (length, _) = seqpacket::receive(client, &mut bytes)?;
    serde_json::from_slice(&bytes[..length]).context("not a request of this version")
}

/// Waits until `fd` is readable; false once the limit has passed.
fn wait(fd: &OwnedFd, limit: Option<Duration>) -> bool {
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: limit.subsec_nanos().into(),
    });
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}
