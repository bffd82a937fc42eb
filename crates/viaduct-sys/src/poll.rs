//! Sleeps until a descriptor is readable, a deadline passes, or another thread wakes the sleeper.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

/// Wakes a thread that sleeps in [`wait`].
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Creates a waker.
    pub fn new() -> io::Result<Waker> {
        Ok(Waker(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the current sleep, or the next one.
    pub fn wake(&self) {
        // Fails only if the counter is full, in which case the sleeper has been woken already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Sleeps until one of `readable` is readable, `waker` is woken, or `at_most` has passed.
pub fn wait(readable: &[&dyn AsFd], waker: &Waker, at_most: Duration) {
    let mut fds: Vec<PollFd<'_>> =
        readable.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    fds.push(PollFd::new(&waker.0, PollFlags::IN));
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // A signal may end the sleep early: callers check all conditions again anyway.
    let _ = poll(&mut fds, Some(&timeout));
    if fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN)) {
        waker.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn a_wake_up_ends_only_one_sleep() {
        let waker = Arc::new(Waker::new().unwrap());
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        let start = Instant::now();
        wait(&[], &waker, Duration::from_secs(20));
        assert!(start.elapsed() < Duration::from_secs(10));
        thread.join().unwrap();
        let start = Instant::now();
        wait(&[], &waker, Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
