//! Requests over Trickles, answered by threads that keep no state of clients.
//!
//! ```text
//!   Listener::turn ──▶ event ──▶ proto::web::respond ──▶ Endpoint::send ──▶ packets
//!                                      │ find       read │
//!                                      FileCache: open files
//! ```
//!
//! With several threads, each thread has its own tap, UDP sockets and replay window. BPF programs
//! (`viaduct_sys::capture::filter::Share`) select the thread for a packet by the client's port. A
//! continuation is valid only from its client's port, so a request that one thread has answered
//! never reaches another thread. So all threads together answer a continuation at most once.

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
use viaduct_trickles::{Listener, Secrets, ServerSettings};

use super::file_cache::FileCache;
use super::status::TricklesStatus;
use crate::watchdog::Heartbeat;

/// Interval at which files are evicted, changed secrets are reloaded and the status is updated.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Minimum size of a thread's replay window, in bytes: three slices of the window have room for the
/// maximum that a batch can record, 64 requests from each of three sockets, with about 2,200
/// entries each.
const MIN_REPLAY: usize = 1 << 22;

/// Packet formats in which Trickles is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PacketFormats {
    /// Packets that look like TCP, if privileges allow them, and UDP datagrams
    Auto,
    /// Packets that look like TCP; requires root, or CAP_NET_RAW and CAP_NET_ADMIN
    Tcp,
    /// UDP datagrams
    Udp,
    /// No Trickles, only plain TCP
    Off,
}

/// Settings that all threads share.
#[derive(Debug)]
pub struct ServiceConfig {
    /// Packet formats in which Trickles is served.
    pub formats: PacketFormats,
    /// Settings of the port. The fields `tcp` and `udp` are ignored; `formats` replaces them.
    pub port: ServerSettings,
    /// Total size of the replay windows of all threads, in bytes.
    pub replay: usize,
    /// True if packets of one connection are balanced among several servers.
    pub balanced: bool,
    /// Secrets that seal continuations.
    pub secrets: Secrets,
}

/// Resources of one thread.
#[derive(Debug)]
pub struct WorkerResources {
    /// Encryption state, if encryption is enabled.
    pub crypt: Option<ServerCrypt>,
    /// Cache of the served files.
    pub files: FileCache,
}

/// Running service.
#[derive(Debug)]
pub struct Service(Vec<Thread>);

#[derive(Debug)]
struct Thread {
    state: Arc<ThreadState>,
    /// Handle of the thread, which returns its listener. The first thread's listener owns the
    /// firewall rules, and must outlive the other listeners.
    running: Option<JoinHandle<Listener>>,
}

#[derive(Debug)]
struct ThreadState {
    stop: AtomicBool,
    waker: Waker,
    heartbeat: Heartbeat,
    status: Mutex<TricklesStatus>,
}

impl Service {
    /// Opens the port, and starts a thread for each element of `resources`.
    pub fn start(config: &ServiceConfig, resources: Vec<WorkerResources>) -> Result<Service> {
        let of = resources.len() as u32;
        let mut service = Service(Vec::new());
        for (number, of_worker) in (0..).zip(resources) {
            let share = (of > 1).then_some(Share { number, of });
            service.0.push(Thread::start(config, share, of_worker)?);
        }
        Ok(service)
    }

    /// Counters of the service.
    pub fn status(&self) -> TricklesStatus {
        let of =
            |one: &Thread| one.state.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A thread that has just started has no counters.
        let counted = self.0.iter().map(of).filter(|status| !status.refused.is_empty());
        counted.reduce(TricklesStatus::and).unwrap_or_default()
    }

    /// Age of the oldest heartbeat of the threads.
    pub fn age(&self) -> Duration {
        self.0.iter().map(|thread| thread.state.heartbeat.age()).max().unwrap_or_default()
    }
}

impl Thread {
    fn start(
        config: &ServiceConfig,
        share: Option<Share>,
        resources: WorkerResources,
    ) -> Result<Thread> {
        let ServiceConfig { formats, ref port, replay, balanced, ref secrets } = *config;
        let (tcp, udp) = (formats != PacketFormats::Udp, formats != PacketFormats::Tcp);
        let settings = ServerSettings { tcp, udp, share, ..port.clone() };
        let of = share.map_or(1, |share| share.of as usize);
        let replay = (replay / of).max(MIN_REPLAY);
        let udp_fallback = formats == PacketFormats::Auto;
        let mut listener =
            Listener::open(&settings, udp_fallback, replay, balanced, secrets.clone())
                .context("cannot serve Trickles")?;
        if let Some(crypt) = resources.crypt {
            listener = listener.with_crypt(crypt);
        }
        let state = Arc::new(ThreadState {
            stop: AtomicBool::new(false),
            waker: Waker::new()?,
            heartbeat: Heartbeat::default(),
            status: Mutex::default(),
        });
        let run = {
            let (state, mut files) = (state.clone(), resources.files);
            move || {
                state.run(&mut listener, &mut files);
                listener
            }
        };
        let name =
            share.map_or("trickles".to_owned(), |share| format!("trickles-{}", share.number));
        let running = std::thread::Builder::new().name(name).spawn(run)?;
        Ok(Thread { state, running: Some(running) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for thread in &self.0 {
            thread.state.stop.store(true, Ordering::Relaxed);
            thread.state.waker.wake();
        }
        // A panic of the thread has already been logged.
        let ended = |thread: &mut Thread| thread.running.take()?.join().ok();
        let listeners: Vec<Listener> = self.0.iter_mut().filter_map(ended).collect();
        // The first listener owns the rules, so it is dropped last.
        listeners.into_iter().rev().for_each(drop);
    }
}

impl ThreadState {
    fn run(&self, listener: &mut Listener, files: &mut FileCache) {
        let mut checked_at = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            self.heartbeat.beat();
            let done = answer_batch(listener, files);
            if done == 0 {
                wait(&[listener], &self.waker, CHECK_INTERVAL);
            }
            if checked_at.elapsed() >= CHECK_INTERVAL {
                checked_at = Instant::now();
                files.evict();
                if let Err(error) = listener.reload_secrets() {
                    warn!("cannot reload the secrets, so the old ones stay in use: {error:#}");
                }
                let (port, now) = (listener.stats(), listener.now());
                let status = TricklesStatus::new(listener.endpoint(), &port, files.stats(), now);
                *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
            }
        }
    }
}

/// Answers a batch of requests. Returns their number.
fn answer_batch(listener: &mut Listener, files: &mut FileCache) -> usize {
    let turn = listener.turn(|endpoint, event, out| {
        if event.kind() == Kind::Close {
            endpoint.drop_event(event);
            return;
        }
        files.evict();
        files.set_client(event.client());
        let mut reply = respond(endpoint.ring(), &event, files);
        if files.was_out_of_descriptors() {
            files.clear();
            files.set_client(event.client());
            reply = respond(endpoint.ring(), &event, files);
        }
        if files.was_out_of_descriptors() {
            // For the client this is a lost packet, so the client retries later, when descriptors
            // may be free.
            endpoint.drop_event(event);
            return;
        }
        endpoint.send(event, &reply, files, out);
        files.write_log();
    });
    turn.unwrap_or_else(|error| {
        warn!(%error, "a Trickles socket failed");
        0
    })
}
