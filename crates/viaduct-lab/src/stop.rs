//! Handling of Ctrl-C. The first signal stops the running work and keeps its results; the second
//! ends the process immediately.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The user pressed Ctrl-C.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes Ctrl-C, SIGTERM and a closed terminal request a stop. A second signal ends the process
/// immediately with status 130; nothing is left behind in that case either.
pub fn on_signals() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 130, ASKED.clone())?;
        flag::register(signal, ASKED.clone())?;
    }
    Ok(())
}

/// Returns whether a stop was requested.
pub fn is_requested() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Returns `Err` if a stop was requested: for `?` at points where work can end.
pub fn check() -> Result<(), Stopped> {
    if is_requested() { Err(Stopped) } else { Ok(()) }
}

/// Sleeps for `time`. Fails if a stop is requested in the meantime.
pub fn sleep(time: Duration) -> Result<(), Stopped> {
    wait_until(time, Duration::from_millis(20), || false).map(drop)
}

/// Calls `done` every `pause` until it returns true, for at most `limit`. Returns the last result
/// of `done`. Fails if a stop was requested.
pub fn wait_until(
    limit: Duration,
    pause: Duration,
    mut done: impl FnMut() -> bool,
) -> Result<bool, Stopped> {
    let deadline = Instant::now() + limit;
    while !done() {
        check()?;
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(pause);
    }
    Ok(true)
}
