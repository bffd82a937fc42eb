//! Errors of a journal and its changes.

use std::io;
use std::path::PathBuf;

use crate::capture::offload::OffloadError;
use crate::nft::table::NftError;
use crate::route::mtu::RouteError;
use crate::route::sysctl::SysctlError;

/// Errors of making, recording and undoing a change.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The journal's owner is another process, which is running.
    #[error(
        "{} is in use by process {pid}, which is running: stop it, or choose another name or \
         run directory", path.display()
    )]
    Busy {
        /// The journal.
        path: PathBuf,
        /// Process ID of its owner.
        pid: u32,
    },
    /// Another process has rules for the same instance in this network namespace.
    #[error(
        "the nftables table viaduct_{0} belongs to another process, which runs or waits for its \
         last flows to end: wait until that process exits, or use another port or name"
    )]
    Locked(String),
    /// The journal cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// `read`, `write` or `delete`.
        action: &'static str,
        /// The journal.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another user could have written the journal.
    #[error(
        "{} is not trusted: {why}; delete it and restore offloads, routes and nftables by \
         hand, or name another run directory", path.display()
    )]
    Untrusted {
        /// The journal.
        path: PathBuf,
        /// Reason why it is not trusted.
        why: &'static str,
    },
    /// The file is not a journal.
    #[error(
        "{} is not a journal: delete it and restore offloads, routes and nftables by hand, or name \
         another run directory", path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The journal has a change that this version does not know.
    #[error("cannot undo a change that another version has made; undo it by hand: {0}")]
    Unknown(String),
    /// Some changes could not be undone; they are still in the journal.
    #[error("cannot undo some changes, will try again at the next start: {}", .0.join("; "))]
    Restore(Vec<String>),
    /// Offloads of an interface cannot be read or changed.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A route cannot be read or changed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// An nftables table cannot be installed or removed.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// A kernel setting cannot be read or changed.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}
