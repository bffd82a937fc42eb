//! Ends of a chain: the top towards the application, and the bottoms towards the network. The ends
//! buffer bytes; at the chain's limit they stop their source (section 5.1 of the TESLA paper).

use bytes::Bytes;

use super::buffer::Buffer;
use super::call::{
    Address, Down, Failure, Half, OutputTransport, SocketOption, SocketOptions, Up, Upper,
};
use super::measure::Measure;

/// ID of a bottom: one of a chain's connections to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BottomId(pub(crate) usize);

/// Purpose of a [spawned](super::Context::spawn) chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnKind {
    /// The chain serves other chains, and never has an application.
    Alone,
    /// The chain carries a further accepted flow for the spawning flow's application. The spawning
    /// flow itself has no application from then on.
    Accepted,
}

/// Action for the driver of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection, and call [`Chain::connected`](super::Chain::connected).
    Connect(BottomId, Address),
    /// Bind a connection to a local address.
    Bind(BottomId, Address),
    /// Set a socket option of a connection.
    SetOption(BottomId, SocketOption),
    /// Send the bytes in [`Chain::outgoing`](super::Chain::outgoing), and call
    /// [`Chain::sent`](super::Chain::sent).
    Send(BottomId),
    /// Start or stop reading from the network.
    Receive(BottomId, bool),
    /// Shut down one direction of the connection.
    Shutdown(BottomId, Half),
    /// Close the connection. No action for it follows.
    Close(BottomId),
    /// Register this chain as the owner of a key.
    Claim(Vec<u8>),
    /// Remove the registration of a key.
    Release(Vec<u8>),
    /// Pass this chain to [`Chain::take`](super::Chain::take) of the chain that owns the key, or
    /// call [`Chain::unclaimed`](super::Chain::unclaimed).
    Give(Vec<u8>),
    /// Call [`Chain::wake`](super::Chain::wake) of the chain that owns the key, if any.
    Wake(Vec<u8>),
    /// Create another chain of these handlers ([`Chain::spawned`](super::Chain::spawned)), or call
    /// [`Chain::unspawned`](super::Chain::unspawned).
    Spawn(Spawn),

    /// The application's connect has succeeded or failed.
    Connected(Result<(), Failure>),
    /// The accepted flow is ready: from now on it has an application.
    Accepted,
    /// Give the bytes in [`Chain::incoming`](super::Chain::incoming) to the application, and
    /// call [`Chain::consumed`](super::Chain::consumed).
    Deliver,
    /// Start or stop reading from the application.
    MayWrite(bool),
    /// End of stream: all data of the other end has been delivered.
    Finished,
    /// The flow has failed.
    Failed(Failure),
    /// Event from a handler for the application.
    Event(Vec<u8>),
    /// Message from a handler for the user: a line for the log.
    Say(String),
}

/// Request for another chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawn {
    /// Purpose of the chain.
    pub kind: SpawnKind,
    /// Position of the handler that asks for it.
    pub(super) position: usize,
    /// Message to the handler at the same position of the new chain.
    pub(super) message: Vec<u8>,
}

/// Directions of a flow or of an end that are permanently closed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Closed {
    /// True if no more bytes are written downstream.
    pub(super) write: bool,
    /// True if no more bytes are delivered upstream.
    pub(super) avail: bool,
}

/// Pending shutdown or close of the connection, carried out once the buffer is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    None,
    Shutdown,
    Close,
    Done,
}

/// End of the chain towards the network.
#[derive(Debug)]
pub(super) struct Bottom {
    pub(super) id: BottomId,
    pub(super) up: Upper,
    pub(super) closed: Closed,
    pub(super) buffer: Buffer,
    pub(super) names: (Option<Address>, Option<Address>),
    pub(super) options: SocketOptions,
    pub(super) transport: Option<OutputTransport>,
    /// Last measurement of the bottom's connection, without the bytes in `buffer`.
    pub(super) measure: Option<Measure>,
    stopped: bool,
    ending: Ending,
    shut: bool,
}

/// Requests of an end: to the driver, and to its neighbour in the chain.
pub(super) type Requests<T> = (Option<Action>, Option<T>);

impl Bottom {
    pub(super) fn new(id: usize, up: Upper, transport: Option<OutputTransport>) -> Self {
        Bottom {
            id: BottomId(id),
            up,
            closed: Closed::default(),
            buffer: Buffer::default(),
            names: (None, None),
            options: SocketOptions::default(),
            transport,
            measure: None,
            stopped: false,
            ending: Ending::None,
            shut: false,
        }
    }

    pub(super) fn take(&mut self, what: Down, limit: usize) -> Requests<Up> {
        if self.ending >= Ending::Close {
            return (None, None);
        }
        let id = self.id;
        match what {
            Down::Connect(to) => (Some(Action::Connect(id, to)), None),
            Down::Bind(at) => (Some(Action::Bind(id, at)), None),
            // The kernel has already accepted the connection.
            Down::Listen => (None, Some(Up::AcceptReady)),
            Down::Accept => (None, Some(Up::Accepted)),
            Down::SetOption(option) => {
                self.options.set(option);
                (Some(Action::SetOption(id, option)), None)
            }
            Down::MayAvail(may) => (Some(Action::Receive(id, may)), None),
            Down::Write(data) => self.write(data, limit),
            // The driver resets the connection once the written data has been sent.
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

    fn write(&mut self, data: Bytes, limit: usize) -> Requests<Up> {
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

    fn end(&mut self, ending: Ending) -> Requests<Up> {
        self.closed.write = true;
        self.ending = self.ending.max(ending);
        (self.ended(), None)
    }

    /// Action that is due if the buffer is empty.
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

    /// Handles `count` bytes sent to the network.
    pub(super) fn sent(&mut self, count: usize, limit: usize) -> Requests<Up> {
        self.buffer.advance(count);
        let go = self.stopped && self.buffer.len() <= limit / 2 && !self.closed.write;
        self.stopped &= !go;
        (self.ended(), go.then_some(Up::MayWrite(true)))
    }

    /// Handles a broken connection: both directions are closed.
    pub(super) fn broken(&mut self) {
        self.closed = Closed { write: true, avail: true };
        self.buffer.clear();
    }

    /// Closes immediately and drops buffered bytes; returns the action, unless already closed.
    pub(super) fn abort(&mut self) -> Option<Action> {
        self.broken();
        let first = std::mem::replace(&mut self.ending, Ending::Done) != Ending::Done;
        first.then_some(Action::Close(self.id))
    }

    /// Returns whether both directions are closed: the connection broke, was closed by the chain,
    /// or has ended in each direction.
    pub(super) fn is_over(&self) -> bool {
        self.closed.write && self.closed.avail
    }
}

/// End of the chain towards the application.
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
    pub(super) fn take(&mut self, what: Up, limit: usize) -> Requests<Down> {
        if self.failed {
            return (None, None);
        }
        match what {
            Up::Connected(result) => (Some(Action::Connected(result)), None),
            // The application accepts all clients.
            Up::AcceptReady => (None, Some(Down::Accept)),
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
            // An application that has closed the flow receives no further errors.
            Up::Failed(_) if self.closed.write && self.closed.avail => (None, None),
            Up::Failed(why) => {
                self.failed = true;
                self.closed = Closed { write: true, avail: true };
                (Some(Action::Failed(why)), None)
            }
        }
    }

    fn avail(&mut self, data: Bytes, limit: usize) -> Requests<Down> {
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

    /// Handles `count` bytes consumed by the application.
    pub(super) fn consumed(&mut self, count: usize, limit: usize) -> Requests<Down> {
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
