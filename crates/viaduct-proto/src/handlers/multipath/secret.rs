//! Session secret, and proofs of its possession on further connections.
//!
//! The secret is derived from two ephemeral keys of the session. A passive observer of the opening
//! cannot derive it. An active attacker that replaces both keys can derive it; `crypt` protects
//! against that.

use ring::hmac;

use super::wire::{Id, Nonce, Proof, Public};
use crate::keys::{PublicKey, SecretKey};

pub(super) struct Secret {
    pub(super) id: Id,
    key: hmac::Key,
}

/// Subject of a proof, with a fresh nonce of each end, so that no proof can be replayed.
pub(super) struct Claim {
    pub(super) slot: u8,
    /// Nonces of the joining end and of the other end.
    pub(super) nonces: [Nonce; 2],
}

/// End that makes a proof.
#[derive(Clone, Copy)]
pub(super) enum Prover {
    Joining = 1,
    Joined = 2,
}

impl Secret {
    /// Derives the secret from our key and the public keys of the connecting and the accepting
    /// end; `None` if `theirs` is a degenerate key.
    pub(super) fn new(mine: &SecretKey, theirs: &Public, publics: [&Public; 2]) -> Option<Secret> {
        let shared = mine.shared(&PublicKey::from_bytes(*theirs))?;
        let derive = |label: &[u8]| shared.derive(&[label, publics[0], publics[1]].concat());
        let mut id = Id::default();
        id.copy_from_slice(&derive(b"viaduct bundle session")[..16]);
        let key = hmac::Key::new(hmac::HMAC_SHA256, &derive(b"viaduct bundle proof"));
        Some(Secret { id, key })
    }

    pub(super) fn prove(&self, who: Prover, claim: &Claim, received: u64) -> Proof {
        let mut proof = Proof::default();
        proof.copy_from_slice(hmac::sign(&self.key, &claim.text(who, received)).as_ref());
        proof
    }

    pub(super) fn verify(&self, who: Prover, claim: &Claim, received: u64, proof: &Proof) -> bool {
        hmac::verify(&self.key, &claim.text(who, received), proof).is_ok()
    }
}

impl Claim {
    fn text(&self, who: Prover, received: u64) -> Vec<u8> {
        let [joining, joined] = &self.nonces;
        [&[who as u8, self.slot][..], joining, joined, &received.to_be_bytes()].concat()
    }
}
