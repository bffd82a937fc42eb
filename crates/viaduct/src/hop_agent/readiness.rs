//! Readiness of many descriptors (the tap, listeners and processes), which a thread reports to the
//! event loop. A descriptor is reported once; it must then be watched again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::{io, thread};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::UnboundedSender;
use tracing::error;

/// Maximum number of events taken from the kernel in one call.
const MAX_EVENTS: usize = 256;
/// Event data of the tap. Hops use the numbers 2 and above: even numbers for clients, odd numbers
/// for processes.
const TAP: u64 = 0;

/// Ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The tap has SYNs.
    Tap,
    /// A client waits at a listener of the hop with this key.
    Client(usize),
    /// The process of the hop with this key has ended.
    Ended(usize),
}

/// Watched descriptors.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<OwnedFd>);

impl Ready {
    fn number(self) -> u64 {
        match self {
            Ready::Tap => TAP,
            Ready::Client(key) => 2 * key as u64 + 2,
            Ready::Ended(key) => 2 * key as u64 + 3,
        }
    }

    fn of(number: u64) -> Ready {
        let key = (number / 2).saturating_sub(1) as usize;
        match (number, number % 2) {
            (TAP, _) => Ready::Tap,
            (_, 0) => Ready::Client(key),
            _ => Ready::Ended(key),
        }
    }
}

impl Readiness {
    /// Starts the thread, which sends its reports to `reports` until the receiver is dropped.
    /// Errors: the process is out of descriptors or threads.
    pub fn start(reports: UnboundedSender<Ready>) -> io::Result<Readiness> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let own = epoll.clone();
        thread::Builder::new().name("readiness".to_owned()).spawn(move || {
            let mut events: Vec<Event> = Vec::with_capacity(MAX_EVENTS);
            loop {
                events.clear();
                match epoll::wait(&*own, spare_capacity(&mut events), None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return error!("cannot wait for clients: {error}"),
                }
                for event in &events {
                    let data = event.data;
                    if reports.send(Ready::of(data.u64())).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Readiness(epoll))
    }

    /// Makes the thread report once that `fd` is readable: immediately if it already is.
    pub fn watch(&self, fd: impl AsFd, ready: Ready) -> io::Result<()> {
        let (data, flags) =
            (EventData::new_u64(ready.number()), EventFlags::IN | EventFlags::ONESHOT);
        match epoll::add(&*self.0, &fd, data, flags) {
            Err(Errno::EXIST) => Ok(epoll::modify(&*self.0, &fd, data, flags)?),
            added => Ok(added?),
        }
    }

    /// Stops watching `fd`.
    pub fn unwatch(&self, fd: impl AsFd) {
        // An error means that `fd` was not watched.
        let _ = epoll::delete(&*self.0, fd);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn each_descriptor_is_reported_once_until_it_is_watched_again() {
        for ready in [Ready::Tap, Ready::Client(0), Ready::Ended(0), Ready::Client(7)] {
            assert_eq!(Ready::of(ready.number()), ready);
        }
        let (send, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let readiness = Readiness::start(send).unwrap();
        let (read, mut write) = io::pipe().unwrap();
        readiness.watch(&read, Ready::Client(5)).unwrap();
        write.write_all(b"x").unwrap();
        assert_eq!(reports.recv().await, Some(Ready::Client(5)));
        let second = tokio::time::timeout(Duration::from_millis(50), reports.recv()).await;
        assert!(second.is_err(), "reported twice");
        readiness.watch(&read, Ready::Ended(5)).unwrap();
        assert_eq!(reports.recv().await, Some(Ready::Ended(5)));
        readiness.unwatch(&read);
    }
}
