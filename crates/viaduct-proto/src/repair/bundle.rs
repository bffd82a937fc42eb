//! Bundling of sections into datagrams.

use super::outbox::Outbox;
use super::seal::SEAL_OVERHEAD;
use super::session::Session;

/// Session and outbox for messages to the peer.
pub(super) struct Channel<'a> {
    pub(super) session: &'a mut Session,
    pub(super) outbox: &'a mut Outbox,
    /// Length of the outer headers, in bytes.
    pub(super) headers: usize,
}

/// Sections that share a datagram.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    bytes: Vec<u8>,
    /// MTU of the path, in bytes.
    mtu: usize,
}

impl Bundle {
    /// Creates a bundle for a path with this MTU.
    pub(super) fn new(mtu: usize) -> Self {
        Bundle { bytes: Vec::new(), mtu }
    }

    /// Number of bytes of sections that fit in a datagram.
    pub(super) fn room(&self, channel: &Channel<'_>) -> usize {
        self.mtu.saturating_sub(channel.headers + SEAL_OVERHEAD)
    }

    /// Adds a section of `len` bytes, which `write` appends; if it does not fit, the sections
    /// before it are sent first. Returns the number of bytes sent.
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

    /// Sends the sections; returns the number of bytes on the wire.
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
