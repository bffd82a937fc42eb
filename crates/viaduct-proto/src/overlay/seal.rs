//! Authentication of messages between two nodes: each message has a tag. Both nodes derive the key
//! of the tags from their static keys; each direction has its own key.

use ring::hmac;

use super::wire::TAG;
use crate::keys::{PublicKey, SecretKey};
use crate::replay_window::ReplayWindow;

pub(super) struct Keys {
    ours: hmac::Key,
    theirs: hmac::Key,
}

impl Keys {
    /// Derives the keys; `None` if the peer's key is weak.
    pub(super) fn new(own: &SecretKey, peer: &PublicKey) -> Option<Keys> {
        let shared = own.shared(peer)?;
        let key = |from: &PublicKey, to: &PublicKey| {
            let label = [&b"overlay probe"[..], from.as_bytes(), to.as_bytes()].concat();
            hmac::Key::new(hmac::HMAC_SHA256, &shared.derive(&label))
        };
        let me = own.public();
        Some(Keys { ours: key(&me, peer), theirs: key(peer, &me) })
    }

    /// Appends the tag of `message`.
    pub(super) fn seal(&self, message: &mut Vec<u8>) {
        let tag = hmac::sign(&self.ours, message);
        message.extend_from_slice(&tag.as_ref()[..TAG]);
    }

    /// Returns whether `datagram` ends with a valid tag of the peer.
    pub(super) fn is_theirs(&self, datagram: &[u8]) -> bool {
        let Some((message, tag)) = datagram.split_last_chunk::<TAG>() else { return false };
        let right = hmac::sign(&self.theirs, message);
        let pairs = right.as_ref()[..TAG].iter().zip(tag);
        // The comparison takes the same time wherever the tags differ.
        pairs.fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

/// Numbers received from one incarnation of a peer.
pub(super) type Window = ReplayWindow<2>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_of_each_pair_has_its_own_key() {
        let [a, b, c] = [1, 2, 3].map(|n| SecretKey::from_bytes([n; 32]));
        let keys = |own: &SecretKey, peer: &SecretKey| Keys::new(own, &peer.public()).unwrap();
        let mut said = b"probe".to_vec();
        keys(&a, &b).seal(&mut said);
        assert!(keys(&b, &a).is_theirs(&said));
        assert!(!keys(&a, &b).is_theirs(&said), "a message is not accepted by its sender");
        assert!(!keys(&c, &a).is_theirs(&said) && !keys(&b, &c).is_theirs(&said));
        for at in 0..said.len() {
            let mut other = said.clone();
            other[at] ^= 1;
            assert!(!keys(&b, &a).is_theirs(&other));
        }
        assert!(!keys(&b, &a).is_theirs(b"short"));
    }
}
