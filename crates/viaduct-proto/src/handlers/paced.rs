//! Handler that delays data, until a given time or to limit its rate.

use bytes::Bytes;

use super::lane::Lane;
use crate::flow::{Context, End, FIRST, Failure, Half, Handler, Output, Timer};
use crate::time::Instant;

/// Schedule of one direction of a flow.
pub(super) trait Pace {
    /// Time at which bytes that arrive now may be released.
    fn ready(&self, now: Instant) -> Instant {
        now
    }

    /// Number of bytes that may be released now.
    fn left(&mut self, now: Instant) -> usize {
        let _ = now;
        usize::MAX
    }

    /// Accounts for bytes that are released.
    fn take(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Time of the next check for bytes that are due at `ready` and were not released.
    fn next(&self, ready: Instant) -> Instant {
        ready
    }
}

/// Final event from the network, delivered after all data.
enum Last {
    Finished,
    Failed(Failure),
}

/// Handler that schedules both directions of a flow.
pub(super) struct Paced<P> {
    /// Queued bytes in each direction at which the source is stopped.
    held: usize,
    out: Lane<End>,
    out_pace: P,
    back: Lane<Last>,
    back_pace: P,
}

impl<P: Pace> Paced<P> {
    pub(super) fn new(out_pace: P, back_pace: P, held: usize) -> Self {
        Paced { held, out: Lane::default(), out_pace, back: Lane::default(), back_pace }
    }

    /// Releases what is due, and sets the timer for the rest.
    fn release(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        while let Some(data) = self.out.pop(now, self.out_pace.left(now)) {
            self.out_pace.take(data.len());
            // If the flow below accepts no more data, it reports that upstream itself.
            let _ = cx.output(FIRST).write(data);
        }
        if let Some(end) = self.out.pop_end(now) {
            end.apply(cx, FIRST);
        }
        while let Some(data) = self.back.pop(now, self.back_pace.left(now)) {
            self.back_pace.take(data.len());
            let _ = cx.upstream().avail(data);
        }
        match self.back.pop_end(now) {
            Some(Last::Finished) => cx.upstream().finished(),
            Some(Last::Failed(why)) => cx.upstream().failed(why),
            None => {}
        }
        if let Some(may) = self.out.steer(self.held) {
            cx.upstream().may_write(may);
        }
        if let Some(may) = self.back.steer(self.held) {
            cx.output(FIRST).may_avail(may);
        }
        let out = self.out.next_ready().map(|ready| self.out_pace.next(ready));
        let back = self.back.next_ready().map(|ready| self.back_pace.next(ready));
        cx.set_timer(Timer(0), [out, back].into_iter().flatten().min());
    }
}

impl<P: Pace> Handler for Paced<P> {
    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        self.out.push(self.out_pace.ready(cx.now()), data);
        self.release(cx);
        true
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match half {
            Half::Write => self.out.end(self.out_pace.ready(cx.now()), End::Shutdown),
            Half::Read => cx.output(FIRST).shutdown(half),
        }
        self.release(cx);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.out.end(self.out_pace.ready(cx.now()), End::Close);
        self.release(cx);
    }

    fn held(&self) -> u64 {
        self.out.len() as u64
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        self.back.push(self.back_pace.ready(cx.now()), data);
        self.release(cx);
        true
    }

    fn finished(&mut self, cx: &mut Context<'_>, _from: Output) {
        self.back.end(self.back_pace.ready(cx.now()), Last::Finished);
        self.release(cx);
    }

    /// Data received before the failure is delivered first.
    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        self.back.end(self.back_pace.ready(cx.now()), Last::Failed(why));
        self.release(cx);
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        self.out.set_open(may);
        self.release(cx);
    }

    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        self.back.set_open(may);
        self.release(cx);
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        self.release(cx);
    }
}
