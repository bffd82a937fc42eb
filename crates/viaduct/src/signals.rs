//! Signals that end a service or make it reload its config. They are registered before anything
//! is changed on the machine. A signal during the start is handled after it, and the changes are
//! reverted.

use std::time::Duration;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals, and the runtime of the control side that receives them.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    heard: Heard,
}

/// Streams of the signals, in that runtime.
#[derive(Debug)]
pub struct Heard {
    /// SIGHUP: reload the config.
    pub hangup: Signal,
    /// SIGUSR1: reopen log files.
    pub user1: Signal,
    /// SIGTERM: terminate.
    pub terminate: Signal,
    /// SIGINT: terminate.
    pub interrupt: Signal,
}

/// Reason why a pause has ended.
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
    /// Registers the signals: from now on none of them ends the process by itself.
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

    /// Splits into the runtime and the signals, for the control side.
    pub fn into_parts(self) -> (Runtime, Heard) {
        (self.runtime, self.heard)
    }
}
