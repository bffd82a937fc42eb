//! Negotiation in the first bytes of a connection, for ends that cannot write options into SYNs.
//! The connecting end sends data before it has received the other end's offer, so both ends must
//! have the same handlers. This costs no round trip.
//!
//! ```text
//!   connecting end     offer 16 │ its handlers' data …     ──▶
//!                      ◀──  offer 16 │ its handlers' data …        … or closes, if chains differ
//! ```
//!
//! The offer is the option of [`wire`](super::wire), byte for byte. The handler that exchanges it
//! is below all others, one instance for each connection.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};

use super::{LEN, Offer, Refusal, Terms, binding, names, select_handlers};
use crate::flow::{
    Address, Context, Early, End, FIRST, Factory, Failure, Half, Handler, Output, Timer,
};
use crate::time::{Duration, Instant};

/// Time within which the other end must send its offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between log lines about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
const OFFER_TIMER: Timer = Timer(0);

/// State that all connections of an end share.
struct Shared {
    terms: Terms,
    /// Time of the last log line about a refused connection, and the number of refusals since.
    last_logged: Mutex<(Option<Instant>, u64)>,
}

struct InBandFactory(Arc<Shared>);

/// State of one connection.
struct InBand {
    shared: Arc<Shared>,
    connects: bool,
    stage: Stage,
    inbox: BytesMut,
    /// Data that handlers have written before the offer was sent.
    early: Early,
    /// True if the connection takes more data.
    room: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No connection exists yet.
    Idle,
    /// The offer of the other end is awaited.
    AwaitsOffer,
    Open,
    Over,
}

/// Returns the chain of an end with `terms`, and below it the handler that exchanges the offers.
/// Either all handlers apply, or the flow is refused.
pub fn offer_in_band(
    terms: &Terms,
    chain: &[Arc<dyn Factory>],
    both_ends: &[bool],
) -> Arc<[Arc<dyn Factory>]> {
    let offer = terms.offer();
    let all: Vec<u8> = offer.items.iter().map(|item| item.number).collect();
    // Both offers in the binding are this end's: no data passes unless the other end's offer is
    // the same.
    let chain = select_handlers(chain, both_ends, &all, &binding(offer, offer));
    let shared = Shared { terms: terms.clone(), last_logged: Mutex::default() };
    let in_band: Arc<dyn Factory> = Arc::new(InBandFactory(Arc::new(shared)));
    chain.iter().cloned().chain([in_band]).collect()
}

impl Factory for InBandFactory {
    fn name(&self) -> &'static str {
        "agree"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        let (shared, inbox) = (self.0.clone(), BytesMut::new());
        let (early, stage) = (Early::default(), Stage::Idle);
        Box::new(InBand { shared, connects: false, stage, inbox, early, room: true })
    }
}

impl Shared {
    /// Checks that the other end's offer equals this end's.
    fn check(&self, connects: bool, theirs: Option<&Offer>) -> Result<(), Refusal> {
        let ours = self.terms.offer();
        let of =
            |offer: &Offer| names(&offer.items.iter().map(|item| item.number).collect::<Vec<_>>());
        let Some(theirs) = theirs else { return Err(Refusal::Plain(of(ours))) };
        self.terms.negotiate(connects, Some(theirs))?;
        if ours.items == theirs.items {
            return Ok(());
        }
        Err(Refusal::Differs(of(ours), of(theirs)))
    }

    /// Line for the log, unless it is suppressed.
    fn line(&self, why: &Refusal, now: Instant) -> Option<String> {
        let mut last = self.last_logged.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.is_some_and(|at| now.since(at) < LOG_INTERVAL) {
            last.1 += 1;
            return None;
        }
        let (_, before) = std::mem::replace(&mut *last, (Some(now), 0));
        let before = if before > 0 {
            format!(" ({before} more since the last such line)")
        } else {
            String::new()
        };
        Some(format!("{why}{before}"))
    }
}

impl InBand {
    fn await_offer(&mut self, cx: &mut Context<'_>) {
        self.stage = Stage::AwaitsOffer;
        cx.set_timer(OFFER_TIMER, Some(cx.now() + OFFER_TIMEOUT));
    }

    /// Sends this end's offer, and after it all other data.
    fn send_offer(&mut self, cx: &mut Context<'_>) {
        let offer = self.shared.terms.offer().emit();
        let _ = cx.output(FIRST).write(Bytes::copy_from_slice(&offer));
        self.early.send(cx, FIRST);
        cx.upstream().may_write(self.room);
    }

    /// Returns whether this end's offer has not been sent, so that other data has to wait.
    fn waits(&self) -> bool {
        match self.stage {
            Stage::Idle => true,
            Stage::AwaitsOffer => !self.connects,
            Stage::Open | Stage::Over => false,
        }
    }

    /// Reads the other end's offer, as soon as it is complete or cannot be an offer.
    fn read_offer(&mut self, cx: &mut Context<'_>) {
        let ours = self.shared.terms.offer().emit();
        let known = self.inbox.len().min(4);
        if self.inbox[..known] == ours[..known] && self.inbox.len() < LEN {
            return;
        }
        let theirs = self.inbox.get(..LEN).and_then(Offer::parse);
        if let Err(why) = self.shared.check(self.connects, theirs.as_ref()) {
            return self.refuse(cx, &why, Failure::Denied);
        }
        self.stage = Stage::Open;
        cx.set_timer(OFFER_TIMER, None);
        if !self.connects {
            self.send_offer(cx);
            cx.upstream().accepted();
        }
        let rest = self.inbox.split_off(LEN).freeze();
        self.inbox.clear();
        if !rest.is_empty() {
            let _ = cx.upstream().avail(rest);
        }
    }

    fn refuse(&mut self, cx: &mut Context<'_>, why: &Refusal, failure: Failure) {
        self.stage = Stage::Over;
        cx.set_timer(OFFER_TIMER, None);
        if let Some(line) = self.shared.line(why, cx.now()) {
            cx.say(line);
        }
        cx.unplumb(FIRST);
        cx.upstream().failed(failure);
    }

    fn plain(&self) -> Refusal {
        let check = self.shared.check(self.connects, None);
        check.expect_err("an end without an offer is refused")
    }
}

impl Handler for InBand {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.plumb();
        cx.upstream().may_write(false);
    }

    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        self.connects = true;
        cx.output(FIRST).connect(to);
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        if self.waits() {
            self.early.push(data);
            return true;
        }
        self.stage != Stage::Over && cx.output(FIRST).write(data)
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match (self.waits(), half) {
            (true, Half::Write) => self.early.end(End::Shutdown),
            _ => cx.output(FIRST).shutdown(half),
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        // Data written before the connection still has to be sent.
        match self.waits() && self.early.len() > 0 {
            true => self.early.end(End::Close),
            false => cx.output(FIRST).close(),
        }
    }

    fn held(&self) -> u64 {
        self.early.len()
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        self.room = may;
        if !self.waits() {
            cx.upstream().may_write(may);
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, _from: Output, result: Result<(), Failure>) {
        match result {
            Ok(()) => {
                self.await_offer(cx);
                self.send_offer(cx);
            }
            Err(_) => self.stage = Stage::Over,
        }
        cx.upstream().connected(result);
    }

    fn accepted(&mut self, cx: &mut Context<'_>, _from: Output) {
        self.await_offer(cx);
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        if self.stage != Stage::AwaitsOffer {
            return self.stage == Stage::Open && cx.upstream().avail(data);
        }
        self.inbox.extend_from_slice(&data);
        self.read_offer(cx);
        self.stage != Stage::Over
    }

    fn finished(&mut self, cx: &mut Context<'_>, _from: Output) {
        match self.stage {
            Stage::AwaitsOffer => self.refuse(cx, &self.plain(), Failure::Reset),
            _ => cx.upstream().finished(),
        }
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        if self.stage == Stage::AwaitsOffer {
            let refusal = self.plain();
            return self.refuse(cx, &refusal, why);
        }
        cx.upstream().failed(why);
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        let refusal = self.plain();
        self.refuse(cx, &refusal, Failure::TimedOut);
    }
}
