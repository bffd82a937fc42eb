//! What only the two ends of a session know, and how they prove it on another connection.
//!
//! The secret is that of two keys which are made for the session and forgotten with it. Whoever has
//! only seen the opening cannot have it; whoever altered it had both halves of the path, which is
//! what `crypt` is for.

use ring::hmac;

use super::wire::{Id, Nonce, Proof, Public};
use crate::keys::{PublicKey, SecretKey};

pub(super) struct Secret {
    pub(super) id: Id,
    key: hmac::Key,
}

/// What a proof is about: fresh on both ends, so that none fits twice.
pub(super) struct Claim {
    pub(super) slot: u8,
    /// Of the end that joins, and of the other.
    pub(super) nonces: [Nonce; 2],
}

/// Who proves.
#[derive(Clone, Copy)]
pub(super) enum Prover {
    Joining = 1,
    Joined = 2,
}

impl Secret {
    /// Of our key and the public keys of the connecting and the accepting end; `None` if `theirs`
    /// is no honest key.
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
