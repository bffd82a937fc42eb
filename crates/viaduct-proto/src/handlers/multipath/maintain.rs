//! Maintenance of the connections: timers, attempts, and events for the application.

use super::path::{Due, Path, Stage};
use super::wire::Frame;
use super::{Deadline, Multipath};
use crate::flow::{Context, Failure, Output};
use crate::time::{Duration, Instant};

/// Maximum interval between attempts in the first minute without a connection.
const RETRY: Duration = Duration::from_millis(250);
/// Maximum interval between attempts at other times.
const LATE_RETRY: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

impl Multipath {
    /// Handles timers that have expired, and opens connections that are due.
    pub(super) fn tick(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        let checks = self.paths.iter_mut().map(|path| (path.output, path.check(now)));
        for (output, due) in checks.collect::<Vec<_>>() {
            match due {
                Due::Ping => Multipath::say(cx, output, &Frame::Ping),
                Due::Suspect => self.lost(output, cx.now()),
                Due::Drop if self.session.secret.is_some() => self.drop_path(cx, output),
                Due::Drop => {
                    return self.fail(cx, Failure::TimedOut, &"the other end does not answer");
                }
                Due::Nothing => {}
            }
        }
        if self.deadlines.is_expired(Deadline::Reconnect, now) {
            return match self.may_have_ended() {
                true => self.close_paths(cx, true),
                false => self.fail(cx, Failure::Reset, &"no connection was established in time"),
            };
        }
        if self.deadlines.is_expired(Deadline::Linger, now) {
            return self.reset(cx);
        }
        for slot in 0..self.session.slots.len() {
            self.dial(cx, slot);
        }
    }

    /// Opens a connection for a slot that has no usable one, if the next attempt is due.
    pub(super) fn dial(&mut self, cx: &mut Context<'_>, number: usize) {
        let now = cx.now();
        let is_usable = self.has_usable(number);
        let minute = self.session.disconnected.is_some_and(|lost| now < lost + MINUTE);
        let (Some(_), Some(to), Some(slot)) =
            (&self.session.secret, self.session.to.clone(), self.session.slots.get_mut(number))
        else {
            return;
        };
        if is_usable || slot.next.is_none_or(|next| now < next) {
            return;
        }
        slot.next = Some(now + slot.wait);
        slot.wait = (slot.wait * 2).min(if minute { RETRY } else { LATE_RETRY });
        let output = cx.plumb();
        Multipath::report_movable(cx, output);
        let path = Path::new(output, number as u8, Stage::Dialling, now);
        self.paths.push(path);
        if !self.plan.from.is_empty() {
            cx.output(output).bind(self.plan.from[number % self.plan.from.len()].clone());
        }
        self.set_options(cx, output);
        cx.output(output).connect(to);
    }

    /// Sets the application's socket options on a connection.
    pub(super) fn set_options(&self, cx: &mut Context<'_>, output: Output) {
        self.options.iter().for_each(|option| cx.output(output).setsockopt(option));
    }

    fn has_usable(&self, slot: usize) -> bool {
        self.paths.iter().any(|path| usize::from(path.slot) == slot && path.is_usable())
    }

    /// Tracks whether the flow has a usable connection, and reports changes.
    pub(super) fn update_connectivity(&mut self, cx: &mut Context<'_>) {
        if self.session.secret.is_none() {
            return;
        }
        let now = cx.now();
        for number in 0..self.session.slots.len() {
            let is_usable = self.has_usable(number);
            let slot = &mut self.session.slots[number];
            slot.next = if is_usable { None } else { slot.next.or(Some(now)) };
        }
        let usable = self.paths.iter().find(|path| path.is_usable()).map(|path| path.output);
        match (usable, self.session.disconnected) {
            (None, None) => {
                self.session.disconnected = Some(now);
                self.deadlines.set(Deadline::Reconnect, now + self.plan.within);
                self.event(cx, "disconnected", "freeze");
            }
            (Some(output), Some(_)) => {
                self.session.disconnected = None;
                self.deadlines.stop(Deadline::Reconnect);
                let own = cx.output(output).getsockname();
                let own = own.map(|own| format!(" to {own}")).unwrap_or_default();
                self.event(cx, &format!("migrated{own}"), "thaw");
            }
            _ => {}
        }
    }

    /// Sends events to the application and to the process that stops or resumes it.
    fn event(&self, cx: &mut Context<'_>, what: &str, freeze: &str) {
        let texts = [Some(what), self.plan.freeze.then_some(freeze)];
        for text in texts.into_iter().flatten() {
            cx.notify(format!("{}: {text}", self.plan.name).into_bytes());
        }
    }

    /// Time of the next check.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let paths = self.paths.iter().filter_map(Path::deadline);
        let dials = self.session.to.is_some() && self.session.secret.is_some();
        let slots = self.session.slots.iter().filter(|_| dials).filter_map(|slot| slot.next);
        paths.chain(slots).chain(self.deadlines.next_deadline()).min()
    }
}
