//! Requests over Trickles: threads that keep no state of clients.
//!
//! ```text
//!   Listener::turn ──▶ event ──▶ proto::web::respond ──▶ Endpoint::send ──▶ packets
//!                                      │ find       read │
//!                                      Shelf: files that are open
//! ```
//!
//! With several threads, each has a tap, UDP sockets and a replay window of its own. BPF
//! programs (`viaduct_sys::capture::filter::Share`) pass to each thread the packets of its clients,
//! selected by their ports. A continuation is valid from its client's port alone, so a request
//! that one thread has answered never reaches another: it is answered once in all, as with one
//! thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tracing::warn;
use viaduct_proto::trickles::api::Kind;
use viaduct_proto::trickles::crypt::ServerCrypt;
use viaduct_proto::web::respond;
use viaduct_sys::capture::filter::Share;
use viaduct_sys::poll::{Waker, wait};

use super::shelf::Shelf;
use super::status::TricklesStatus;
use crate::trickles::{Listener, Secrets, ServerSettings};

/// Maximum interval between checks of the time and of the secrets.
const LOOK: Duration = Duration::from_millis(200);

/// Minimum size of a thread's replay window, in bytes.
const MIN_REPLAY: usize = 1 << 16;

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

/// Settings that all threads share.
#[derive(Debug)]
pub struct Terms {
    /// Packets by which Trickles is served.
    pub ways: Ways,
    /// Settings of the port. Its `tcp` and `udp` are ignored in favour of `ways`.
    pub port: ServerSettings,
    /// Bytes of the replay windows, and connections of the cache, for all threads together; see
    /// [`Listener::open`].
    pub memory: (usize, usize),
    /// True if packets of one connection are balanced among several servers.
    pub balanced: bool,
    /// Secrets that seal continuations.
    pub secrets: Secrets,
}

/// Resources of one thread.
#[derive(Debug)]
pub struct Hand {
    /// Identity of the server, if it encrypts.
    pub crypt: Option<ServerCrypt>,
    /// Files.
    pub shelf: Shelf,
}

/// Running service.
#[derive(Debug)]
pub struct Service(Vec<Thread>);

#[derive(Debug)]
struct Thread {
    shared: Arc<Shared>,
    /// Thread, which returns its listener. The first thread's listener has the rules, and must
    /// outlive the others.
    running: Option<JoinHandle<Listener>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    waker: Waker,
    status: Mutex<TricklesStatus>,
}

impl Service {
    /// Opens the port, and starts a thread for each hand.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub fn start(terms: &Terms, hands: Vec<Hand>) -> Result<Service> {
        let of = hands.len() as u32;
        let mut service = Service(Vec::new());
        for (number, hand) in (0..).zip(hands) {
            let share = (of > 1).then_some(Share { number, of });
            service.0.push(Thread::start(terms, share, hand)?);
        }
        Ok(service)
    }

    /// Counters of the service.
    pub fn status(&self) -> TricklesStatus {
        let of =
            |one: &Thread| one.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A thread that has just started has no counters and no reasons yet.
        let counted = self.0.iter().map(of).filter(|status| !status.refused.is_empty());
        counted.reduce(TricklesStatus::and).unwrap_or_default()
    }
}

impl Thread {
    fn start(terms: &Terms, share: Option<Share>, hand: Hand) -> Result<Thread> {
        let Terms { ways, ref port, memory: (replay, cache), balanced, ref secrets } = *terms;
        let (tcp, udp) = (ways != Ways::Udp, ways != Ways::Tcp);
        let settings = ServerSettings { tcp, udp, share, ..port.clone() };
        let of = share.map_or(1, |share| share.of as usize);
        let memory = ((replay / of).max(MIN_REPLAY), cache.div_ceil(of));
        let least = ways == Ways::Auto;
        let mut listener = Listener::open(&settings, least, memory, balanced, secrets.clone())
            .context("cannot serve Trickles")?;
        if let Some(crypt) = hand.crypt {
            listener = listener.with_crypt(crypt);
        }
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            waker: Waker::new()?,
            status: Mutex::default(),
        });
        let run = {
            let (shared, mut shelf) = (shared.clone(), hand.shelf);
            move || {
                shared.run(&mut listener, &mut shelf);
                listener
            }
        };
        let name =
            share.map_or("trickles".to_owned(), |share| format!("trickles-{}", share.number));
        let running = std::thread::Builder::new().name(name).spawn(run)?;
        Ok(Thread { shared, running: Some(running) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for thread in &self.0 {
            thread.shared.stop.store(true, Ordering::Relaxed);
            thread.shared.waker.wake();
        }
        // A panic there has been logged already.
        let ended = |thread: &mut Thread| thread.running.take()?.join().ok();
        let listeners: Vec<Listener> = self.0.iter_mut().filter_map(ended).collect();
        // The first listener has the rules.
        listeners.into_iter().rev().for_each(drop);
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
                shelf.tidy();
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

/// Answers a batch of requests. Returns how many.
fn turn(listener: &mut Listener, shelf: &mut Shelf) -> usize {
    let turn = listener.turn(|endpoint, event, out| {
        if event.kind() == Kind::Close {
            endpoint.drop_event(event);
            return;
        }
        shelf.tidy();
        shelf.set_client(event.client());
        let mut reply = respond(endpoint.ring(), &event, shelf);
        if shelf.was_starved() {
            shelf.clear();
            shelf.set_client(event.client());
            reply = respond(endpoint.ring(), &event, shelf);
        }
        if shelf.was_starved() {
            // For the client this is a lost packet, and it asks again when descriptors may be
            // free.
            endpoint.drop_event(event);
            return;
        }
        endpoint.send(event, &reply, shelf, out);
        shelf.write_log();
    });
    turn.unwrap_or_else(|error| {
        warn!(%error, "a socket of Trickles");
        0
    })
}
