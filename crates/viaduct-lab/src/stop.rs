//! Ctrl-C: asked for once, whatever runs ends soon and keeps what it has; twice, the lab ends now.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Someone pressed Ctrl-C.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes Ctrl-C, SIGTERM and a closed terminal ask for a stop; a second one ends the process with
/// status 130 at once (nothing is left behind then either).
pub fn on_signals() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 130, ASKED.clone())?;
        flag::register(signal, ASKED.clone())?;
    }
    Ok(())
}

/// Whether a stop was asked for.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// `Err` if a stop was asked for: for `?` at a place where work can end.
pub fn check() -> Result<(), Stopped> {
    if asked() { Err(Stopped) } else { Ok(()) }
}
