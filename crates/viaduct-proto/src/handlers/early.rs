//! What an application says before the flow below is ready for it.

use bytes::Bytes;

/// Bytes, and what follows them, in the order in which they go on.
#[derive(Debug, Default)]
pub(super) struct Early {
    pieces: Vec<Bytes>,
    ends: Option<End>,
}

/// What ends the direction towards the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Shutdown,
    Close,
}

impl Early {
    pub(super) fn push(&mut self, data: Bytes) {
        self.pieces.push(data);
    }

    pub(super) fn end(&mut self, end: End) {
        self.ends = self.ends.max(Some(end));
    }

    /// How many bytes.
    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// All of it; nothing is left.
    pub(super) fn take(&mut self) -> (Vec<Bytes>, Option<End>) {
        (std::mem::take(&mut self.pieces), self.ends.take())
    }
}
