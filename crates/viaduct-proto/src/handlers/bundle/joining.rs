//! Opening of a session, and joining of further connections.

use bytes::Bytes;

use super::path::{Path, Stage};
use super::secret::{Claim, Prover, Secret};
use super::wire::{self, Frame, Nonce, Public};
use super::{Bundle, TICK};
use crate::flow::{Context, Failure, Output};
use crate::keys::PublicKey;

/// Maximum number of connections that are not authenticated yet.
const MAX_STRANGERS: usize = 4;

impl Bundle {
    /// Handles the result of a connect.
    pub(super) fn has_connected(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        result: Result<(), Failure>,
    ) {
        let now = cx.now();
        let nonce = self.session.nonce();
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
                path.turn(Stage::Joining(nonce), now);
                let slot = path.slot;
                if let Some(secret) = &self.session.secret {
                    Bundle::say(cx, from, &Frame::Join { session: secret.id, slot, nonce });
                }
            }
        }
    }

    /// Handles a hello to a chain without a session.
    pub(super) fn welcome(
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
        self.turn(cx, from, Stage::Live);
        Bundle::say(cx, from, &Frame::Welcome { public, window: self.plan.buffer as u32 });
        cx.upstream().accepted();
        Ok(())
    }

    pub(super) fn welcomed(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        theirs: &Public,
        window: u32,
    ) -> Result<(), String> {
        let mine = self.session.mine.take().ok_or("a welcome that was not asked for")?;
        let public = *PublicKey::as_bytes(&mine.public());
        let secret = Secret::new(&mine, theirs, [&public, theirs]).ok_or("a key that is none")?;
        self.session.has(secret, window);
        self.turn(cx, from, Stage::Live);
        self.session.hurry(cx.now());
        Ok(())
    }

    /// Handles a request to join this session, or that of another chain.
    pub(super) fn joins(
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
        self.turn(cx, from, Stage::Proving(claim.nonces));
        if let Some(path) = self.path(from) {
            path.slot = slot;
        }
        Ok(())
    }

    pub(super) fn challenged(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        nonces: [Nonce; 2],
        received: u64,
        proof: &wire::Proof,
    ) -> Result<(), String> {
        let (secret, claim) = self.proven(Prover::Joined, from, nonces, received, proof)?;
        let mine = self.back.received();
        let proof = secret.prove(Prover::Joining, &claim, mine);
        Bundle::say(cx, from, &Frame::Proof { received: mine, proof });
        self.joined(cx, from, received)
    }

    pub(super) fn proves(
        &mut self,
        cx: &mut Context<'_>,
        from: Output,
        nonces: [Nonce; 2],
        received: u64,
        proof: &wire::Proof,
    ) -> Result<(), String> {
        self.proven(Prover::Joining, from, nonces, received, proof)?;
        self.joined(cx, from, received)
    }

    /// Verifies a proof, which shows that the other end has part in the session.
    fn proven(
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

    /// Admits a connection in place of the slot's former ones.
    pub(super) fn joined(
        &mut self,
        cx: &mut Context<'_>,
        on: Output,
        received: u64,
    ) -> Result<(), String> {
        let slot = self.path(on).map_or(0, |path| path.slot);
        self.turn(cx, on, Stage::Live);
        let same = |path: &&Path| path.slot == slot && path.output != on && !path.is_stranger();
        let former: Vec<_> = self.paths.iter().filter(same).map(|path| path.output).collect();
        former.into_iter().for_each(|output| self.drop_path(cx, output));
        for &option in &self.options {
            cx.output(on).set_option(option);
        }
        self.session.is_met(slot);
        self.tell_by = Some(cx.now());
        self.acked(received)
    }

    /// Handles the answer that the other end no longer knows the session.
    pub(super) fn forgotten(&mut self, cx: &mut Context<'_>, from: Output) -> Result<(), String> {
        self.drop_path(cx, from);
        if self.has_ended() {
            self.leave(cx, true);
        } else if !self.paths.iter().any(Path::is_well) {
            self.fail(cx, Failure::Reset, &"the other end has forgotten the flow");
        }
        Ok(())
    }

    /// Takes a connection that was given to this chain.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, output: Output, said: &Bytes) {
        let stranger = |path: &&Path| path.is_stranger();
        if self.paths.iter().filter(stranger).count() >= MAX_STRANGERS
            && let Some(oldest) = self.paths.iter().find(stranger).map(|path| path.output)
        {
            self.drop_path(cx, oldest);
        }
        self.paths.push(Path::new(output, 0, Stage::Fresh, cx.now()));
        self.hear_bytes(cx, output, said);
    }
}
