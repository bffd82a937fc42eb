//! Names of hosts, looked up beside the loop: the system's resolver waits.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mio::Waker;

/// Lookups at once.
const THREADS: usize = 4;
/// Lookups that wait for a thread, at most.
const WAITING: usize = 256;

/// A flow's number, and its generation, which tells it from a later one of the same number.
pub type Asker = (usize, u64);

/// The threads that look up.
#[derive(Debug)]
pub struct Resolver {
    questions: SyncSender<(Asker, String, u16)>,
    answers: Receiver<(Asker, Vec<SocketAddr>)>,
}

impl Resolver {
    /// Wakes the loop by `waker` for each answer.
    pub fn new(waker: &Arc<Waker>) -> std::io::Result<Resolver> {
        let (questions, asked) = sync_channel::<(Asker, String, u16)>(WAITING);
        let (answer, answers) = sync_channel(WAITING + THREADS);
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..THREADS {
            let (asked, answer, waker) = (asked.clone(), answer.clone(), waker.clone());
            thread::Builder::new().name("names".to_owned()).spawn(move || {
                let next = || asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok((asker, name, port)) = next() {
                    let found = (&name[..], port).to_socket_addrs();
                    let all = found.map(Iterator::collect).unwrap_or_default();
                    if answer.send((asker, all)).is_err() || waker.wake().is_err() {
                        break;
                    }
                }
            })?;
        }
        Ok(Resolver { questions, answers })
    }

    /// Asks for the addresses of `name`; false if too many wait.
    pub fn ask(&self, asker: Asker, name: String, port: u16) -> bool {
        match self.questions.try_send((asker, name, port)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// The next answer: all addresses, the one to be preferred first.
    pub fn answer(&self) -> Option<(Asker, Vec<SocketAddr>)> {
        self.answers.try_recv().ok()
    }
}
