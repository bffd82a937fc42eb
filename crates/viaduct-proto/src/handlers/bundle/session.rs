//! The session of a bundle: how it is opened, joined and kept, and what moves when.

use bytes::Bytes;

use super::path::{Due, Path, Stage};
use super::plan::Plan;
use super::secret::{Claim, Prover, Secret};
use super::wire::{self, Frame, Nonce, Public};
use super::{Bundle, TICK};
use crate::flow::{Address, Context, Failure, Output};
use crate::keys::{Entropy, PublicKey, SecretKey};
use crate::time::{Duration, Instant};

/// Connections that may be proving themselves at once.
const MOST_STRANGERS: usize = 4;
/// Bytes of the flow that are handed on before the neighbours have their say.
const TURN: usize = 64 << 10;
/// What is not sent yet of what the application wrote, before it is stopped.
const MOST_UNSENT: usize = 64 << 10;
/// Received bytes are acknowledged when they are so many, or so old.
const TELL_EVERY: u64 = 64 << 10;
const TELL_AFTER: Duration = Duration::from_millis(25);
/// How often a connection is tried: at first, at most in the first minute, and after it.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(500);
const LATE_RETRY: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);
/// A closed flow waits so long for the other end.
const LINGER: Duration = Duration::from_secs(60);

/// What a bundle's end knows of its session.
pub(super) struct Session {
    entropy: Entropy,
    /// Where to, if this end connects.
    to: Option<Address>,
    mine: Option<SecretKey>,
    secret: Option<Secret>,
    /// The session was welcomed here and its name claimed.
    claimed: bool,
    /// The application has been told of the flow.
    pub(super) answered: bool,
    /// What the other end holds at most.
    window: usize,
    slots: Vec<Slot>,
    /// Since when no connection is well.
    lost: Option<Instant>,
}

/// A connection that should be there.
struct Slot {
    /// When it is tried next, and how long after that again.
    next: Option<Instant>,
    wait: Duration,
}

impl Session {
    pub(super) fn new(plan: &Plan) -> Session {
        let slot = || Slot { next: None, wait: FIRST_RETRY };
        Session {
            entropy: plan.entropy.clone(),
            to: None,
            mine: None,
            secret: None,
            claimed: false,
            answered: false,
            window: plan.buffer,
            slots: std::iter::repeat_with(slot).take(plan.paths).collect(),
            lost: None,
        }
    }

    /// This end connects, to there.
    pub(super) fn calls(&mut self, to: Address) {
        self.to = Some(to);
    }

    pub(super) fn is_begun(&self) -> bool {
        self.to.is_some() || self.answered
    }

    /// The other end is no more than `window` bytes behind.
    fn has(&mut self, secret: Secret, window: u32) {
        self.window = window as usize;
        self.secret = Some(secret);
    }

    fn key(&mut self) -> (SecretKey, Public) {
        let mut bytes = [0; 32];
        (self.entropy)(&mut bytes);
        let key = SecretKey::from_bytes(bytes);
        let public = *key.public().as_bytes();
        self.mine = Some(key.clone());
        (key, public)
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = Nonce::default();
        (self.entropy)(&mut nonce);
        nonce
    }

    pub(super) fn release(&mut self, cx: &mut Context<'_>) {
        if let Some(secret) = self.secret.take().filter(|_| self.claimed) {
            cx.release(&secret.id);
        }
    }

    /// All slots may be tried at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.slots.iter_mut().for_each(|slot| *slot = Slot { next: Some(now), wait: FIRST_RETRY });
    }
}

impl Bundle {
    /// A connection that was asked for is there, or failed.
    pub(super) fn has_connected(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        result: Result<(), Failure>,
    ) {
        let now = cx.now();
        let Some(path) = self.path(from) else { return };
        match (result, path.stage) {
            (Err(why), Stage::Calling) => {
                self.over = true;
                cx.upstream().connected(Err(why));
            }
            (Err(_), _) => self.drop_path(cx, from),
            (Ok(()), Stage::Calling) => {
                path.turn(Stage::Opening, now);
                self.remember_names(cx, from);
                let (_, public) = self.session.key();
                let window = self.plan.buffer as u32;
                Bundle::say(cx, from, &Frame::Hello { public, window });
                self.session.answered = true;
                cx.upstream().connected(Ok(()));
            }
            (Ok(()), _) => {
                let nonce = self.session.nonce();
                path_to(&mut self.paths, from, Stage::Joining(nonce), now);
                let slot = self.paths.iter().find(|path| path.output == from).map_or(0, |p| p.slot);
                if let Some(secret) = &self.session.secret {
                    Bundle::say(cx, from, &Frame::Join { session: secret.id, slot, nonce });
                }
            }
        }
    }

    /// Bytes came on a connection; false if it is of no use any more.
    pub(super) fn hear_bytes(&mut self, cx: &mut Context<'_>, from: Output, data: &Bytes) -> bool {
        let now = cx.now();
        let Some(path) = self.path(from) else { return false };
        path.inbox.extend_from_slice(data);
        if path.hear(now) {
            // A false alarm: the connection that was to take its place is not needed.
            let slot = path.slot;
            self.drop_attempts(cx, slot);
        }
        while let Some(path) = self.path(from) {
            let frame = match Frame::take(&mut path.inbox) {
                Ok(None) => break,
                Ok(Some(frame)) => self.hear(cx, from, frame),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = frame {
                self.refuse(cx, from, &why);
            }
            if self.over {
                break;
            }
        }
        self.path(from).is_some()
    }

    /// One message; `Err`: the connection is no good.
    fn hear(&mut self, cx: &mut Context<'_>, from: Output, frame: Frame) -> Result<(), String> {
        let Some(path) = self.path(from) else { return Ok(()) };
        match (path.stage, frame) {
            (Stage::Fresh, Frame::Hello { public, window }) if !self.session.claimed => {
                self.welcome(cx, from, &public, window)
            }
            (Stage::Opening, Frame::Welcome { public, window }) => {
                self.welcomed(cx, from, &public, window)
            }
            (Stage::Fresh, Frame::Join { session, slot, nonce }) => {
                self.joins(cx, from, &session, slot, nonce)
            }
            (Stage::Joining(nonce), Frame::Challenge { nonce: theirs, received, proof }) => {
                self.challenged(cx, from, [nonce, theirs], received, &proof)
            }
            (Stage::Proving(nonces), Frame::Proof { received, proof }) => {
                self.proves(cx, from, nonces, received, &proof)
            }
            (Stage::Joining(_), Frame::Unknown) => self.forgotten(cx, from),
            (Stage::Live, frame) => self.hear_live(cx, from, frame),
            _ => Err("a message out of its place".to_owned()),
        }
    }

    fn hear_live(&mut self, cx: &mut Context<'_>, on: Output, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Data { at, data } => {
                if let Some(path) = self.path(on) {
                    path.busy();
                }
                if self.closed && self.out.is_done() {
                    self.reset(cx);
                } else if !self.back.push(at, data) {
                    return Err("more bytes than there is room for".to_owned());
                }
            }
            Frame::Ack(received) => return self.acked(received),
            Frame::End(at) => {
                self.back.end(at);
                self.tell_by = Some(cx.now());
            }
            Frame::Ping => Bundle::say(cx, on, &Frame::Pong),
            Frame::Pong => {}
            Frame::Reset => self.fail(cx, Failure::Reset, &"the other end has broken the flow off"),
            _ => return Err("a message out of its place".to_owned()),
        }
        Ok(())
    }

    fn acked(&mut self, received: u64) -> Result<(), String> {
        let paths = &mut self.paths;
        let fits = self.out.acked(received, |on, bytes| {
            if let Some(path) = paths.iter_mut().find(|path| path.output == on) {
                path.flying = path.flying.saturating_sub(bytes);
            }
        });
        fits.then_some(()).ok_or_else(|| "more acknowledged than was sent".to_owned())
    }

    /// Who connects says hello to a chain that has no session yet.
    fn welcome(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        theirs: &Public,
        window: u32,
    ) -> Result<(), String> {
        let (key, public) = self.session.key();
        let secret = Secret::new(&key, theirs, [theirs, &public]).ok_or("a key that is none")?;
        cx.claim(&secret.id);
        self.session.has(secret, window);
        self.session.claimed = true;
        self.remember_names(cx, from);
        path_to(&mut self.paths, from, Stage::Live, cx.now());
        Bundle::say(cx, from, &Frame::Welcome { public, window: self.plan.buffer as u32 });
        cx.upstream().accepted();
        Ok(())
    }

    fn welcomed(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        theirs: &Public,
        window: u32,
    ) -> Result<(), String> {
        let mine = self.session.mine.take().ok_or("a welcome that nobody waits for")?;
        let public = *PublicKey::as_bytes(&mine.public());
        let secret = Secret::new(&mine, theirs, [&public, theirs]).ok_or("a key that is none")?;
        self.session.has(secret, window);
        path_to(&mut self.paths, from, Stage::Live, cx.now());
        self.session.hurry(cx.now());
        Ok(())
    }

    /// A connection of a session: of this one, or of another chain's.
    fn joins(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        session: &wire::Id,
        slot: u8,
        nonce: Nonce,
    ) -> Result<(), String> {
        let Some(secret) = &self.session.secret else {
            self.over = true;
            cx.set_timer(TICK, None);
            let rest = self.path(from).map(|path| path.inbox.split().freeze()).unwrap_or_default();
            let join = Frame::Join { session: *session, slot, nonce }.emit();
            cx.give(from, session, [join, rest].concat().into());
            return Ok(());
        };
        if secret.id != *session {
            return Err("a connection of another session".to_owned());
        }
        let claim = Claim { slot, nonces: [nonce, self.session.nonce()] };
        let received = self.back.received();
        let proof = secret.prove(Prover::Joined, &claim, received);
        Bundle::say(cx, from, &Frame::Challenge { nonce: claim.nonces[1], received, proof });
        path_to(&mut self.paths, from, Stage::Proving(claim.nonces), cx.now());
        if let Some(path) = self.path(from) {
            path.slot = slot;
        }
        Ok(())
    }

    fn challenged(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        nonces: [Nonce; 2],
        received: u64,
        proof: &wire::Proof,
    ) -> Result<(), String> {
        let slot = self.path(from).map_or(0, |path| path.slot);
        let secret = self.session.secret.as_ref().ok_or("a challenge without a session")?;
        let claim = Claim { slot, nonces };
        if !secret.verify(Prover::Joined, &claim, received, proof) {
            return Err("the other end is not that of the session".to_owned());
        }
        let mine = self.back.received();
        let proof = secret.prove(Prover::Joining, &claim, mine);
        Bundle::say(cx, from, &Frame::Proof { received: mine, proof });
        self.joined(cx, from, received)
    }

    fn proves(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        nonces: [Nonce; 2],
        received: u64,
        proof: &wire::Proof,
    ) -> Result<(), String> {
        let slot = self.path(from).map_or(0, |path| path.slot);
        let secret = self.session.secret.as_ref().ok_or("a proof without a session")?;
        if !secret.verify(Prover::Joining, &Claim { slot, nonces }, received, proof) {
            return Err("who joins has no part in the session".to_owned());
        }
        self.joined(cx, from, received)
    }

    /// A connection counts from now on, in the place of its slot's former ones.
    fn joined(&mut self, cx: &mut Context<'_>, on: Output, received: u64) -> Result<(), String> {
        let slot = self.path(on).map_or(0, |path| path.slot);
        path_to(&mut self.paths, on, Stage::Live, cx.now());
        let same = |path: &&Path| path.slot == slot && path.output != on && !path.is_stranger();
        let former: Vec<_> = self.paths.iter().filter(same).map(|path| path.output).collect();
        former.into_iter().for_each(|output| self.drop_path(cx, output));
        for &option in &self.options {
            cx.output(on).set_option(option);
        }
        if let Some(slot) = self.session.slots.get_mut(usize::from(slot)) {
            slot.wait = FIRST_RETRY;
        }
        self.tell_by = Some(cx.now());
        self.acked(received)
    }

    /// The other end does not know the session any more.
    fn forgotten(&mut self, cx: &mut Context<'_>, from: Output) -> Result<(), String> {
        self.drop_path(cx, from);
        if self.closed && self.back.has_ended() {
            self.leave(cx, true);
        } else if !self.paths.iter().any(Path::is_well) {
            self.fail(cx, Failure::Reset, &"the other end has forgotten the flow");
        }
        Ok(())
    }

    /// The application has closed the flow, and the other end goes on writing.
    fn reset(&mut self, cx: &mut Context<'_>) {
        for path in self.paths.iter().filter(|path| path.carries()) {
            Bundle::say(cx, path.output, &Frame::Reset);
        }
        self.leave(cx, false);
    }

    /// A connection was given to this chain.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, output: Output, said: Bytes) {
        let stranger = |path: &&Path| path.is_stranger();
        if self.paths.iter().filter(stranger).count() >= MOST_STRANGERS
            && let Some(oldest) = self.paths.iter().find(stranger).map(|path| path.output)
        {
            self.drop_path(cx, oldest);
        }
        self.paths.push(Path::new(output, 0, Stage::Fresh, cx.now()));
        self.hear_bytes(cx, output, &said);
    }

    /// A connection says what it should not.
    fn refuse(&mut self, cx: &mut Context<'_>, from: Output, why: &str) {
        cx.say(format_args!("a connection is refused: {why}"));
        self.drop_path(cx, from);
        if self.session.secret.is_none() {
            self.fail(cx, Failure::Reset, &"there is no other");
        }
    }

    /// A connection ended or broke.
    pub(super) fn broke(&mut self, cx: &mut Context<'_>, from: Output, why: Failure) {
        if self.path(from).is_none() {
            return;
        }
        self.drop_path(cx, from);
        if self.session.secret.is_none() {
            self.fail(cx, why, &"the connection broke before the session was agreed on");
        }
    }

    fn drop_attempts(&mut self, cx: &mut Context<'_>, slot: u8) {
        let attempt = |path: &&Path| path.slot == slot && path.is_attempt();
        let attempts: Vec<_> = self.paths.iter().filter(attempt).map(|path| path.output).collect();
        attempts.into_iter().for_each(|output| self.drop_path(cx, output));
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        let looks = self.paths.iter_mut().map(|path| (path.output, path.look(now)));
        for (output, due) in looks.collect::<Vec<_>>() {
            match due {
                Due::Ping => Bundle::say(cx, output, &Frame::Ping),
                Due::Doubt => self.out.lost(output),
                Due::Drop if self.session.secret.is_some() => self.drop_path(cx, output),
                Due::Drop => {
                    return self.fail(cx, Failure::TimedOut, &"the other end does not answer");
                }
                Due::Nothing => {}
            }
        }
        let ends = self.session.lost.map(|lost| lost + self.plan.within);
        if ends.is_some_and(|ends| ends <= now) {
            return self.fail(cx, Failure::Reset, &"no connection came about in time");
        }
        if self.linger.is_some_and(|linger| linger <= now) {
            return self.reset(cx);
        }
        for slot in 0..self.session.slots.len() {
            self.dial(cx, slot);
        }
    }

    /// Tries to have a connection for a slot, if it has none that is well and its time has come.
    fn dial(&mut self, cx: &mut Context<'_>, number: usize) {
        let now = cx.now();
        let is_well = self.has_well(number);
        let minute = self.session.lost.is_none_or(|lost| now < lost + MINUTE);
        let (Some(_), Some(to), Some(slot)) =
            (&self.session.secret, self.session.to.clone(), self.session.slots.get_mut(number))
        else {
            return;
        };
        if is_well || slot.next.is_none_or(|next| now < next) {
            return;
        }
        slot.next = Some(now + slot.wait);
        slot.wait = (slot.wait * 2).min(if minute { RETRY } else { LATE_RETRY });
        let output = cx.plumb();
        let path = Path::new(output, number as u8, Stage::Dialling, now);
        self.paths.push(path);
        if !self.plan.from.is_empty() {
            cx.output(output).bind(self.plan.from[number % self.plan.from.len()].clone());
        }
        cx.output(output).connect(to);
    }

    fn has_well(&self, slot: usize) -> bool {
        self.paths.iter().any(|path| usize::from(path.slot) == slot && path.is_well())
    }

    /// Moves what can move, and sees to the timer.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.over || !self.session.is_begun() {
            return;
        }
        self.watch(cx);
        let more = self.deliver(cx) | self.send(cx);
        self.tell(cx);
        self.steer(cx);
        if self.out.is_done() && self.back.has_ended() {
            return self.leave(cx, false);
        }
        if self.closed && self.linger.is_none() && self.out.is_done() {
            self.linger = Some(cx.now() + LINGER);
        }
        if self.over {
            return;
        }
        let at = if more { Some(cx.now()) } else { self.deadline() };
        cx.set_timer(TICK, at);
    }

    /// Whether the flow has a connection, and who is to know.
    fn watch(&mut self, cx: &mut Context<'_>) {
        if self.session.secret.is_none() {
            return;
        }
        let now = cx.now();
        for number in 0..self.session.slots.len() {
            let is_well = self.has_well(number);
            let slot = &mut self.session.slots[number];
            slot.next = if is_well { None } else { slot.next.or(Some(now)) };
        }
        let is_well = self.paths.iter().any(Path::is_well);
        let name = self.plan.name;
        let mut event = |text: &str| cx.notify(format!("{name}: {text}").into_bytes());
        match (is_well, self.session.lost) {
            (false, None) => {
                self.session.lost = Some(now);
                event("disconnected");
                if self.plan.freeze {
                    event("freeze");
                }
            }
            (true, Some(_)) => {
                self.session.lost = None;
                event("migrated");
                if self.plan.freeze {
                    event("thaw");
                }
            }
            _ => {}
        }
    }

    /// Hands on what is in order; whether there is more.
    fn deliver(&mut self, cx: &mut Context<'_>) -> bool {
        let mut delivered = 0;
        while (self.open || self.deaf) && delivered < TURN {
            let Some(data) = self.back.pop() else { break };
            delivered += data.len();
            if !self.deaf {
                let _ = cx.upstream().avail(data);
            }
        }
        if self.back.ends() {
            self.tell_by = Some(cx.now());
            cx.upstream().finished();
        }
        (self.open || self.deaf) && self.back.has_next()
    }

    /// Sends on connections that take bytes, those with the fewest on their way first; whether there
    /// is more that they might take.
    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        let mut sent = 0;
        while self.out.has_unsent() && sent < TURN && self.out.fits(self.session.window) {
            let ready = self.paths.iter_mut().filter(|path| path.is_well() && path.room);
            let Some(path) = ready.min_by_key(|path| path.flying) else { return false };
            let Some(block) = self.out.send(path.output) else { return false };
            path.flying += block.data.len();
            path.busy();
            sent += block.data.len();
            let pieces = match block.is_end {
                true => [Some(Frame::End(block.at).emit()), None],
                false => wire::data(block.at, &block.data),
            };
            for piece in pieces.into_iter().flatten() {
                let _ = cx.output(path.output).write(piece);
            }
        }
        self.out.has_unsent() && sent >= TURN
    }

    /// Acknowledges what has been delivered, now or soon.
    fn tell(&mut self, cx: &mut Context<'_>) {
        let (now, received) = (cx.now(), self.back.received());
        let live = self.paths.iter().filter(|path| path.stage == Stage::Live);
        // The one that was heard last is the likeliest to be heard.
        let Some(path) = live.max_by_key(|path| (path.is_well(), path.heard())) else {
            self.tell_by = None;
            return;
        };
        if received > self.told && self.tell_by.is_none() {
            self.tell_by = Some(now + TELL_AFTER);
        }
        let due = self.tell_by.is_some_and(|at| at <= now);
        if !due && received - self.told < TELL_EVERY {
            return;
        }
        Bundle::say(cx, path.output, &Frame::Ack(received));
        (self.told, self.tell_by) = (received, None);
    }

    /// Stops the application, or lets it go on.
    fn steer(&mut self, cx: &mut Context<'_>) {
        let (kept, unsent) = self.out.costs();
        let most = self.session.window.min(self.plan.buffer);
        let stop = match self.stopped {
            false => unsent >= MOST_UNSENT || kept + MOST_UNSENT >= most,
            true => unsent > MOST_UNSENT / 2 || kept + 2 * MOST_UNSENT > most,
        };
        if stop != std::mem::replace(&mut self.stopped, stop) {
            cx.upstream().may_write(!stop);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let paths = self.paths.iter().filter_map(Path::deadline);
        let dials = self.session.to.is_some() && self.session.secret.is_some();
        let slots = self.session.slots.iter().filter(|_| dials).filter_map(|slot| slot.next);
        let ends = self.session.lost.map(|lost| lost + self.plan.within);
        paths.chain(slots).chain(ends).chain(self.linger).chain(self.tell_by).min()
    }
}

fn path_to(paths: &mut [Path], output: Output, stage: Stage, now: Instant) {
    if let Some(path) = paths.iter_mut().find(|path| path.output == output) {
        path.turn(stage, now);
    }
}
