//! Sections on their way into datagrams.

use super::outbox::Outbox;
use super::seal::SEAL_OVERHEAD;
use super::session::Session;

/// What messages go out through.
pub(super) struct Channel<'a> {
    pub(super) session: &'a mut Session,
    pub(super) outbox: &'a mut Outbox,
    /// Bytes of the outer headers.
    pub(super) headers: usize,
}

/// Sections that leave together.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    bytes: Vec<u8>,
    /// Bytes of sections that fit a datagram.
    room: usize,
}

impl Bundle {
    /// For a path of this MTU.
    pub(super) fn new(mtu: usize) -> Self {
        Bundle { bytes: Vec::new(), room: mtu }
    }

    /// Bytes of sections that fit a datagram.
    pub(super) fn room(&self, channel: &Channel<'_>) -> usize {
        self.room.saturating_sub(channel.headers + SEAL_OVERHEAD)
    }

    /// Adds a section of `len` bytes, which `write` appends; what has no room beside it leaves before. Bytes that
    /// left.
    pub(super) fn add(
        &mut self,
        channel: &mut Channel<'_>,
        len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        let full = self.bytes.len() + len > self.room(channel);
        let left = if full { self.send(channel) } else { 0 };
        write(&mut self.bytes);
        left
    }

    /// Sends what there is; bytes on the wire.
    pub(super) fn send(&mut self, channel: &mut Channel<'_>) -> usize {
        if self.bytes.is_empty() {
            return 0;
        }
        let before = channel.outbox.bytes();
        let Channel { session, outbox, headers } = channel;
        let sections = &self.bytes;
        let sealed = outbox
            .push_with(|out| session.seal(out, |message| message.extend_from_slice(sections)));
        self.bytes.clear();
        if sealed { outbox.bytes() - before + *headers } else { 0 }
    }
}
