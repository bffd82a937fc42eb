//! Detection of vanished ends: keepalive probes, and the limit of `--dead-after`.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use tracing::debug;
use viaduct_sys::tcp::{self, ShutWindow};

/// Looks at a connection within the limit: so many that one whose peer has shut its receive window is never ended
/// before the next.
const LOOKS: u32 = 8;

/// How long an end may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadPeerLimits {
    /// Time without a byte before an idle end is probed; `None`: never.
    pub keep_alive: Option<Duration>,
    /// Time without an acknowledgement before an end is given up; `None`: the kernel's.
    pub dead_after: Option<Duration>,
}

impl DeadPeerLimits {
    /// Time between two looks at a connection; `None`: one look is enough.
    pub fn interval(&self) -> Option<Duration> {
        self.dead_after.map(|after| after / LOOKS)
    }

    /// Whether there is nothing to look for.
    pub fn is_unlimited(&self) -> bool {
        self.keep_alive.is_none() && self.dead_after.is_none()
    }
}

/// What is known of one connection's peer.
#[derive(Clone, Copy, Debug, Default)]
pub enum Liveness {
    /// It was not looked at yet.
    #[default]
    New,
    /// The kernel tells of it by itself, or a program has set limits of its own.
    Unmanaged,
    /// It has our limit.
    Limited(ShutWindow),
}

impl Liveness {
    /// Sets the limits at the first look, and at later ones lets a peer last that answers though its window is shut.
    pub fn look(&mut self, stream: impl AsFd, silence: DeadPeerLimits) {
        if let Err(error) = self.try_look(stream, silence) {
            // It has broken meanwhile, and its flow hears of that.
            debug!("look whether an end is there: {error}");
        }
    }

    fn try_look(&mut self, stream: impl AsFd, silence: DeadPeerLimits) -> io::Result<()> {
        match (&mut *self, silence.dead_after) {
            (Liveness::New, after) => {
                *self = Liveness::Unmanaged;
                match after {
                    Some(_) if tcp::has_dead_after(&stream)? => {}
                    Some(after) => {
                        tcp::set_dead_after_quiet(&stream, silence.keep_alive, after)?;
                        let mut window = ShutWindow::default();
                        // It may have been shut for longer than the limit.
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
