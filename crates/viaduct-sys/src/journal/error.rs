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
    /// Another process owns the journal and runs.
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
    /// Another process has rules of the same port in this network namespace.
    #[error(
        "the nftables table viaduct_{0} is another process's, which runs or still ends its flows: \
         wait for its end, or listen at another port"
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
        "{} is not believed, for {why}: delete it and see to offloads, routes and nftables \
            yourself, \
         or name another run directory", path.display()
    )]
    Untrusted {
        /// The journal.
        path: PathBuf,
        /// Reason why it is not trusted.
        why: &'static str,
    },
    /// The file is not a journal.
    #[error(
        "{} is no journal of changes; delete it and see to offloads, routes and nftables yourself, \
         or name another run_dir", path.display()
    )]
    Corrupt {
        /// The journal.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A change in the journal that this version does not know.
    #[error("a change that another version has made, see to it yourself: {0}")]
    Unknown(String),
    /// Some changes could not be undone; they are still in the journal.
    #[error("not put back, and tried again at the next start: {}", .0.join("; "))]
    Restore(Vec<String>),
    /// An interface's offloads.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A route.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The nftables table.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// A kernel setting.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}
