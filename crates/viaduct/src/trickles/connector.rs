//! Connections of a client: streams over one port, in whoever's loop.
//!
//! ```text
//!   loop:   wait for as_fd(), until poll_timeout()
//!           turn()            packets in, timers, packets out; until it says 0
//!           poll_word()       which connection has something to say
//!           stream(flow)      read, write, request ...; then flush()
//! ```

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use viaduct_proto::keys::{Entropy, PublicKey};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::crypt::{self, ClientCrypt};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, Stream};

use super::door::now;
use super::{ClientPort, ClientSettings, Flow, Heard, PortError, PortStats};

/// Bytes of answers that a request is taken to bring, for TCP's numbers: a first window.
const EXPECTED: u32 = 16 << 10;
/// After so many restarts without an answer a connection comes from another port: its NAT may have
/// forgotten it.
const PATIENCE: u32 = 3;
/// What the port's tap is called; UDP sockets have their flows' numbers.
const TAP: u64 = u64::MAX;
/// Sockets that are looked at in one turn.
const SOCKETS: usize = 64;

/// What is to be said of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The server has answered, for the first time.
    Open,
    /// This stream has something to read, or room to write, or has ended; see
    /// [`Stream::state`].
    Changed(u32),
    /// The server is a plain TCP server: close this connection, and connect as to any other.
    PlainTcp,
    /// Nobody listens there.
    Refused,
}

/// Streams over a port. Not shared between threads.
#[derive(Debug)]
pub struct Connector {
    port: ClientPort,
    /// All sockets of the port.
    sockets: OwnedFd,
    streams: HashMap<Flow, Held>,
    timers: BTreeSet<(Instant, Flow)>,
    /// Connections that may have something to send.
    touched: BTreeSet<Flow>,
    words: VecDeque<(Flow, Word)>,
    rng: Rng,
}

#[derive(Debug)]
struct Held {
    stream: Stream,
    crypt: Option<ClientCrypt>,
    /// Somebody has heard that the server has answered.
    open: bool,
    due: Option<Instant>,
    /// Nothing is sent before something is written, until then.
    held: Option<Instant>,
}

impl Connector {
    /// Opens the port in the calling thread's network namespace. `seed` is random.
    ///
    /// # Errors
    /// As [`ClientPort::open`]'s.
    pub fn open(settings: &ClientSettings, seed: u64) -> Result<Connector, PortError> {
        let mut rng = Rng::from_seed(seed);
        let port = ClientPort::open(settings, rng.next_u64())?;
        let sockets = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|sockets| {
            port.tap().map_or(Ok(()), |tap| watch(&sockets, tap, TAP))?;
            Ok(sockets)
        });
        let failed = PortError::socket("wait for sockets", false);
        Ok(Connector {
            port,
            sockets: sockets.map_err(|error| failed(error.into()))?,
            streams: HashMap::new(),
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            words: VecDeque::new(),
            rng,
        })
    }

    /// Connects; what is written to its streams leaves with [`Connector::flush`].
    ///
    /// # Errors
    /// There is no way there, or no port is left.
    pub fn connect(&mut self, remote: SocketAddr, config: Config) -> io::Result<Flow> {
        self.begin(remote, config, None)
    }

    /// The same with all encrypted, to a server that has the secret key of `server` (`viaduct key`); one that
    /// has not, or knows nothing of encryption, is never heard. `entropy` fills buffers with random bytes.
    ///
    /// # Errors
    /// As [`Connector::connect`]'s.
    pub fn connect_encrypted(
        &mut self,
        remote: SocketAddr,
        config: Config,
        server: PublicKey,
        entropy: Entropy,
    ) -> io::Result<Flow> {
        self.begin(remote, config, Some(ClientCrypt::new(server, entropy)))
    }

    fn begin(
        &mut self,
        remote: SocketAddr,
        config: Config,
        crypt: Option<ClientCrypt>,
    ) -> io::Result<Flow> {
        let flow = self.port.connect(remote)?;
        let watched = self.port.socket(flow).map(|at| watch(&self.sockets, at, flow.0 as u64));
        if let Some(Err(error)) = watched {
            self.port.close(flow);
            return Err(error.into());
        }
        let room = u16::try_from(self.port.room(flow)).unwrap_or(u16::MAX);
        let taken =
            |bytes: usize| room.saturating_sub(if crypt.is_some() { bytes as u16 } else { 0 });
        let config = Config {
            message: config.message.min(taken(crypt::REQUEST)),
            request: config.request.min(taken(crypt::OPENING)),
            ..config
        };
        let stream = Stream::open(config, self.rng.next_u64(), now());
        self.streams.insert(flow, Held { stream, crypt, open: false, due: None, held: None });
        self.touched.insert(flow);
        Ok(flow)
    }

    /// Has the first packet of a connection that has just begun wait until something is written to its main
    /// stream, and goes with it; for `most` at most.
    pub fn hold(&mut self, flow: Flow, most: Duration) {
        if let Some(held) = self.streams.get_mut(&flow) {
            held.held = Some(now() + most);
        }
    }

    /// A connection's streams, to be used; [`Connector::flush`] sends what comes of it.
    pub fn stream(&mut self, flow: Flow) -> Option<&mut Stream> {
        let held = self.streams.get_mut(&flow)?;
        self.touched.insert(flow);
        Some(&mut held.stream)
    }

    /// The same, to be looked at alone.
    pub fn look(&self, flow: Flow) -> Option<&Stream> {
        self.streams.get(&flow).map(|held| &held.stream)
    }

    /// Ends a connection, and tells its server so.
    pub fn close(&mut self, flow: Flow) {
        if let Some(held) = self.streams.get_mut(&flow) {
            held.stream.close();
            self.touched.insert(flow);
            self.flush();
        }
        self.forget(flow);
    }

    /// Ends a connection without a word.
    pub fn forget(&mut self, flow: Flow) {
        let Some(held) = self.streams.remove(&flow) else { return };
        held.due.map(|due| self.timers.remove(&(due, flow)));
        self.touched.remove(&flow);
        self.words.retain(|(of, _)| *of != flow);
        self.port.close(flow);
    }

    /// Takes what has come, runs the timers that are due, and sends; never waits. How many packets came:
    /// it is to be called until that is 0, and then when [`Connector::as_fd`] is readable.
    ///
    /// # Errors
    /// The kernel's, of a socket: an interface went down, say. Connections go on.
    pub fn turn(&mut self) -> io::Result<usize> {
        let mut events = [MaybeUninit::uninit(); SOCKETS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waited = epoll::wait(&self.sockets, &mut events, Some(&at_once));
        let (heard, waited) = match waited {
            Ok((events, _)) => {
                (events.iter().map(|event| self.hear(event.data.u64())).sum(), Ok(()))
            }
            Err(rustix::io::Errno::INTR) => (Ok(0), Ok(())),
            Err(error) => (Ok(0), Err(error)),
        };
        self.run_timers();
        self.flush();
        waited?;
        heard
    }

    /// Sends what the connections that were used have to send.
    pub fn flush(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        let now = now();
        for &flow in &touched {
            let Some(held) = self.streams.get_mut(&flow) else { continue };
            held.held = held.held.filter(|&until| now < until && held.stream.is_flushed(MAIN));
            while held.held.is_none()
                && let Some(message) = held.stream.poll_transmit(now)
            {
                let message = match &mut held.crypt {
                    None => message,
                    Some(crypt) => match crypt.seal(&message) {
                        Some(sealed) => sealed,
                        None => continue,
                    },
                };
                // What does not fit is lost: the stream begins anew with shorter messages.
                let _ = self.port.send(flow, &message, EXPECTED);
            }
            while let Some(stream) = held.stream.poll_changed() {
                self.words.push_back((flow, Word::Changed(stream)));
            }
            let due = held.held.or_else(|| held.stream.poll_timeout());
            if due != held.due {
                held.due.map(|due| self.timers.remove(&(due, flow)));
                due.map(|due| self.timers.insert((due, flow)));
                held.due = due;
            }
        }
        self.port.flush_these(touched);
    }

    /// The next word of a connection, until None.
    pub fn poll_word(&mut self) -> Option<(Flow, Word)> {
        self.words.pop_front()
    }

    /// How long to wait at most before the next [`Connector::turn`]; None: until something comes.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if !self.touched.is_empty() {
            return Some(Duration::ZERO);
        }
        self.timers.first().map(|(due, _)| *due - now())
    }

    /// The port, for its counters and its ways.
    pub fn port(&self) -> &ClientPort {
        &self.port
    }

    /// The port's counters.
    pub fn stats(&self) -> PortStats {
        self.port.stats()
    }

    /// Takes a batch from a socket; how many packets.
    fn hear(&mut self, socket: u64) -> io::Result<usize> {
        let Connector { port, streams, touched, words, .. } = self;
        let now = now();
        let each = |flow: Flow, heard: Heard<'_>| {
            let Some(held) = streams.get_mut(&flow) else { return };
            match heard {
                Heard::Message(message) => {
                    match &mut held.crypt {
                        None => held.stream.handle(now, message),
                        Some(crypt) => {
                            let Some(opened) = crypt.open(message) else { return };
                            held.stream.handle(now, &opened);
                        }
                    }
                    if held.stream.is_open() && !std::mem::replace(&mut held.open, true) {
                        words.push_back((flow, Word::Open));
                    }
                    touched.insert(flow);
                }
                Heard::PlainTcp => words.push_back((flow, Word::PlainTcp)),
                Heard::Refused => words.push_back((flow, Word::Refused)),
            }
        };
        match socket {
            TAP => port.hear_tap(each),
            flow => port.hear_flow(Flow(flow as usize), each),
        }
    }

    fn run_timers(&mut self) {
        let now = now();
        while let Some(&(due, flow)) = self.timers.first().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, flow));
            let Some(held) = self.streams.get_mut(&flow) else { continue };
            held.due = None;
            if held.held.take().is_none() {
                held.stream.handle_timeout(now);
            }
            self.touched.insert(flow);
            if held.stream.attempts() == PATIENCE && self.port.format(flow).is_some() {
                // Where no port is left it goes on from the one that it has.
                let _ = self.port.reopen(flow);
            }
        }
    }
}

impl AsFd for Connector {
    /// Readable when there is something for [`Connector::turn`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}

fn watch(sockets: &OwnedFd, socket: BorrowedFd<'_>, name: u64) -> rustix::io::Result<()> {
    epoll::add(sockets, socket, epoll::EventData::new_u64(name), epoll::EventFlags::IN)
}
