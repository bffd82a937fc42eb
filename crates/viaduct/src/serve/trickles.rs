//! Requests that come by Trickles: a thread that keeps nothing of anybody.
//!
//! ```text
//!   Listener::turn ──▶ event ──▶ proto::web::respond ──▶ Endpoint::send ──▶ packets
//!                                      │ find       read │
//!                                      Shelf: files that are open
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tracing::warn;
use viaduct_proto::trickles::api::Kind;
use viaduct_proto::trickles::crypt::ServerCrypt;
use viaduct_proto::web::respond;
use viaduct_sys::poll::{Waker, wait};

use super::shelf::Shelf;
use super::status::TricklesStatus;
use crate::trickles::{Listener, Secrets, ServerSettings};

/// The loop looks at the time, and at its secrets, this often at least.
const LOOK: Duration = Duration::from_millis(200);

/// By which packets Trickles is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ways {
    /// In packets that look like TCP, if privileges allow it, and in UDP's
    Auto,
    /// In packets that look like TCP; takes root or CAP_NET_RAW and CAP_NET_ADMIN
    Tcp,
    /// In UDP datagrams
    Udp,
    /// Not at all
    Off,
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    waker: Waker,
    status: Mutex<TricklesStatus>,
}

impl Service {
    /// Opens the port, and begins to serve. `memory`: bytes for what was answered, and the connections
    /// of the cache; see [`Listener::open`].
    ///
    /// # Errors
    /// The port cannot be had.
    pub fn start(
        ways: Ways,
        settings: ServerSettings,
        memory: (usize, usize),
        balanced: bool,
        secrets: Secrets,
        crypt: Option<ServerCrypt>,
        mut shelf: Shelf,
    ) -> Result<Service> {
        let settings =
            ServerSettings { tcp: ways != Ways::Udp, udp: ways != Ways::Tcp, ..settings };
        let mut listener = Listener::open(&settings, ways == Ways::Auto, memory, balanced, secrets)
            .context("cannot serve Trickles")?;
        if let Some(crypt) = crypt {
            listener = listener.with_crypt(crypt);
        }
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            waker: Waker::new()?,
            status: Mutex::default(),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run(&mut listener, &mut shelf)
        };
        let thread = std::thread::Builder::new().name("trickles".to_owned()).spawn(run)?;
        Ok(Service { shared, thread: Some(thread) })
    }

    /// What it counts.
    pub fn status(&self) -> TricklesStatus {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been told of already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, listener: &mut Listener, shelf: &mut Shelf) {
        let mut looked = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let done = turn(listener, shelf);
            if done == 0 {
                wait(&[listener], &self.waker, LOOK);
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if let Err(error) = listener.look() {
                    warn!("the secrets stay as they are: {error:#}");
                }
                let (port, now) = (listener.stats(), listener.now());
                let status = TricklesStatus::new(listener.endpoint(), &port, shelf.stats(), now);
                *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
            }
        }
    }
}

/// Answers a batch of requests; how many.
fn turn(listener: &mut Listener, shelf: &mut Shelf) -> usize {
    let turn = listener.turn(|endpoint, event, out| {
        if event.kind() == Kind::Close {
            endpoint.drop_event(event);
            return;
        }
        shelf.tidy();
        let reply = respond(endpoint.ring(), &event, shelf);
        endpoint.send(event, &reply, shelf, out);
    });
    turn.unwrap_or_else(|error| {
        warn!(%error, "a socket of Trickles");
        0
    })
}
