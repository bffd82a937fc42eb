//! How servers are reached, and what is heard of them.

use std::path::PathBuf;

use viaduct_proto::trickles::packet::{Role, Ways};
use viaduct_sys::filter::TcpMark;
use viaduct_sys::journal::Changes;
use viaduct_sys::keep_out::KeepOut;

use super::super::{PortError, journal};

/// How a client reaches servers.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The ways that are tried.
    pub ways: Ways,
    /// Bytes of the longest packet that is sent, 576 to 65535; less where the route's interface, or a router
    /// on the way, says so.
    pub mtu: usize,
    /// Whether what is sent is left untracked by this machine's conntrack; not where it translates its
    /// own addresses.
    pub untracked: bool,
    /// Names the rules and the journal, letters, digits and `_`: one for each client of the machine.
    pub instance: String,
    /// Where the journal of changed rules is kept.
    pub run_dir: PathBuf,
}

/// What a connection hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// A message of the server's.
    Message(&'a [u8]),
    /// The server is a plain TCP server: its kernel has answered the SYN. This machine's kernel has reset
    /// that connection; close this one and connect as to any other server.
    PlainTcp,
    /// One way is refused, and the last request goes by the other now. `reset`: by a reset of the far
    /// kernel's TCP.
    Turned {
        /// See above.
        reset: bool,
    },
    /// Nobody listens there, by none of the ways that are to be tried. `reset`: the far kernel's TCP says so,
    /// so it would refuse any other connection, too.
    Refused {
        /// See above.
        reset: bool,
    },
    /// The way there takes less than it did: see [`ClientPort::room`](super::ClientPort::room).
    Shorter,
}

impl ClientSettings {
    /// Keeps answers from the kernel's TCP.
    pub(super) fn keep_out(&self, mark: TcpMark) -> Result<Changes, PortError> {
        let instance = self.instance.clone();
        let mut changes = Changes::open(&journal(&self.run_dir, &instance))?;
        let untracked = self.untracked.then_some(Role::Request.byte());
        changes.keep_out(KeepOut { instance, mark, at: Vec::new(), untracked })?;
        Ok(changes)
    }
}
