//! Signals that terminate a service or make it reload its config. They are registered before the
//! service changes anything on the machine: a SIGTERM that arrives during the start is handled
//! after the start, so that the changes are reverted.

use std::time::Duration;

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use viaduct_sys::process::signals;

/// Signals, and the runtime that receives them on the control side.
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    streams: SignalStreams,
}

/// Streams of the signals, in the runtime of [`Signals`].
#[derive(Debug)]
pub struct SignalStreams {
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
    /// Registers the signals, so that none of them terminates the process by default. Signals that
    /// the parent process has blocked are unblocked.
    pub fn register() -> Result<Signals> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let streams = {
            let _entered = runtime.enter();
            SignalStreams {
                hangup: signal(SignalKind::hangup())?,
                user1: signal(SignalKind::user_defined1())?,
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            }
        };
        signals::unblock(&[SIGHUP, SIGUSR1, SIGTERM, SIGINT])?;
        Ok(Signals { runtime, streams })
    }

    /// Waits until `time` has passed, or for the next signal.
    pub fn pause(&mut self, time: Duration) -> Pause {
        let streams = &mut self.streams;
        self.runtime.block_on(async {
            tokio::select! {
                _ = streams.terminate.recv() => Pause::End,
                _ = streams.interrupt.recv() => Pause::End,
                _ = streams.hangup.recv() => Pause::Reload,
                () = tokio::time::sleep(time) => Pause::Over,
            }
        })
    }

    /// Splits into the runtime and the signals, for the control side.
    pub fn into_parts(self) -> (Runtime, SignalStreams) {
        (self.runtime, self.streams)
    }
}

/// Waits for either of two signals. No signal is lost if the future is dropped.
pub async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
