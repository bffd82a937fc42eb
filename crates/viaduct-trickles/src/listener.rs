//! Listener of a server: a [`ServerPort`], the events of its requests, and the secrets.
//!
//! ```text
//!   loop:   poll as_fd()
//!           turn(each)              answers each event immediately, without the queue
//!     or    fetch(); endpoint().poll_event(); send(event, reply)      queues events
//!           reload_secrets()        from time to time: reads the file again if it has changed
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use rustix::event::epoll;
use tracing::{debug, info, warn};
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::api::{Endpoint, Files, Minisocket, Reply};
use viaduct_proto::trickles::crypt::ServerCrypt;
use viaduct_proto::trickles::packet::Return;
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Server, Settings};

use crate::clock::Clock;
use crate::{Answers, PortStats, Secrets, ServerPort, ServerSettings, egress};

/// Maximum age of a continuation; a client with an older continuation restarts.
const HORIZON: Duration = Duration::from_secs(30);
/// Maximum number of events in the queue, as many as arrive in a tenth of a second at full speed.
const QUEUE: usize = 16_384;

/// A [`ServerPort`] with its events. Not shared between threads.
#[derive(Debug)]
pub struct Listener {
    port: ServerPort,
    endpoint: Endpoint,
    secrets: Secrets,
    clock: Clock,
    sockets: OwnedFd,
}

impl Listener {
    /// Opens the port in the calling thread's network namespace, with the packet formats of
    /// `settings`. With `udp_fallback` the port uses only UDP if privileges do not allow packets in
    /// TCP's format. `replay` is the size of the replay window in bytes. `balanced` must be true if
    /// packets of one connection are distributed among replicas: a request that is not in the
    /// window may then have been answered by another replica, so it does not count as lost. Shares
    /// of one port do not need this, because all packets of a client arrive at the same share.
    /// Errors: those of [`ServerPort::open`]; or the kernel has no random bytes.
    pub fn open(
        settings: &ServerSettings,
        udp_fallback: bool,
        replay: usize,
        balanced: bool,
        secrets: Secrets,
    ) -> Result<Listener> {
        let port = ServerPort::open(settings).or_else(|error| {
            if !(udp_fallback && error.is_privilege()) {
                return Err(error);
            }
            warn!(%error, "cannot serve Trickles in TCP's format, only over UDP");
            ServerPort::open(&ServerSettings { tcp: false, udp: true, ..settings.clone() })
        })?;
        let (now, clock) = (wall_clock(), Clock::new(wall_clock(), egress::now()));
        let replay = Replay::new(replay, HORIZON, Secrets::seeds()?, now);
        let mut server_settings = Settings::default();
        if balanced {
            server_settings.make_up = 0;
        }
        let server = Server::new(server_settings, secrets.ring(), replay);
        let sockets = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (n, socket) in port.sockets().enumerate() {
            let name = epoll::EventData::new_u64(n as u64);
            epoll::add(&sockets, socket, name, epoll::EventFlags::IN)?;
        }
        Ok(Listener { port, endpoint: Endpoint::new(server, QUEUE), secrets, clock, sockets })
    }

    /// Accepts encrypted requests as well, or only encrypted requests if `crypt` requires
    /// encryption.
    #[must_use]
    pub fn with_crypt(self, crypt: ServerCrypt) -> Listener {
        Listener { endpoint: self.endpoint.with_crypt(crypt), ..self }
    }

    /// Processes a batch of requests: calls `each` for every event, with a function that queues its
    /// answers, and sends the answers at the end. Does not block. Returns the number of messages.
    /// Errors: a socket's error, for instance because an interface went down. The port stays
    /// usable.
    pub fn turn(
        &mut self,
        mut each: impl FnMut(&mut Endpoint, Minisocket<'_>, &mut dyn FnMut(&mut Return, &[u8])),
    ) -> io::Result<usize> {
        let now = self.clock.advance(wall_clock(), egress::now());
        let Listener { port, endpoint, .. } = self;
        port.turn(|message, to, answers| {
            let room = answers.room(&to);
            // Refusals are counted.
            if let Ok(mut event) = endpoint.accept(now, to, message) {
                event.fit(room);
                each(endpoint, event, &mut |to, message| send(answers, to, message));
            }
        })
    }

    /// Processes a batch of requests, and queues their events. Does not block. Returns the number
    /// of messages. Errors: those of [`Listener::turn`].
    pub fn fetch(&mut self) -> io::Result<usize> {
        let now = self.clock.advance(wall_clock(), egress::now());
        let Listener { port, endpoint, .. } = self;
        port.turn(|message, to, answers| {
            let room = answers.room(&to);
            // Refusals are counted.
            let _ = endpoint.handle(now, to, message, room);
        })
    }

    /// Answers an event; its packets are sent by [`Listener::flush`].
    pub fn send(&mut self, mut event: Minisocket<'_>, reply: &Reply, files: &mut dyn Files) {
        let Listener { port, endpoint, .. } = self;
        event.fit(port.answers().room(event.to()));
        endpoint.send(event, reply, files, |to, message| send(port.answers(), to, message));
    }

    /// Returns whether answers wait for [`Listener::flush`].
    pub fn has_queued(&self) -> bool {
        self.port.has_queued()
    }

    /// Sends the queued answers.
    pub fn flush(&mut self) {
        self.port.answers().flush();
    }

    /// The endpoint, which has the event queue.
    pub fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Uses the secrets of [`Secrets::reload_if_changed`] if they have changed; returns true in
    /// this case. Errors: those of [`Secrets::new`]; the current secrets stay in use.
    pub fn reload_secrets(&mut self) -> Result<bool> {
        let changed = self.secrets.reload_if_changed()?;
        if changed {
            *self.endpoint.server_mut().ring_mut() = self.secrets.ring();
            info!(numbers = ?self.secrets.numbers(), "the secrets have changed");
        }
        Ok(changed)
    }

    /// Time of day for answers' timestamps, which replicas share; it never goes back.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The port's counters.
    pub fn stats(&self) -> PortStats {
        self.port.stats()
    }
}

impl AsFd for Listener {
    /// Readable when there are packets to process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}

fn send(answers: &mut Answers, to: &mut Return, message: &[u8]) {
    if let Err(error) = answers.send(message, to) {
        debug!(%error, client = %to.client(), "an answer is longer than the path MTU");
    }
}

fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
