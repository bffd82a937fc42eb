//! Barrier of the event loop: the run reports the end of a program only after the events of the
//! program's calls have been logged and counted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use viaduct_sys::poll::Waker;

/// Maximum wait. The loop handles an event within microseconds, but the machine may be busy.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Barrier between the event loop and a thread that waits for it.
#[derive(Debug)]
pub struct EventBarrier {
    pub(super) waker: Waker,
    /// Number of waits so far.
    requested: AtomicU64,
    /// Number of the last wait that may end, because the loop has handled all events before it.
    handled: Mutex<u64>,
    changed: Condvar,
}

impl EventBarrier {
    pub(super) fn new() -> io::Result<EventBarrier> {
        Ok(EventBarrier {
            waker: Waker::new()?,
            requested: AtomicU64::new(0),
            handled: Mutex::new(0),
            changed: Condvar::new(),
        })
    }

    /// Waits until the event loop has handled all events that occurred before this call, for at
    /// most [`MAX_WAIT`].
    pub fn wait(&self) {
        let number = self.requested.fetch_add(1, Ordering::AcqRel) + 1;
        self.waker.wake();
        let handled = self.handled.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.changed.wait_timeout_while(handled, MAX_WAIT, |handled| *handled < number);
    }

    /// Returns the number of waits so far. These waits may end once the events that are pending now
    /// have been handled.
    pub(super) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Acquire)
    }

    /// Ends the waits up to `number`.
    pub(super) fn release(&self, number: u64) {
        *self.handled.lock().unwrap_or_else(PoisonError::into_inner) = number;
        self.changed.notify_all();
    }
}
