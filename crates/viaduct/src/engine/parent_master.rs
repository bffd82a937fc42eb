//! Outbound connections by a parent master instead of the kernel's network alone (TESLA, 3.7).
//!
//! ```text
//!   worker ── ParentMaster::connect ──▶ pending Conn ══ parent master: its handlers ══▶ far end
//! ```
//!
//! Such a connection leads to the parent master over the loopback interface, so that the kernel's
//! socket addresses are not the flow's.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use viaduct_proto::flow::Failure;
use viaduct_sys::socket::tcp::Mirrored;

use super::conn::Conn;

/// Parent master that carries a worker's outbound flows.
pub trait ParentMaster: Debug + Send + Sync {
    /// Begins to connect to `to`, from the address `from` if given, with the socket options of
    /// the program's own end.
    ///
    /// # Errors
    /// The connect failed at once.
    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        mirrored: Mirrored,
    ) -> io::Result<Conn>;
}

/// Addresses and result of a connection to a parent master, as far as it has reported them.
#[derive(Debug)]
pub struct ParentConn {
    /// Destination of the flow.
    pub peer: SocketAddr,
    /// Local address, as the far end sees it.
    pub own: OnceLock<SocketAddr>,
    /// Reason why the far end cannot be reached.
    pub refused: OnceLock<Failure>,
}

impl ParentConn {
    /// State of a new connection, for a flow to `peer`.
    pub fn of(peer: SocketAddr) -> Arc<ParentConn> {
        Arc::new(ParentConn { peer, own: OnceLock::new(), refused: OnceLock::new() })
    }

    /// State of an established connection.
    pub fn between(own: SocketAddr, peer: SocketAddr) -> Arc<ParentConn> {
        Arc::new(ParentConn { peer, own: own.into(), refused: OnceLock::new() })
    }
}
