//! The signals that end a service or have it read its config again. They are registered before
//! anything is changed on the machine: one that comes while it starts is heeded once it has, and what
//! was changed is put back.

use std::time::Duration;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals, and the runtime of the control side that hears them.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    heard: Heard,
}

/// What is heard of them, in that runtime.
#[derive(Debug)]
pub struct Heard {
    /// SIGHUP: read the config again.
    pub hangup: Signal,
    /// SIGUSR1: open log files again.
    pub user1: Signal,
    /// SIGTERM: end.
    pub terminate: Signal,
    /// SIGINT: the same.
    pub interrupt: Signal,
}

/// Why a pause has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The time is over.
    Over,
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    End,
}

impl Signals {
    /// From now on none of them ends the process by itself.
    ///
    /// # Errors
    /// The kernel gives no descriptors.
    pub fn register() -> Result<Signals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let heard = {
            let _entered = runtime.enter();
            Heard {
                hangup: signal(SignalKind::hangup())?,
                user1: signal(SignalKind::user_defined1())?,
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            }
        };
        Ok(Signals { runtime, heard })
    }

    /// Waits for `time`, or for the next signal.
    pub fn pause(&mut self, time: Duration) -> Pause {
        let heard = &mut self.heard;
        self.runtime.block_on(async {
            tokio::select! {
                _ = heard.terminate.recv() => Pause::End,
                _ = heard.interrupt.recv() => Pause::End,
                _ = heard.hangup.recv() => Pause::Reload,
                () = tokio::time::sleep(time) => Pause::Over,
            }
        })
    }

    /// Both, for the control side.
    pub fn into_parts(self) -> (Runtime, Heard) {
        (self.runtime, self.heard)
    }
}
