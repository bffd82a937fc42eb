//! The handler: one small trait whose defaults pass every call on.

use bytes::Bytes;

use super::call::{Address, Failure, Half, SocketOption};
use super::context::Context;
use super::measure::Measure;

/// One of a handler's output flows, as [`Context::plumb`] gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Output(pub(super) usize);

/// The output flow that [`Handler::start`] plumbs unless it is told otherwise.
pub const FIRST: Output = Output(0);

/// A handler's own name for one of its timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timer(pub u32);

/// A session service on one flow (TESLA, 3.2 and 3.3).
///
/// Downstream methods are called by the handler's input flow, that is, from the application's side;
/// upstream methods by one of its output flows. Each must return at once.
pub trait Handler {
    /// The handler has its place in the chain. The default plumbs one output flow.
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.plumb();
    }

    // Downstream methods.

    /// Opens the flow towards `to`; the answer is [`Handler::connected`].
    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        cx.output(FIRST).connect(to);
    }

    /// Gives the flow an address of its own.
    fn bind(&mut self, cx: &mut Context<'_>, at: Address) {
        cx.output(FIRST).bind(at);
    }

    /// Waits for flows from elsewhere; each is announced by [`Handler::accept_ready`].
    fn listen(&mut self, cx: &mut Context<'_>, backlog: u32) {
        cx.output(FIRST).listen(backlog);
    }

    /// Takes a flow that was announced. It becomes a chain of its own, of the same handlers.
    fn accept(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).accept();
    }

    /// Takes bytes towards the network, all of them. `false`: the flow will never take more.
    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        cx.output(FIRST).write(data)
    }

    /// Ends one direction: no more will be written, or read.
    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        cx.output(FIRST).shutdown(half);
    }

    /// Ends the flow; what was written before still goes out.
    fn close(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).close();
    }

    /// The application's end of the flow broke. What was written before still goes out; what follows it for the
    /// other end is a reset, which a connection that is closed next says by itself. It is not called while
    /// something is [held](Handler::held), unless none of that moves.
    fn abort(&mut self, cx: &mut Context<'_>) {
        cx.output(FIRST).abort();
    }

    /// Bytes that were written, and wait here for their time or for the other end's word that it has them:
    /// a reset would overtake them.
    fn held(&self) -> u64 {
        0
    }

    /// Whether [`Upstream::avail`](super::Upstream::avail) may be called from now on.
    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        cx.output(FIRST).may_avail(may);
    }

    /// Sets an option of the socket.
    fn set_option(&mut self, cx: &mut Context<'_>, option: SocketOption) {
        cx.output(FIRST).set_option(option);
    }

    /// The flow's own address.
    fn getsockname(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        cx.output(FIRST).getsockname()
    }

    /// The other end's address.
    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        cx.output(FIRST).getpeername()
    }

    /// What is known of the path of the first output flow; `None` if nobody has measured it.
    fn measure(&mut self, cx: &mut Context<'_>) -> Option<Measure> {
        cx.output(FIRST).measure()
    }

    /// Answers a request for the handler named `to` (TESLA's ioctl, 3.6); `None` if there is none.
    /// Called for the handler itself, and for those above it, which pass it on.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        cx.output(FIRST).control(to, request)
    }

    // Upstream methods. None comes from an output flow that has been unplumbed.

    /// A connection that was asked for is there, or failed.
    fn connected(&mut self, cx: &mut Context<'_>, from: Output, result: Result<(), Failure>) {
        let _ = from;
        cx.upstream().connected(result);
    }

    /// A flow waits to be accepted.
    fn accept_ready(&mut self, cx: &mut Context<'_>, from: Output) {
        let _ = from;
        cx.upstream().accept_ready();
    }

    /// The flow below is one that was accepted, and is ready. A handler that has to agree with the
    /// other end first does so, and passes this on when that is done.
    fn accepted(&mut self, cx: &mut Context<'_>, from: Output) {
        let _ = from;
        cx.upstream().accepted();
    }

    /// Takes bytes from the network, all of them. `false`: nobody will ever read more.
    fn avail(&mut self, cx: &mut Context<'_>, from: Output, data: Bytes) -> bool {
        let _ = from;
        cx.upstream().avail(data)
    }

    /// The other end has written all that it will.
    fn finished(&mut self, cx: &mut Context<'_>, from: Output) {
        let _ = from;
        cx.upstream().finished();
    }

    /// The flow broke.
    fn failed(&mut self, cx: &mut Context<'_>, from: Output, why: Failure) {
        let _ = from;
        cx.upstream().failed(why);
    }

    /// Whether [`Downstream::write`](super::Downstream::write) may be called from now on.
    fn may_write(&mut self, cx: &mut Context<'_>, from: Output, may: bool) {
        let _ = from;
        cx.upstream().may_write(may);
    }

    /// Another chain gave an output flow to this handler, which had claimed it
    /// ([`Context::claim`]); `said` is what came on it and has not been dealt with. The default
    /// wants none.
    fn taken(&mut self, cx: &mut Context<'_>, output: Output, said: Bytes) {
        let _ = said;
        cx.unplumb(output);
    }

    /// Nobody has claimed the output flow that was to be given away ([`Context::give`]).
    fn unclaimed(&mut self, cx: &mut Context<'_>, output: Output) {
        cx.unplumb(output);
    }

    /// Another chain's handler has [woken](Context::wake) whoever claimed `key`, which is this one.
    fn woken(&mut self, cx: &mut Context<'_>, key: &[u8]) {
        let _ = (cx, key);
    }

    /// This chain was [spawned](Context::spawn) by another's handler of the same place, which says
    /// `word`.
    fn spawned(&mut self, cx: &mut Context<'_>, word: &[u8]) {
        let _ = (cx, word);
    }

    /// The chain that was to be [spawned](Context::spawn) with `word` cannot be: there are too many.
    fn unspawned(&mut self, cx: &mut Context<'_>, word: &[u8]) {
        let _ = (cx, word);
    }

    /// The flow is over, or its output flow above was [given up](Context::unplumb), and the handler about
    /// to go. What it shares with other chains is to be left in order; nothing else comes of what it
    /// asks for.
    fn abandoned(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// A timer set by [`Context::set_timer`] has run out.
    fn timeout(&mut self, cx: &mut Context<'_>, timer: Timer) {
        let _ = (cx, timer);
    }
}
