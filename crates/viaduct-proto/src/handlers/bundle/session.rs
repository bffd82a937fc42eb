//! What a bundle's end knows of its session.

use super::plan::Plan;
use super::secret::Secret;
use super::wire::{Nonce, Public};
use crate::flow::{Address, Context};
use crate::keys::{Entropy, SecretKey};
use crate::time::{Duration, Instant};

/// How soon a connection is tried again at first.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// What a bundle's end knows of its session.
pub(super) struct Session {
    pub(super) entropy: Entropy,
    /// Where to, if this end connects.
    pub(super) to: Option<Address>,
    pub(super) mine: Option<SecretKey>,
    pub(super) secret: Option<Secret>,
    /// The session was welcomed here and its name claimed.
    pub(super) claimed: bool,
    /// The application has been told of the flow.
    pub(super) answered: bool,
    /// What the other end holds at most.
    pub(super) window: usize,
    pub(super) slots: Vec<Slot>,
    /// Since when no connection is well.
    pub(super) lost: Option<Instant>,
}

/// A connection that should be there.
pub(super) struct Slot {
    /// When it is tried next, and how long after that again.
    pub(super) next: Option<Instant>,
    pub(super) wait: Duration,
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
    pub(super) fn has(&mut self, secret: Secret, window: u32) {
        self.window = window as usize;
        self.secret = Some(secret);
    }

    pub(super) fn key(&mut self) -> (SecretKey, Public) {
        let mut bytes = [0; 32];
        (self.entropy)(&mut bytes);
        let key = SecretKey::from_bytes(bytes);
        let public = *key.public().as_bytes();
        self.mine = Some(key.clone());
        (key, public)
    }

    pub(super) fn nonce(&self) -> Nonce {
        let mut nonce = Nonce::default();
        (self.entropy)(&mut nonce);
        nonce
    }

    pub(super) fn release(&mut self, cx: &mut Context<'_>) {
        if let Some(secret) = self.secret.take().filter(|_| self.claimed) {
            cx.release(&secret.id);
        }
    }

    /// A slot's connection came about: the next one may be tried soon.
    pub(super) fn is_met(&mut self, slot: u8) {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            slot.wait = FIRST_RETRY;
        }
    }

    /// All slots may be tried at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.slots.iter_mut().for_each(|slot| *slot = Slot { next: Some(now), wait: FIRST_RETRY });
    }
}
