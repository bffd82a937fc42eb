//! What a handler may do while one of its methods runs.

use bytes::Bytes;

use super::call::{Address, Down, Failure, Half, Place, SocketOption, Up};
use super::core::Core;
use super::ends::Kin;
use super::handler::{Output, Timer};
use super::measure::Measure;
use crate::time::Instant;

/// The chain, as one of its handlers sees it.
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) core: &'a mut Core,
    pub(super) node: usize,
    pub(super) now: Instant,
}

impl Context<'_> {
    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Instantiates the next handler of the chain, or the chain's end, as a new output flow. Outputs
    /// are numbered in the order in which they were plumbed, [`FIRST`](super::FIRST) first.
    pub fn plumb(&mut self) -> Output {
        self.core.plumb(self.node, self.now)
    }

    /// Gives an output flow up: its connections are closed at once, whatever waits in them, and its
    /// handlers are gone. Its number is not used again.
    pub fn unplumb(&mut self, output: Output) {
        self.core.unplumb(self.node, output, self.now);
    }

    /// From now on, connections that name `key` belong to this handler: another chain's handler of
    /// the same place [gives](Context::give) them, and [`Handler::taken`](super::Handler::taken) is
    /// called. Whoever knows the key can try: proof is the handlers' business.
    pub fn claim(&mut self, key: &[u8]) {
        self.core.claim(self.node, key);
    }

    /// The opposite of [`claim`](Context::claim).
    pub fn release(&mut self, key: &[u8]) {
        self.core.release(self.node, key);
    }

    /// Gives an output flow, with all handlers below it, to the chain that has claimed `to`, and the
    /// bytes that it has `said` so far; what it says from now on goes there too. For a chain whose
    /// application has not been told of anything: nothing is left of it. If nobody has claimed it,
    /// [`Handler::unclaimed`](super::Handler::unclaimed) is called.
    pub fn give(&mut self, output: Output, to: &[u8], said: Bytes) {
        self.core.give(self.node, output, to, said);
    }

    /// Calls [`Handler::woken`](super::Handler::woken) of the handler, of this chain or another, that
    /// has [claimed](Context::claim) `key`; soon, and not if nobody has.
    pub fn wake(&mut self, key: &[u8]) {
        self.core.wake(key);
    }

    /// Has one more chain made of the same handlers; the one in this handler's place is told `word`
    /// ([`Handler::spawned`](super::Handler::spawned)). None of them has a connection yet.
    pub fn spawn(&mut self, kin: Kin, word: &[u8]) {
        self.core.spawn(self.node, kin, word);
    }

    /// An output flow, to call.
    pub fn output(&mut self, output: Output) -> Downstream<'_> {
        let place = self.core.output(self.node, output);
        Downstream { core: self.core, place, now: self.now }
    }

    /// The input flow, to call.
    pub fn upstream(&mut self) -> Upstream<'_> {
        Upstream { core: self.core, from: Place::Node(self.node) }
    }

    /// Calls [`Handler::timeout`](super::Handler::timeout) with `timer` at `at`, and not when it was
    /// set to before; `None`: not at all.
    pub fn set_timer(&mut self, timer: Timer, at: Option<Instant>) {
        self.core.set_timer(self.node, timer, at);
    }

    /// Sends the application an event, which it gets after what it has been told before (3.6).
    pub fn notify(&mut self, event: Vec<u8>) {
        self.core.notify(event);
    }

    /// A line for the log of whoever drives the chain: why a flow is refused, or broken off.
    pub fn say(&mut self, line: impl std::fmt::Display) {
        self.core.say(self.node, &line);
    }
}

/// An output flow: what an upstream flow may ask of it.
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
    pub fn listen(self, backlog: u32) {
        self.ask(Down::Listen(backlog));
    }

    /// See [`Handler::accept`](super::Handler::accept).
    pub fn accept(self) {
        self.ask(Down::Accept);
    }

    /// Writes all of `data`. `false`: the flow takes no more, and has not taken these.
    #[must_use = "a flow that takes no more should be told of upstream"]
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

    /// See [`Handler::set_option`](super::Handler::set_option).
    pub fn set_option(self, option: SocketOption) {
        self.ask(Down::SetOption(option));
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

/// The input flow: what it may be told.
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

    /// Hands all of `data` on. `false`: nobody reads any more, and these are dropped.
    #[must_use = "a flow that is not read should be told of downstream"]
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
