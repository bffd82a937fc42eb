//! `route`: connects a flow directly, or through the SOCKS5 server of another overlay node if that
//! path is better or the direct one fails (section 4.2 of the TESLA paper; Resilient Overlay
//! Networks).
//!
//! ```text
//!                paths, the best first                ┌─ attempt: direct ───────────── to
//!   application ───── route ──────────────────────────┤     after `wait`, or its failure:
//!                       │ the first that succeeds      └─ attempt: SOCKS5 at a node ─── to
//!                       ▼ carries the flow
//!      the overlay reports that its path has failed, and another one is up:
//!      a handler above that can reconnect (`migrate`) is told that the connection broke
//! ```

mod attempt;
mod plan;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use self::attempt::{Attempt, Progress};
use self::plan::{Goal, Plan};
pub(super) use self::plan::{about, build};
use crate::flow::{
    Address, Context, Early, End, FIRST, Failure, Half, Handler, Output, SocketOption,
    SocketOptions, Timer,
};
use crate::time::Duration;

/// Timer that starts the next attempt.
const NEXT: Timer = Timer(0);
/// Timer that fails the connect if no attempt has succeeded within [`MAX_CONNECT_TIME`].
const CONNECT_TIMEOUT: Timer = Timer(1);
const MAX_CONNECT_TIME: Duration = Duration::from_secs(130);
/// Timer of the periodic check of the flow's path.
const WATCH: Timer = Timer(2);
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

struct Route {
    plan: Arc<Plan>,
    to: Option<Address>,
    /// Paths that have not been tried yet.
    left: VecDeque<Goal>,
    attempts: Vec<Attempt>,
    /// Output that carries the flow, and the node through which it goes (`None`: directly).
    carrier: Option<(Output, Option<SocketAddr>)>,
    /// True if the first output flow has been used.
    begun: bool,
    over: bool,
    /// True if a handler above survives the loss of the connection.
    movable: bool,
    /// Reason of the failure; the reason of the direct attempt takes precedence.
    why: Option<Failure>,
    /// Data and end written before the flow is established.
    early: Early,
    open: bool,
    bound: Option<Address>,
    options: SocketOptions,
    /// Version of the table that was checked last.
    seen: u64,
}

impl Route {
    fn new(plan: Arc<Plan>) -> Route {
        Route {
            plan,
            to: None,
            left: VecDeque::new(),
            attempts: Vec::new(),
            carrier: None,
            begun: false,
            over: false,
            movable: false,
            why: None,
            early: Early::default(),
            open: true,
            bound: None,
            options: SocketOptions::default(),
            seen: 0,
        }
    }

    /// Output that carries data: the carrier, or the only output of an accepted flow.
    fn at(&self) -> Option<Output> {
        let accepted = (self.to.is_none() && !self.over).then_some(FIRST);
        self.carrier.map(|(output, _)| output).or(accepted)
    }

    fn is_carrier(&self, output: Output) -> bool {
        self.at() == Some(output)
    }

    fn attempt(&mut self, output: Output) -> Option<&mut Attempt> {
        self.attempts.iter_mut().find(|attempt| attempt.output == output)
    }

    /// Starts the next attempt. Returns false if no path is left.
    fn try_next(&mut self, cx: &mut Context<'_>) -> bool {
        let (Some(goal), Some(to)) = (self.left.pop_front(), self.to.clone()) else { return false };
        let output = if self.begun { cx.plumb() } else { FIRST };
        self.begun = true;
        if let Some(at) = &self.bound {
            cx.output(output).bind(at.clone());
        }
        for option in self.options.iter() {
            cx.output(output).setsockopt(option);
        }
        self.attempts.push(Attempt::new(output, goal.node));
        cx.output(output).connect(goal.node.map_or(to, Address::Ip));
        let next = (!self.left.is_empty()).then(|| cx.now() + self.plan.wait);
        cx.set_timer(NEXT, next);
        true
    }

    /// Ends a failed attempt. If `is_final`, no other path can succeed, and the flow fails.
    fn lost(&mut self, cx: &mut Context<'_>, output: Output, why: Failure, is_final: bool) {
        let Some(at) = self.attempts.iter().position(|attempt| attempt.output == output) else {
            return;
        };
        let attempt = self.attempts.swap_remove(at);
        cx.unplumb(output);
        if self.why.is_none() || attempt.node.is_none() {
            self.why = Some(why);
        }
        if is_final {
            return self.give_up(cx, why);
        }
        if !self.try_next(cx) && self.attempts.is_empty() {
            self.give_up(cx, self.why.unwrap_or(why));
        }
    }

    fn give_up(&mut self, cx: &mut Context<'_>, why: Failure) {
        self.end(cx);
        cx.upstream().connected(Err(why));
    }

    /// Stops all attempts and timers.
    fn end(&mut self, cx: &mut Context<'_>) {
        self.over = true;
        self.left.clear();
        [NEXT, CONNECT_TIMEOUT, WATCH].into_iter().for_each(|timer| cx.set_timer(timer, None));
        self.attempts.drain(..).for_each(|attempt| cx.unplumb(attempt.output));
        if let Some((output, _)) = self.carrier.take() {
            cx.unplumb(output);
        }
    }

    /// Makes a successful attempt the carrier, and drops the others.
    fn establish(&mut self, cx: &mut Context<'_>, output: Output) {
        let Some(at) = self.attempts.iter().position(|attempt| attempt.output == output) else {
            return;
        };
        let mut attempt = self.attempts.swap_remove(at);
        self.attempts.drain(..).for_each(|other| cx.unplumb(other.output));
        self.left.clear();
        self.carrier = Some((output, attempt.node));
        [NEXT, CONNECT_TIMEOUT].into_iter().for_each(|timer| cx.set_timer(timer, None));
        self.watch(cx);
        cx.upstream().connected(Ok(()));
        self.early.send(cx, output);
        if !self.open {
            cx.output(output).may_avail(false);
        }
        cx.upstream().may_write(attempt.room);
        let rest = attempt.rest();
        if !rest.is_empty() {
            let _ = cx.upstream().avail(rest);
        }
    }

    /// Schedules the next check of the path, if the flow can move.
    fn watch(&self, cx: &mut Context<'_>) {
        if self.movable && self.carrier.is_some() && self.plan.is_watched {
            cx.set_timer(WATCH, Some(cx.now() + WATCH_INTERVAL));
        }
    }

    /// Checks the flow's path. If it has failed and another is up, reports the flow as failed, so
    /// that the handler above connects again.
    fn look(&mut self, cx: &mut Context<'_>) {
        let (Some(to), Some((_, node))) = (&self.to, self.carrier) else { return };
        let moves = self.plan.table().filter(|table| table.version != self.seen);
        let Some(table) = moves else { return self.watch(cx) };
        self.seen = table.version;
        match plan::better(&table, to, node) {
            None => self.watch(cx),
            Some(other) => {
                cx.say(format_args!(
                    "the path ({}) has failed; {to} is tried again {other}",
                    Goal { node }
                ));
                self.end(cx);
                cx.upstream().failed(Failure::TimedOut);
            }
        }
    }

    /// Description of the flow's path, for control calls.
    fn report(&self) -> Vec<u8> {
        let goal = self.carrier.map(|(_, node)| Goal { node });
        goal.map_or_else(|| "no path yet".to_owned(), |goal| goal.to_string()).into_bytes()
    }
}

impl Handler for Route {
    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        self.left = self.plan.goals(&to);
        self.to = Some(to);
        cx.upstream().may_write(false);
        cx.set_timer(CONNECT_TIMEOUT, Some(cx.now() + MAX_CONNECT_TIME));
        self.try_next(cx);
    }

    fn bind(&mut self, _cx: &mut Context<'_>, at: Address) {
        self.bound = Some(at);
    }

    fn connected(&mut self, cx: &mut Context<'_>, from: Output, result: Result<(), Failure>) {
        let Some(attempt) = self.attempt(from) else { return };
        match (result, attempt.node) {
            (Ok(()), None) => self.establish(cx, from),
            (Ok(()), Some(_)) => {
                let greeting = attempt.greet();
                let _ = cx.output(from).write(greeting);
            }
            // If the destination itself refuses, other paths are useless.
            (Err(why), None) => {
                self.lost(cx, from, why, matches!(why, Failure::Refused | Failure::Denied));
            }
            (Err(why), Some(_)) => self.lost(cx, from, why, false),
        }
    }

    fn avail(&mut self, cx: &mut Context<'_>, from: Output, data: Bytes) -> bool {
        if self.is_carrier(from) {
            return cx.upstream().avail(data);
        }
        let Some(to) = self.to.clone() else { return false };
        let Some(attempt) = self.attempt(from) else { return false };
        match attempt.handle_bytes(&to, &data) {
            Progress::Send(words) if words.is_empty() => {}
            Progress::Send(words) => _ = cx.output(from).write(words),
            Progress::Connected => self.establish(cx, from),
            Progress::Failed(why, line) => {
                cx.say(line);
                self.lost(cx, from, why, why == Failure::Refused);
            }
        }
        !self.over
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        match self.at() {
            Some(output) => cx.output(output).write(data),
            None if self.over => false,
            None => {
                self.early.push(data);
                true
            }
        }
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match (self.at(), half) {
            (Some(output), _) => cx.output(output).shutdown(half),
            (None, Half::Write) => self.early.end(End::Shutdown),
            (None, Half::Read) => {}
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(WATCH, None);
        self.movable = false;
        match self.at() {
            Some(output) => cx.output(output).close(),
            None => self.early.end(End::Close),
        }
    }

    fn abort(&mut self, cx: &mut Context<'_>) {
        if let Some(output) = self.at() {
            cx.output(output).abort();
        }
    }

    fn held(&self) -> u64 {
        self.early.len()
    }

    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        self.open = may;
        if let Some(output) = self.at() {
            cx.output(output).may_avail(may);
        }
    }

    fn setsockopt(&mut self, cx: &mut Context<'_>, option: SocketOption) {
        self.options.set(option);
        for output in self.attempts.iter().map(|attempt| attempt.output).chain(self.at()) {
            cx.output(output).setsockopt(option);
        }
    }

    fn getsockopt(&mut self, _cx: &mut Context<'_>, level: i32, name: i32) -> Option<i32> {
        self.options.get(level, name)
    }

    fn getsockname(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        cx.output(self.at()?).getsockname()
    }

    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.to.clone().or_else(|| cx.output(FIRST).getpeername())
    }

    /// `move`: a handler above survives the loss of its connection, so this handler gives the
    /// connection up when the path fails. Any other request is answered with the flow's path.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        if to != plan::NAME {
            return cx.output(self.at().unwrap_or(FIRST)).control(to, request);
        }
        if request == b"move" {
            self.movable = true;
            self.watch(cx);
        }
        Some(self.report())
    }

    fn finished(&mut self, cx: &mut Context<'_>, from: Output) {
        match self.is_carrier(from) {
            true => cx.upstream().finished(),
            false => self.lost(cx, from, Failure::Unreachable, false),
        }
    }

    fn failed(&mut self, cx: &mut Context<'_>, from: Output, why: Failure) {
        match self.is_carrier(from) {
            true => cx.upstream().failed(why),
            false => self.lost(cx, from, why, false),
        }
    }

    fn may_write(&mut self, cx: &mut Context<'_>, from: Output, may: bool) {
        if self.is_carrier(from) {
            cx.upstream().may_write(may);
        } else if let Some(attempt) = self.attempt(from) {
            attempt.room = may;
        }
    }

    fn timeout(&mut self, cx: &mut Context<'_>, timer: Timer) {
        match timer {
            NEXT => _ = self.try_next(cx),
            WATCH => self.look(cx),
            _ => self.give_up(cx, Failure::TimedOut),
        }
    }
}
