//! The two ends of a chain: where it meets the application, and where it meets the network. They
//! alone hold bytes, up to the chain's limit, and stop their source beyond it (TESLA, 5.1).

use bytes::Bytes;

use super::buffer::Buffer;
use super::call::{Address, Down, Failure, Half, SocketOption, Up, Upper};
use super::measure::Measure;

/// One of the flows by which a chain meets the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BottomId(pub(crate) usize);

/// What a chain that is [spawned](super::Context::spawn) is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kin {
    /// It serves other chains, and never has an application.
    Alone,
    /// The application that the flow which spawns it came for: one more flow for that. The flow that
    /// spawns such has no application from then on.
    Accepted,
}

/// What whoever drives a chain is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection, and say [`Chain::connected`](super::Chain::connected).
    Connect(BottomId, Address),
    /// Give a flow an address of its own.
    Bind(BottomId, Address),
    /// Wait for connections; at each say [`Chain::accept_ready`](super::Chain::accept_ready).
    Listen(BottomId, u32),
    /// Take the connection that waits, and give it a [`Chain::sibling`](super::Chain::sibling).
    Accept(BottomId),
    /// Set an option.
    SetOption(BottomId, SocketOption),
    /// Bytes wait in [`Chain::outgoing`](super::Chain::outgoing): send them, and say
    /// [`Chain::sent`](super::Chain::sent).
    Send(BottomId),
    /// Read from the network, or let it wait.
    Receive(BottomId, bool),
    /// End one direction of the connection.
    Shutdown(BottomId, Half),
    /// Close the connection; nothing follows.
    Close(BottomId),
    /// Connections that name this key are this chain's.
    Claim(Vec<u8>),
    /// They are no more.
    Release(Vec<u8>),
    /// This chain's connections belong to the chain that has claimed the key: give it to that one's
    /// [`Chain::take`](super::Chain::take), or say [`Chain::unclaimed`](super::Chain::unclaimed).
    Give(Vec<u8>),
    /// Say [`Chain::wake`](super::Chain::wake) to the chain that has claimed the key, if one has.
    Wake(Vec<u8>),
    /// Make another chain of these handlers ([`Chain::spawned`](super::Chain::spawned)), or say
    /// [`Chain::unspawned`](super::Chain::unspawned).
    Spawn(Spawn),

    /// The connection that the application asked for is there, or failed.
    Connected(Result<(), Failure>),
    /// The flow that was accepted is ready: only now is it the application's.
    Accepted,
    /// A connection waits to be accepted.
    AcceptReady,
    /// Bytes wait in [`Chain::incoming`](super::Chain::incoming): give them to the application, and
    /// say [`Chain::consumed`](super::Chain::consumed).
    Deliver,
    /// Take bytes from the application, or let it wait.
    MayWrite(bool),
    /// All that the other end wrote has been delivered.
    Finished,
    /// The flow broke.
    Failed(Failure),
    /// A handler has something to say to the application.
    Event(Vec<u8>),
    /// A handler has something to say to the user: a line for the log.
    Say(String),
}

/// A chain that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawn {
    /// What for.
    pub kin: Kin,
    /// The place of the handler that wants it.
    pub(super) position: usize,
    /// What it is told.
    pub(super) word: Vec<u8>,
}

/// What has been said for good about an end's two directions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Closed {
    /// No more bytes go down.
    pub(super) write: bool,
    /// No more bytes go up.
    pub(super) avail: bool,
}

/// What a stopped direction ends with, once its buffer is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    None,
    Shutdown,
    Close,
    Done,
}

/// Where the chain meets the network.
#[derive(Debug)]
pub(super) struct Bottom {
    pub(super) id: BottomId,
    pub(super) up: Upper,
    pub(super) closed: Closed,
    pub(super) buffer: Buffer,
    pub(super) names: (Option<Address>, Option<Address>),
    /// What was measured of its connection, without what waits here.
    pub(super) measure: Option<Measure>,
    stopped: bool,
    ending: Ending,
    shut: bool,
}

/// What an end wants done: of the driver, and of its neighbour in the chain.
pub(super) type Wants<T> = (Option<Action>, Option<T>);

impl Bottom {
    pub(super) fn new(id: usize, up: Upper) -> Self {
        Bottom {
            id: BottomId(id),
            up,
            closed: Closed::default(),
            buffer: Buffer::default(),
            names: (None, None),
            measure: None,
            stopped: false,
            ending: Ending::None,
            shut: false,
        }
    }

    pub(super) fn take(&mut self, what: Down, limit: usize) -> Wants<Up> {
        if self.ending >= Ending::Close {
            return (None, None);
        }
        let id = self.id;
        match what {
            Down::Connect(to) => (Some(Action::Connect(id, to)), None),
            Down::Bind(at) => (Some(Action::Bind(id, at)), None),
            Down::Listen(backlog) => (Some(Action::Listen(id, backlog)), None),
            Down::Accept => (Some(Action::Accept(id)), None),
            Down::SetOption(option) => (Some(Action::SetOption(id, option)), None),
            Down::MayAvail(may) => (Some(Action::Receive(id, may)), None),
            Down::Write(data) => self.write(data, limit),
            // Whoever drives the chain resets it when what was written has gone.
            Down::Abort => (None, None),
            Down::Shutdown(Half::Read) => {
                let first = !std::mem::replace(&mut self.closed.avail, true);
                (first.then_some(Action::Shutdown(id, Half::Read)), None)
            }
            Down::Shutdown(Half::Write) => self.end(Ending::Shutdown),
            Down::Close => {
                self.closed.avail = true;
                self.end(Ending::Close)
            }
        }
    }

    fn write(&mut self, data: Bytes, limit: usize) -> Wants<Up> {
        if self.closed.write {
            return (None, None);
        }
        let waited = !self.buffer.is_empty();
        self.buffer.push(data);
        let action = (!waited && !self.buffer.is_empty()).then_some(Action::Send(self.id));
        let stop = !self.stopped && self.buffer.len() >= limit;
        self.stopped |= stop;
        (action, stop.then_some(Up::MayWrite(false)))
    }

    fn end(&mut self, ending: Ending) -> Wants<Up> {
        self.closed.write = true;
        self.ending = self.ending.max(ending);
        (self.ended(), None)
    }

    /// What is due now that the buffer may be empty.
    fn ended(&mut self) -> Option<Action> {
        if !self.buffer.is_empty() {
            return None;
        }
        match self.ending {
            Ending::Close => {
                self.ending = Ending::Done;
                Some(Action::Close(self.id))
            }
            Ending::Shutdown if !self.shut => {
                self.shut = true;
                Some(Action::Shutdown(self.id, Half::Write))
            }
            _ => None,
        }
    }

    /// The network has taken `count` bytes.
    pub(super) fn sent(&mut self, count: usize, limit: usize) -> Wants<Up> {
        self.buffer.advance(count);
        let go = self.stopped && self.buffer.len() <= limit / 2 && !self.closed.write;
        self.stopped &= !go;
        (self.ended(), go.then_some(Up::MayWrite(true)))
    }

    /// The connection broke: nothing goes either way any more.
    pub(super) fn broken(&mut self) {
        self.closed = Closed { write: true, avail: true };
        self.buffer.clear();
    }

    /// Closes at once, whatever waits; the action, if it is not closed yet.
    pub(super) fn abort(&mut self) -> Option<Action> {
        self.broken();
        let first = std::mem::replace(&mut self.ending, Ending::Done) != Ending::Done;
        first.then_some(Action::Close(self.id))
    }

    /// Whether the connection broke, or the chain has closed it.
    pub(super) fn is_over(&self) -> bool {
        self.closed.write && self.closed.avail
    }
}

/// Where the chain meets the application.
#[derive(Debug, Default)]
pub(super) struct Top {
    pub(super) closed: Closed,
    pub(super) buffer: Buffer,
    pub(super) stopped: bool,
    paused: bool,
    finished: bool,
    said_finished: bool,
    failed: bool,
}

impl Top {
    pub(super) fn take(&mut self, what: Up, limit: usize) -> Wants<Down> {
        if self.failed {
            return (None, None);
        }
        match what {
            Up::Connected(result) => (Some(Action::Connected(result)), None),
            Up::AcceptReady => (Some(Action::AcceptReady), None),
            Up::Accepted => (Some(Action::Accepted), None),
            Up::MayWrite(may) => {
                self.stopped = !may;
                (Some(Action::MayWrite(may)), None)
            }
            Up::Avail(data) => self.avail(data, limit),
            Up::Finished => {
                self.finished = true;
                (self.ended(), None)
            }
            // Who has closed the flow hears of nothing any more.
            Up::Failed(_) if self.closed.write && self.closed.avail => (None, None),
            Up::Failed(why) => {
                self.failed = true;
                self.closed = Closed { write: true, avail: true };
                (Some(Action::Failed(why)), None)
            }
        }
    }

    fn avail(&mut self, data: Bytes, limit: usize) -> Wants<Down> {
        if self.closed.avail || self.finished {
            return (None, None);
        }
        let waited = !self.buffer.is_empty();
        self.buffer.push(data);
        let action = (!waited && !self.buffer.is_empty()).then_some(Action::Deliver);
        let pause = !self.paused && self.buffer.len() >= limit;
        self.paused |= pause;
        (action, pause.then_some(Down::MayAvail(false)))
    }

    /// The application has taken `count` bytes.
    pub(super) fn consumed(&mut self, count: usize, limit: usize) -> Wants<Down> {
        self.buffer.advance(count);
        let go = self.paused && self.buffer.len() <= limit / 2;
        self.paused &= !go;
        (self.ended(), go.then_some(Down::MayAvail(true)))
    }

    fn ended(&mut self) -> Option<Action> {
        let due = self.finished && self.buffer.is_empty() && !self.said_finished && !self.failed;
        self.said_finished |= due;
        due.then_some(Action::Finished)
    }
}
