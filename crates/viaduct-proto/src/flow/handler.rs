//! Trait of handlers. Its default methods pass every call on.

use bytes::Bytes;

use super::call::{Address, Failure, Half, SocketOption};
use super::context::Context;
use super::measure::Measure;

/// Output flow of a handler, as returned by [`Context::plumb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Output(pub(super) usize);

/// Output flow that the default [`Handler::start`] plumbs.
pub const FIRST: Output = Output(0);

/// Name of a timer, chosen by the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timer(pub u32);

/// Session service on one flow (sections 3.2 and 3.3 of the TESLA paper). Downstream methods are
/// called by the handler's input flow, that is, from the application's side; upstream methods by
/// one of its output flows. No method may block.
pub trait Handler {
    /// Called once, when the handler enters the chain. The default plumbs one output flow.
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.plumb();
    }

    // Downstream methods.

    /// Opens the flow towards `to`; the answer is [`Handler::connected`].
    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        cx.output(FIRST).connect(to);
    }

    /// Binds the flow to a local address.
    fn bind(&mut self, cx: &mut Context<'_>, at: Address) {
        cx.output(FIRST).bind(at);
    }

    /// Listens for the one client of this chain: every client of a listener has a chain of its own.
    /// If a handler does not pass this call on, the client is never accepted.
    fn listen(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).listen();
    }

    /// Accepts the client that [`Handler::accept_ready`] announced ([`Handler::accepted`]).
    fn accept(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).accept();
    }

    /// Writes all of `data` towards the network; returns false if the flow accepts no more data.
    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        cx.output(FIRST).write(data)
    }

    /// Ends one direction: no more data will be written, or read.
    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        cx.output(FIRST).shutdown(half);
    }

    /// Closes the flow; data written before is still sent.
    fn close(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).close();
    }

    /// Handles a reset of the application's end. Data written before is still sent; the driver then
    /// resets the connection. Not called while data is [held](Handler::held), unless the held data
    /// makes no progress.
    fn abort(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).abort();
    }

    /// Number of written bytes that wait in the handler, for their due time or for the other end's
    /// acknowledgement. A reset would overtake them.
    fn held(&self) -> u64 {
        0
    }

    /// Allows or forbids calls of [`Upstream::avail`](super::Upstream::avail) from now on.
    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        cx.output(FIRST).may_avail(may);
    }

    /// Sets a socket option that the application has set on its own end. An option that is not
    /// passed on has no effect on the network's side.
    fn setsockopt(&mut self, cx: &mut Context<'_>, option: SocketOption) {
        cx.output(FIRST).setsockopt(option);
    }

    /// Value of a socket option to show to the application: by default the value that was passed
    /// on. `None` shows the application the value of its own socket.
    fn getsockopt(&mut self, cx: &mut Context<'_>, level: i32, name: i32) -> Option<i32> {
        cx.output(FIRST).getsockopt(level, name)
    }

    /// Local address of the flow.
    fn getsockname(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        cx.output(FIRST).getsockname()
    }

    /// Address of the other end.
    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        cx.output(FIRST).getpeername()
    }

    /// Measurements of the first output flow's path; `None` if there are none.
    fn measure(&mut self, cx: &mut Context<'_>) -> Option<Measure> {
        cx.output(FIRST).measure()
    }

    /// Answers a request to the handler named `to` (the ioctl in section 3.6 of the TESLA paper);
    /// `None` if there is no such handler. Called for that handler, and for those above it, which
    /// pass the request on.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        cx.output(FIRST).control(to, request)
    }

    // Upstream methods. An unplumbed output flow makes no calls.

    /// Handles the result of a connect.
    fn connected(&mut self, cx: &mut Context<'_>, from: Output, result: Result<(), Failure>) {
        let _ = from;
        cx.upstream().connected(result);
    }

    /// Handles a client that can be accepted, before any handshake. A handler may pass the call on
    /// later, or refuse the client by [`Upstream::failed`](super::Upstream::failed).
    fn accept_ready(&mut self, cx: &mut Context<'_>, from: Output) {
        let _ = from;
        cx.upstream().accept_ready();
    }

    /// Handles an accepted client for which the handlers below are ready. A handler with a
    /// handshake performs it first, and then passes the call on.
    fn accepted(&mut self, cx: &mut Context<'_>, from: Output) {
        let _ = from;
        cx.upstream().accepted();
    }

    /// Passes all of `data` from the network upstream. Returns false if no more will ever be read.
    fn avail(&mut self, cx: &mut Context<'_>, from: Output, data: Bytes) -> bool {
        let _ = from;
        cx.upstream().avail(data)
    }

    /// Handles the end of stream: the other end will write no more data.
    fn finished(&mut self, cx: &mut Context<'_>, from: Output) {
        let _ = from;
        cx.upstream().finished();
    }

    /// Handles a failure of the flow.
    fn failed(&mut self, cx: &mut Context<'_>, from: Output, why: Failure) {
        let _ = from;
        cx.upstream().failed(why);
    }

    /// Allows or forbids calls of [`Downstream::write`](super::Downstream::write) from now on.
    fn may_write(&mut self, cx: &mut Context<'_>, from: Output, may: bool) {
        let _ = from;
        cx.upstream().may_write(may);
    }

    /// Takes an output flow that another chain gave to this handler by a key that this handler has
    /// [claimed](Context::claim). `said` is the data received on the flow and not handled yet. The
    /// default unplumbs the flow.
    fn taken(&mut self, cx: &mut Context<'_>, output: Output, said: Bytes) {
        let _ = said;
        cx.unplumb(output);
    }

    /// Handles an output flow that [`Context::give`] could not give: its key is not claimed.
    fn unclaimed(&mut self, cx: &mut Context<'_>, output: Output) {
        cx.unplumb(output);
    }

    /// Handles a [wake-up](Context::wake) for `key`, which this handler has claimed.
    fn woken(&mut self, cx: &mut Context<'_>, key: &[u8]) {
        let _ = (cx, key);
    }

    /// Called in a chain that the handler at the same position of another chain has
    /// [spawned](Context::spawn) with `message`.
    fn spawned(&mut self, cx: &mut Context<'_>, message: &[u8]) {
        let _ = (cx, message);
    }

    /// Handles a refused [spawn](Context::spawn) with `message`: there are too many chains.
    fn unspawned(&mut self, cx: &mut Context<'_>, message: &[u8]) {
        let _ = (cx, message);
    }

    /// Called before the handler is dropped, because the flow is over or a handler above has
    /// [unplumbed](Context::unplumb) it. The handler must clean up state that it shares with other
    /// chains. Of its calls through `cx`, only [`Context::wake`] is certain to take effect.
    fn abandoned(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles the expiry of a timer set by [`Context::set_timer`].
    fn timeout(&mut self, cx: &mut Context<'_>, timer: Timer) {
        let _ = (cx, timer);
    }
}
