//! A port, and how the connections over it stand.
//!
//! ```text
//!   Asking ── answered ─────────────▶ There
//!      ├── the server's TCP answers, or nobody does for a while ──▶ PlainTcp: the loop goes on by TCP
//!      └── nobody listens there, and its TCP says so ──▶ Refused
//! ```

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mio::Token;
use ring::rand::{SecureRandom as _, SystemRandom};
use tracing::debug;
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, State, Stream};

use super::course::{Course, Early};
use super::known::Known;
use super::seat::{News, Seat, Standing};
use super::ways::Ways;
use crate::shell::entropy;
use crate::sparing::Sparing;
use crate::trickles::{ClientSettings, Connector, Flow, PortError, Word};

/// Bytes of the longest packet: Ethernet's. Where less passes, the route's interface or a router says so.
const MTU: usize = 1500;
/// How long a connection that was there waits for an answer. A server may be away for as long as this and
/// nobody has to know; a TCP that sends in vain gives up about then.
const GIVE_UP: Duration = Duration::from_secs(900);
/// How long a server that knows only TCP is taken to be so, and one that has answered by Trickles.
const PLAIN: Duration = Duration::from_secs(60);
const THERE: Duration = Duration::from_secs(600);
/// How long the first packet of a connection waits for what its program says first.
const FIRST_WORDS: Duration = Duration::from_millis(5);
/// Turns of the connector before the other flows have theirs.
const TURNS: usize = 64;
/// Servers that are not reached, or no longer, as the log hears of them.
static TROUBLE: Sparing<(SocketAddr, &str)> = Sparing::new(1);

/// A port that the ends of its flows share with their loop.
#[derive(Clone, Debug)]
pub(super) struct SharedPort(Arc<Mutex<Port>>);

/// The port.
#[derive(Debug)]
pub(super) struct Port {
    connector: Connector,
    seats: HashMap<Flow, Seat>,
    /// Seats of which the loop is to hear.
    news: VecDeque<Flow>,
    /// Those that are not answered yet, by when they are tried by TCP, or people are told.
    waiting: BTreeSet<(Instant, Flow)>,
    /// Connections whose flow has ended, and that have still to bring what was written.
    leaving: BTreeSet<Flow>,
    /// Servers that know only TCP, and those that have answered.
    plain: Known,
    there: Known,
    /// The last turn was not the end of what had come.
    busy: bool,
}

impl SharedPort {
    /// Opens it in the calling thread's network namespace.
    pub(super) fn open(
        ways: Ways,
        instance: String,
        run_dir: PathBuf,
        buffer: usize,
    ) -> Result<SharedPort, PortError> {
        let settings = ClientSettings {
            ways: ways.into(),
            mtu: MTU,
            // It may be this machine that translates its own addresses.
            untracked: false,
            instance,
            run_dir,
        };
        Ok(SharedPort(Arc::new(Mutex::new(Port {
            connector: Connector::open(&settings, random())?.within(buffer as u64),
            seats: HashMap::new(),
            news: VecDeque::new(),
            waiting: BTreeSet::new(),
            leaving: BTreeSet::new(),
            plain: Known::new(PLAIN),
            there: Known::new(THERE),
            busy: false,
        }))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Port> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port {
    /// Whether the server at `to` is known to know only TCP.
    pub(super) fn is_plain(&self, to: SocketAddr, now: Instant) -> bool {
        self.plain.holds(to, now)
    }

    /// Begins a connection, and says whether its program is to speak at once.
    pub(super) fn connect(
        &mut self,
        to: SocketAddr,
        course: Course,
        now: Instant,
    ) -> io::Result<(Flow, bool)> {
        let key = course.key;
        let config = Config { give_up: GIVE_UP, ..Config::default() };
        let flow = match key {
            None => self.connector.connect(to, config)?,
            Some(key) => self.connector.connect_encrypted(to, config, key, entropy())?,
        };
        let seat = Seat::new(to, key.is_some(), now);
        self.waiting.insert((seat.until, flow));
        self.seats.insert(flow, seat);
        let early = match course.early {
            Early::Never => false,
            Early::Known => self.there.holds(to, now),
            Early::Always => true,
        };
        if early {
            self.connector.hold(flow, FIRST_WORDS);
        }
        self.connector.flush();
        Ok((flow, early))
    }

    /// Has the loop told by `token`.
    pub(super) fn register(&mut self, flow: Flow, token: Token) {
        if let Some(seat) = self.seats.get_mut(&flow) {
            seat.token = Some(token);
        }
        self.name(flow);
    }

    pub(super) fn standing(&self, flow: Flow) -> Standing {
        self.seats.get(&flow).map_or(Standing::Refused, |seat| seat.standing)
    }

    /// A connection's streams.
    pub(super) fn stream(&mut self, flow: Flow) -> Option<&mut Stream> {
        self.connector.stream(flow)
    }

    /// Our address, and the server's.
    pub(super) fn names(&self, flow: Flow) -> Option<(SocketAddr, SocketAddr)> {
        let seat = self.seats.get(&flow)?;
        Some((self.connector.port().local(flow)?, seat.to))
    }

    /// The end of a flow has gone; `well`: what was written is still to arrive.
    pub(super) fn leave(&mut self, flow: Flow, well: bool) {
        let Some(seat) = self.seats.remove(&flow) else { return };
        self.waiting.remove(&(seat.until, flow));
        self.news.retain(|of| *of != flow);
        match seat.standing {
            Standing::There if well && !self.is_over(flow) => drop(self.leaving.insert(flow)),
            Standing::There => self.connector.close(flow),
            Standing::Asking | Standing::PlainTcp | Standing::Refused => {
                self.connector.forget(flow);
            }
        }
    }

    /// Takes what has come, does what is due by `now`, and sends.
    pub(super) fn turn(&mut self, now: Instant) {
        self.busy = true;
        for _ in 0..TURNS {
            match self.connector.turn() {
                Ok(0) => self.busy = false,
                Ok(_) => continue,
                Err(error) => {
                    debug!("a port of Trickles: {error}");
                    self.busy = false;
                }
            }
            break;
        }
        while let Some((flow, word)) = self.connector.poll_word() {
            self.hear(flow, word, now);
        }
        while let Some(&(at, flow)) = self.waiting.first().filter(|(at, _)| *at <= now) {
            self.waiting.remove(&(at, flow));
            match self.seats.get(&flow) {
                // One that may not go on by TCP waits until it is given up.
                Some(Seat { encrypted: true, standing: Standing::Asking, to, .. }) => {
                    let why =
                        "a server with another key than the given one, or with none, says nothing";
                    TROUBLE.warn((*to, why), format_args!("trickles: {to} does not answer: {why}"));
                }
                Some(Seat { standing: Standing::Asking, .. }) => {
                    self.stand(flow, Standing::PlainTcp, now);
                }
                _ => {}
            }
        }
        let over: Vec<Flow> =
            self.leaving.iter().copied().filter(|flow| self.is_over(*flow)).collect();
        for flow in over {
            self.leaving.remove(&flow);
            self.connector.close(flow);
        }
    }

    /// The token of an end of which there is something to say, and what.
    pub(super) fn poll_news(&mut self) -> Option<(Token, News)> {
        while let Some(flow) = self.news.pop_front() {
            let Some(seat) = self.seats.get_mut(&flow) else { continue };
            seat.named = false;
            let news = match seat.standing {
                Standing::PlainTcp => News::PlainTcp(seat.to),
                Standing::Asking | Standing::There | Standing::Refused => News::Ready,
            };
            if let Some(token) = seat.token {
                return Some((token, news));
            }
        }
        None
    }

    /// How long the loop may sleep.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        if self.busy || !self.news.is_empty() {
            return Some(Duration::ZERO);
        }
        let waiting = self.waiting.first().map(|(at, _)| at.since(now));
        self.connector.poll_timeout().into_iter().chain(waiting).min()
    }

    /// Whether no connection has still something to bring.
    pub(super) fn is_done(&self) -> bool {
        self.leaving.is_empty()
    }

    fn is_encrypted(&self, flow: Flow) -> bool {
        self.seats.get(&flow).is_some_and(|seat| seat.encrypted)
    }

    fn hear(&mut self, flow: Flow, word: Word, now: Instant) {
        match word {
            Word::Open => self.stand(flow, Standing::There, now),
            Word::PlainTcp if self.is_encrypted(flow) => self.stand(flow, Standing::Refused, now),
            Word::PlainTcp => self.stand(flow, Standing::PlainTcp, now),
            Word::Turned { reset } => self.turned(flow, reset, now),
            Word::Narrow => {
                if let Some(&Seat { to, encrypted, .. }) = self.seats.get(&flow) {
                    let why = match encrypted {
                        true => "Trickles takes packets of 1,280 bytes where it is encrypted",
                        false => "its flows go by TCP",
                    };
                    let line = format_args!("trickles: the way to {to} is too narrow: {why}");
                    TROUBLE.warn((to, why), line);
                }
                self.hear(flow, Word::Refused { reset: false }, now);
            }
            Word::Silent => {
                if let Some(Seat { to, .. }) = self.seats.get(&flow) {
                    let why = "its connections wait for 15 minutes";
                    let line = format_args!("trickles: {to} does not answer any more: {why}");
                    TROUBLE.warn((*to, why), line);
                }
            }
            Word::Refused { reset } => {
                let known = reset || self.is_encrypted(flow);
                self.refused(flow);
                let standing = if known { Standing::Refused } else { Standing::PlainTcp };
                self.stand(flow, standing, now);
            }
            Word::Changed(_) => self.name(flow),
        }
    }

    /// One kind of packets is refused. Where it was the server's TCP that said so, UDP is not waited for as long as
    /// if nothing were known: whoever keeps datagrams out says nothing.
    fn turned(&mut self, flow: Flow, reset: bool, now: Instant) {
        self.refused(flow);
        let Some(seat) = self.seats.get_mut(&flow).filter(|_| reset) else { return };
        if self.waiting.remove(&(seat.until, flow)) {
            seat.hurry(now);
            self.waiting.insert((seat.until, flow));
        }
    }

    fn refused(&mut self, flow: Flow) {
        if let Some(seat) = self.seats.get_mut(&flow) {
            seat.refused = true;
        }
    }

    /// It is known how a connection stands.
    fn stand(&mut self, flow: Flow, standing: Standing, now: Instant) {
        let Some(seat) = self.seats.get_mut(&flow) else { return };
        // What has been decided stays so.
        if seat.standing != Standing::Asking {
            return;
        }
        seat.standing = standing;
        match standing {
            Standing::There => self.there.learn(seat.to, now),
            Standing::PlainTcp | Standing::Refused => self.there.forget(seat.to),
            Standing::Asking => {}
        }
        // One who has refused us may be there the next time.
        if standing == Standing::PlainTcp && !seat.refused {
            self.plain.learn(seat.to, now);
        }
        self.name(flow);
    }

    /// The loop is to hear of it.
    fn name(&mut self, flow: Flow) {
        let Some(seat) = self.seats.get_mut(&flow) else { return };
        if !std::mem::replace(&mut seat.named, true) {
            self.news.push_back(flow);
        }
    }

    /// Whether nothing of what was written is still to arrive, or ever will.
    fn is_over(&self, flow: Flow) -> bool {
        self.connector.look(flow).is_none_or(|stream| {
            let failed = matches!(stream.state(MAIN), State::Failed(_));
            failed || stream.is_flushed(MAIN)
        })
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connector.as_fd()
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // The kernel always has them once it has started.
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random bytes");
    u64::from_be_bytes(bytes)
}
