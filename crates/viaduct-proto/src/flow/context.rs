//! Context of a handler: the calls it may make while one of its methods runs.

use bytes::Bytes;

use super::call::{Address, Down, Failure, Half, OutputTransport, Place, SocketOption, Up};
use super::core::Core;
use super::ends::SpawnKind;
use super::handler::{Output, Timer};
use super::measure::Measure;
use crate::time::Instant;

/// Chain as one of its handlers sees it.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) core: &'a mut Core,
    pub(super) node: usize,
    pub(super) now: Instant,
}

impl Context<'_> {
    /// Current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Instantiates the next handler of the chain, or the chain's end, as a new output flow.
    /// Outputs are numbered in the order in which they were plumbed, beginning with
    /// [`FIRST`](super::FIRST).
    pub fn plumb(&mut self) -> Output {
        self.core.plumb(self.node, None, self.now)
    }

    /// Like [`plumb`](Context::plumb), with all connections below over `transport`, unless a
    /// handler below names another. Connecting fails if the driver does not support the transport.
    pub fn plumb_over(&mut self, transport: OutputTransport) -> Output {
        self.core.plumb(self.node, Some(transport), self.now)
    }

    /// Drops an output flow: its connections are closed immediately, even with buffered data, and
    /// its handlers are dropped. Its number is not used again.
    pub fn unplumb(&mut self, output: Output) {
        self.core.unplumb(self.node, output, self.now);
    }

    /// Claims `key`: from now on, a handler at the same position in another chain can
    /// [give](Context::give) a connection to this handler by naming the key.
    /// [`Handler::taken`](super::Handler::taken) is then called. Any chain that knows the key can
    /// do this; authentication is up to the handlers.
    pub fn claim(&mut self, key: &[u8]) {
        self.core.claim(self.node, key);
    }

    /// Undoes [`claim`](Context::claim).
    pub fn release(&mut self, key: &[u8]) {
        self.core.release(self.node, key);
    }

    /// Gives an output flow, with all handlers below it, to the chain that has claimed `to`. `said`
    /// is the data received on the flow and not handled yet; later data goes to the new owner too.
    /// Allowed only if the chain's application has not been notified of anything; the rest of the
    /// chain is dropped. If the key is not claimed,
    /// [`Handler::unclaimed`](super::Handler::unclaimed) is called.
    pub fn give(&mut self, output: Output, to: &[u8], said: Bytes) {
        self.core.give(self.node, output, to, said);
    }

    /// Calls [`Handler::woken`](super::Handler::woken) of the handler, in this or another chain,
    /// that has [claimed](Context::claim) `key`, if there is one. The driver makes the call after
    /// the handler's own method has returned.
    pub fn wake(&mut self, key: &[u8]) {
        self.core.wake(key);
    }

    /// Asks for another chain of the same handlers. Its handler at the same position gets `message`
    /// ([`Handler::spawned`](super::Handler::spawned)). The new chain has no connection yet.
    pub fn spawn(&mut self, kind: SpawnKind, message: &[u8]) {
        self.core.spawn(self.node, kind, message);
    }

    /// Output flow, for calls.
    pub fn output(&mut self, output: Output) -> Downstream<'_> {
        let place = self.core.output(self.node, output);
        Downstream { core: self.core, place, now: self.now }
    }

    /// Input flow, for calls.
    pub fn upstream(&mut self) -> Upstream<'_> {
        Upstream { core: self.core, from: Place::Node(self.node) }
    }

    /// Sets a timer: [`Handler::timeout`](super::Handler::timeout) is called with `timer` at `at`.
    /// An earlier deadline of the timer is replaced; `None` cancels the timer.
    pub fn set_timer(&mut self, timer: Timer, at: Option<Instant>) {
        self.core.set_timer(self.node, timer, at);
    }

    /// Sends the application an event, in order with earlier notifications (section 3.6 of the
    /// TESLA paper).
    pub fn notify(&mut self, event: Vec<u8>) {
        self.core.notify(event);
    }

    /// Writes a line to the driver's log, such as the reason why a flow is refused or aborted.
    pub fn say(&mut self, line: impl std::fmt::Display) {
        self.core.say(self.node, &line);
    }
}

/// Output flow, with the calls that can be made to it.
#[derive(Debug)]
pub struct Downstream<'a> {
    core: &'a mut Core,
    place: Option<Place>,
    now: Instant,
}

impl Downstream<'_> {
    fn ask(self, what: Down) -> bool {
        self.place.is_some_and(|place| self.core.ask(place, what))
    }

    /// See [`Handler::connect`](super::Handler::connect).
    pub fn connect(self, to: Address) {
        self.ask(Down::Connect(to));
    }

    /// See [`Handler::bind`](super::Handler::bind).
    pub fn bind(self, at: Address) {
        self.ask(Down::Bind(at));
    }

    /// See [`Handler::listen`](super::Handler::listen).
    pub fn listen(self) {
        self.ask(Down::Listen);
    }

    /// See [`Handler::accept`](super::Handler::accept).
    pub fn accept(self) {
        self.ask(Down::Accept);
    }

    /// Writes all of `data`; returns false, and drops it, if the flow accepts no more bytes.
    #[must_use = "if the flow takes no more, report that upstream"]
    pub fn write(self, data: Bytes) -> bool {
        self.ask(Down::Write(data))
    }

    /// See [`Handler::shutdown`](super::Handler::shutdown).
    pub fn shutdown(self, half: Half) {
        self.ask(Down::Shutdown(half));
    }

    /// See [`Handler::close`](super::Handler::close).
    pub fn close(self) {
        self.ask(Down::Close);
    }

    /// See [`Handler::abort`](super::Handler::abort).
    pub fn abort(self) {
        self.ask(Down::Abort);
    }

    /// See [`Handler::may_avail`](super::Handler::may_avail).
    pub fn may_avail(self, may: bool) {
        self.ask(Down::MayAvail(may));
    }

    /// See [`Handler::setsockopt`](super::Handler::setsockopt).
    pub fn setsockopt(self, option: SocketOption) {
        self.ask(Down::SetOption(option));
    }

    /// See [`Handler::getsockopt`](super::Handler::getsockopt).
    pub fn getsockopt(self, level: i32, name: i32) -> Option<i32> {
        self.core.getsockopt(self.place?, self.now, level, name)
    }

    /// See [`Handler::getsockname`](super::Handler::getsockname).
    pub fn getsockname(self) -> Option<Address> {
        self.core.getsockname(self.place?, self.now)
    }

    /// See [`Handler::getpeername`](super::Handler::getpeername).
    pub fn getpeername(self) -> Option<Address> {
        self.core.getpeername(self.place?, self.now)
    }

    /// See [`Handler::measure`](super::Handler::measure).
    pub fn measure(self) -> Option<Measure> {
        self.core.measure(self.place?, self.now)
    }

    /// See [`Handler::control`](super::Handler::control).
    pub fn control(self, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        self.core.control(self.place?, self.now, to, request)
    }
}

/// Input flow, with the calls that can be made to it.
#[derive(Debug)]
pub struct Upstream<'a> {
    core: &'a mut Core,
    from: Place,
}

impl Upstream<'_> {
    /// See [`Handler::connected`](super::Handler::connected).
    pub fn connected(self, result: Result<(), Failure>) {
        self.core.tell(self.from, Up::Connected(result));
    }

    /// See [`Handler::accept_ready`](super::Handler::accept_ready).
    pub fn accept_ready(self) {
        self.core.tell(self.from, Up::AcceptReady);
    }

    /// See [`Handler::accepted`](super::Handler::accepted).
    pub fn accepted(self) {
        self.core.tell(self.from, Up::Accepted);
    }

    /// Passes all of `data` upstream; returns false, and drops it, if no more bytes are read.
    #[must_use = "if no more is read, report that downstream"]
    pub fn avail(self, data: Bytes) -> bool {
        self.core.tell(self.from, Up::Avail(data))
    }

    /// See [`Handler::finished`](super::Handler::finished).
    pub fn finished(self) {
        self.core.tell(self.from, Up::Finished);
    }

    /// See [`Handler::failed`](super::Handler::failed).
    pub fn failed(self, why: Failure) {
        self.core.tell(self.from, Up::Failed(why));
    }

    /// See [`Handler::may_write`](super::Handler::may_write).
    pub fn may_write(self, may: bool) {
        self.core.tell(self.from, Up::MayWrite(may));
    }
}
