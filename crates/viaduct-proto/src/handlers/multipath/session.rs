//! Session state of one end of a multipath flow.

use super::plan::{MIN_BUFFER, Plan};
use super::secret::Secret;
use super::wire::Public;
use crate::flow::{Address, Context};
use crate::keys::{self, Entropy, SecretKey};
use crate::time::{Duration, Instant};

/// Initial interval between attempts to connect.
const FIRST_RETRY: Duration = Duration::from_millis(100);

pub(super) struct Session {
    pub(super) entropy: Entropy,
    /// Destination, if this end connects.
    pub(super) to: Option<Address>,
    pub(super) own_key: Option<SecretKey>,
    pub(super) secret: Option<Secret>,
    /// True if the session was accepted here, and its ID claimed.
    pub(super) claimed: bool,
    /// True if the connect was answered, or the connection was accepted. A failure is then reported
    /// by `failed`, otherwise by `connected`.
    pub(super) answered: bool,
    /// Receive window of the other end, in bytes.
    pub(super) window: usize,
    pub(super) slots: Vec<Slot>,
    /// Time since which no connection is usable.
    pub(super) disconnected: Option<Instant>,
}

/// Slot for a connection that should exist.
pub(super) struct Slot {
    /// Time of the next attempt to connect; `None` while none is needed.
    pub(super) next: Option<Instant>,
    /// Interval from the next attempt to the following one.
    pub(super) wait: Duration,
}

impl Session {
    pub(super) fn new(plan: &Plan) -> Session {
        let slot = || Slot { next: None, wait: FIRST_RETRY };
        Session {
            entropy: plan.entropy.clone(),
            to: None,
            own_key: None,
            secret: None,
            claimed: false,
            answered: false,
            window: plan.buffer,
            slots: std::iter::repeat_with(slot).take(plan.paths).collect(),
            disconnected: None,
        }
    }

    pub(super) fn is_begun(&self) -> bool {
        self.to.is_some() || self.answered
    }

    /// Sets the secret, and the other end's receive window.
    pub(super) fn establish(&mut self, secret: Secret, window: u32) {
        self.window = (window as usize).max(MIN_BUFFER);
        self.secret = Some(secret);
    }

    pub(super) fn new_key(&mut self) -> (SecretKey, Public) {
        let key = SecretKey::from_bytes(keys::random(&self.entropy));
        let public = *key.public().as_bytes();
        self.own_key = Some(key.clone());
        (key, public)
    }

    pub(super) fn release(&mut self, cx: &mut Context<'_>) {
        if let Some(secret) = self.secret.take().filter(|_| self.claimed) {
            cx.release(&secret.id);
        }
    }

    /// Resets the backoff of a slot whose connection has joined.
    pub(super) fn reset_backoff(&mut self, slot: u8) {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            slot.wait = FIRST_RETRY;
        }
    }

    /// Lets all slots connect immediately.
    pub(super) fn retry_now(&mut self, now: Instant) {
        self.slots.iter_mut().for_each(|slot| *slot = Slot { next: Some(now), wait: FIRST_RETRY });
    }
}
