//! What flows go on to if that is not the kernel's network alone: a master below (TESLA, 3.7).
//!
//! ```text
//!   worker ── Below::connect ──▶ a leg in progress ══ the master below: its handlers ══▶ far end
//! ```
//!
//! Such a leg leads to that master over the loopback interface, so that its names are not what the kernel says.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use viaduct_proto::flow::Failure;
use viaduct_sys::tcp::Mirrored;

use super::leg::Leg;

/// Who carries what a worker sends on.
pub trait Below: Debug + Send + Sync {
    /// Begins to connect to `to`, from the address `from` if it is given, with what a program has set on its own end.
    ///
    /// # Errors
    /// It cannot even begin.
    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        mirrored: Mirrored,
    ) -> io::Result<Leg>;
}

/// What is to be known of a leg to a master below, as far as that one has said it.
#[derive(Debug)]
pub struct Ends {
    /// Where it was meant to go.
    pub peer: SocketAddr,
    /// Its own address, as the far end sees it.
    pub own: OnceLock<SocketAddr>,
    /// Why it does not get there.
    pub refused: OnceLock<Failure>,
}

impl Ends {
    /// Of a leg to `peer`.
    pub fn of(peer: SocketAddr) -> Arc<Ends> {
        Arc::new(Ends { peer, own: OnceLock::new(), refused: OnceLock::new() })
    }

    /// Of one that is there.
    pub fn between(own: SocketAddr, peer: SocketAddr) -> Arc<Ends> {
        Arc::new(Ends { peer, own: own.into(), refused: OnceLock::new() })
    }
}
