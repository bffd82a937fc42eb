//! Keys that flows have claimed: a connection that names a key is moved to the flow that has
//! claimed the key.

use std::collections::HashMap;

/// Claimed keys of a loop, and the flows that have claimed them.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<Vec<u8>, usize>);

impl Claims {
    /// Records that flow `key` claims `name`, even if another flow has claimed it.
    pub(super) fn claim(&mut self, name: Vec<u8>, key: usize) {
        self.0.insert(name, key);
    }

    /// Releases `name`, if flow `key` has claimed it.
    pub(super) fn release(&mut self, name: &[u8], key: usize) {
        if self.owner(name) == Some(key) {
            self.0.remove(name);
        }
    }

    /// Releases all claims of flow `key`.
    pub(super) fn release_all(&mut self, key: usize) {
        self.0.retain(|_, owner| *owner != key);
    }

    /// Flow that has claimed `name`.
    pub(super) fn owner(&self, name: &[u8]) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// Moves all claims of flow `from` to flow `to`.
    pub(super) fn hand_over(&mut self, from: usize, to: usize) {
        self.0.values_mut().filter(|owner| **owner == from).for_each(|owner| *owner = to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_follow_their_flow_and_end_with_it() {
        let mut claims = Claims::default();
        claims.claim(b"a".to_vec(), 1);
        claims.claim(b"b".to_vec(), 2);
        claims.release(b"a", 2);
        assert_eq!(claims.owner(b"a"), Some(1), "only its owner releases a key");
        claims.hand_over(1, 3);
        assert_eq!((claims.owner(b"a"), claims.owner(b"b")), (Some(3), Some(2)));
        claims.release_all(3);
        assert_eq!((claims.owner(b"a"), claims.owner(b"b")), (None, Some(2)));
    }
}
