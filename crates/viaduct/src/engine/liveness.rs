//! Detection of vanished peers: keepalive probes, and the limit of `--dead-after`.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use tracing::debug;
use viaduct_sys::socket::tcp::{self, ZeroWindow};

/// Number of checks of a connection within the time of `dead_after`. If the peer has shut its
/// receive window but answers probes, each check extends the kernel's limit, and must come before
/// that limit ends the connection.
const CHECKS: u32 = 8;

/// Limits on an end's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadPeerLimits {
    /// Idle time before an end is probed; `None` if it never is.
    pub keep_alive: Option<Duration>,
    /// Time without an acknowledgement before an end is given up; `None` means the kernel's limit.
    pub dead_after: Option<Duration>,
}

impl DeadPeerLimits {
    /// Time between two checks of a connection; `None` if one check is enough.
    pub fn interval(&self) -> Option<Duration> {
        self.dead_after.map(|after| after / CHECKS)
    }

    /// Returns whether there is nothing to check.
    pub fn is_unlimited(&self) -> bool {
        self.keep_alive.is_none() && self.dead_after.is_none()
    }
}

/// Liveness of one connection's peer.
#[derive(Clone, Copy, Debug, Default)]
pub enum Liveness {
    /// Not checked yet.
    #[default]
    New,
    /// Left to the kernel, or a program has set limits of its own.
    Unmanaged,
    /// Subject to our limit.
    Limited(ZeroWindow),
}

impl Liveness {
    /// Sets the limits at the first check. Later checks keep the connection alive if its peer
    /// answers although its window is shut.
    pub fn check(&mut self, stream: impl AsFd, silence: DeadPeerLimits) {
        if let Err(error) = self.try_check(stream, silence) {
            // The connection has broken meanwhile; its flow will read the error.
            debug!("cannot check whether a peer is alive: {error}");
        }
    }

    fn try_check(&mut self, stream: impl AsFd, silence: DeadPeerLimits) -> io::Result<()> {
        match (&mut *self, silence.dead_after) {
            (Liveness::New, after) => {
                *self = Liveness::Unmanaged;
                match after {
                    Some(_) if tcp::has_dead_after(&stream)? => {}
                    Some(after) => {
                        tcp::set_dead_after_quiet(&stream, silence.keep_alive, after)?;
                        let mut window = ZeroWindow::default();
                        // The window may have been shut for longer than the limit.
                        window.look(&stream, after)?;
                        *self = Liveness::Limited(window);
                    }
                    None => {
                        if let Some(quiet) = silence.keep_alive {
                            tcp::keep_alive(&stream, quiet)?;
                        }
                    }
                }
                Ok(())
            }
            (Liveness::Limited(window), Some(after)) => window.look(stream, after),
            (Liveness::Limited(_) | Liveness::Unmanaged, _) => Ok(()),
        }
    }
}
