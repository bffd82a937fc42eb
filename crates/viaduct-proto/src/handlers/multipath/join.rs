//! Opening of a session, and joining of further connections.

use bytes::Bytes;

use super::path::{Path, Stage};
use super::secret::{Claim, Prover, Secret};
use super::wire::{self, Frame, Nonce, Public};
use super::{Deadline, Handled, MAX_PATHS, Multipath, TICK};
use crate::flow::{Context, Failure, Output};
use crate::keys::{self, PublicKey};

/// Maximum number of connections that are not authenticated yet.
const MAX_UNAUTHENTICATED: usize = 4;

impl Multipath {
    pub(super) fn has_connected(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        result: Result<(), Failure>,
    ) {
        let now = cx.now();
        let nonce = keys::random(&self.session.entropy);
        let Some(path) = self.path(from) else { return };
        match (result, path.stage) {
            (Err(why), Stage::Connecting) => {
                self.over = true;
                cx.upstream().connected(Err(why));
            }
            (Err(_), _) => self.drop_path(cx, from),
            (Ok(()), Stage::Connecting) => {
                path.enter(Stage::Opening, now);
                self.remember_names(cx, from);
                let (_, public) = self.session.new_key();
                let window = self.plan.buffer as u32;
                Multipath::say(cx, from, &Frame::Hello { public, window });
                self.session.answered = true;
                cx.upstream().connected(Ok(()));
            }
            (Ok(()), _) => {
                path.enter(Stage::Joining(nonce), now);
                let slot = path.slot;
                if let Some(secret) = &self.session.secret {
                    Multipath::say(cx, from, &Frame::Join { session: secret.id, slot, nonce });
                }
            }
        }
    }

    /// Handles a hello to a chain without a session.
    pub(super) fn handle_hello(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        theirs: &Public,
        window: u32,
    ) -> Handled {
        let (key, public) = self.session.new_key();
        let secret = Secret::new(&key, theirs, [theirs, &public]).ok_or("an invalid key")?;
        cx.claim(&secret.id);
        self.session.establish(secret, window);
        self.session.claimed = true;
        self.remember_names(cx, from);
        self.enter(cx, from, Stage::Live);
        Multipath::say(cx, from, &Frame::Welcome { public, window: self.plan.buffer as u32 });
        cx.upstream().accepted();
        Ok(())
    }

    pub(super) fn handle_welcome(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        theirs: &Public,
        window: u32,
    ) -> Handled {
        let mine = self.session.own_key.take().ok_or("an unexpected welcome")?;
        let public = *PublicKey::as_bytes(&mine.public());
        let secret = Secret::new(&mine, theirs, [&public, theirs]).ok_or("an invalid key")?;
        self.session.establish(secret, window);
        self.enter(cx, from, Stage::Live);
        self.session.retry_now(cx.now());
        Ok(())
    }

    /// Handles a request to join this session, or a session of another chain.
    pub(super) fn handle_join(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        session: &wire::Id,
        slot: u8,
        nonce: Nonce,
    ) -> Handled {
        if usize::from(slot) >= MAX_PATHS {
            return Err(format!("connection {slot} of a flow, which has at most {MAX_PATHS}"));
        }
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
        let claim = Claim { slot, nonces: [nonce, keys::random(&self.session.entropy)] };
        let received = self.received.next_offset();
        let proof = secret.prove(Prover::Joined, &claim, received);
        Multipath::say(cx, from, &Frame::Challenge { nonce: claim.nonces[1], received, proof });
        self.enter(cx, from, Stage::Proving(claim.nonces));
        if let Some(path) = self.path(from) {
            path.slot = slot;
        }
        Ok(())
    }

    pub(super) fn handle_challenge(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        nonces: [Nonce; 2],
        received: u64,
        proof: &wire::Proof,
    ) -> Handled {
        let (secret, claim) = self.verify_proof(Prover::Joined, from, nonces, received, proof)?;
        let mine = self.received.next_offset();
        let proof = secret.prove(Prover::Joining, &claim, mine);
        Multipath::say(cx, from, &Frame::Proof { received: mine, proof });
        self.activate(cx, from, received)
    }

    /// Verifies a proof that the other end knows the session's secret.
    pub(super) fn verify_proof(
        &self,
        who: Prover,
        from: Output,
        nonces: [Nonce; 2],
        received: u64,
        proof: &wire::Proof,
    ) -> Result<(&Secret, Claim), String> {
        let path = self.paths.iter().find(|path| path.output == from);
        let claim = Claim { slot: path.map_or(0, |path| path.slot), nonces };
        let secret = self.session.secret.as_ref().ok_or("a proof without a session")?;
        match secret.verify(who, &claim, received, proof) {
            true => Ok((secret, claim)),
            false => Err("the other end has no part in the session".to_owned()),
        }
    }

    /// Replaces the slot's former connections by this one.
    pub(super) fn activate(&mut self, cx: &mut Context<'_>, on: Output, received: u64) -> Handled {
        let slot = self.path(on).map_or(0, |path| path.slot);
        self.enter(cx, on, Stage::Live);
        let same =
            |path: &&Path| path.slot == slot && path.output != on && !path.is_unauthenticated();
        let former: Vec<_> = self.paths.iter().filter(same).map(|path| path.output).collect();
        former.into_iter().for_each(|output| self.drop_path(cx, output));
        self.set_options(cx, on);
        self.session.reset_backoff(slot);
        self.deadlines.set(Deadline::Ack, cx.now());
        self.acked(received)
    }

    /// Handles the message `unknown`: the other end no longer knows the session.
    pub(super) fn handle_unknown(&mut self, cx: &mut Context<'_>, from: Output) -> Handled {
        self.drop_path(cx, from);
        if self.may_have_ended() {
            self.close_paths(cx, true);
        } else if !self.paths.iter().any(Path::is_usable) {
            self.fail(cx, Failure::Reset, &"the other end has forgotten the flow");
        }
        Ok(())
    }

    /// Takes a connection that was given to this chain.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, output: Output, said: &Bytes) {
        let unauthenticated = |path: &&Path| path.is_unauthenticated();
        if self.paths.iter().filter(unauthenticated).count() >= MAX_UNAUTHENTICATED
            && let Some(oldest) = self.paths.iter().find(unauthenticated).map(|path| path.output)
        {
            self.drop_path(cx, oldest);
        }
        self.paths.push(Path::new(output, 0, Stage::Accepted, cx.now()));
        self.handle_bytes(cx, output, said);
    }
}
