//! Sealing and opening of transport messages, with AES-256-GCM and a session's keys. The nonce is a
//! counter, which never repeats; a sliding window accepts each counter once.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::wire::{Datagram, TAG, TRANSPORT_HEAD};
use crate::replay_window::ReplayWindow;

/// Sending half of a session.
pub(super) struct Sealer {
    key: LessSafeKey,
    lane: u8,
    receiver: u32,
    counter: u64,
}

impl Sealer {
    /// Creates the sending half of a session of this lane; `receiver` is the session's index at the
    /// peer.
    pub(super) fn new(key: &[u8; 32], lane: u8, receiver: u32) -> Self {
        Sealer::at(key, (lane, receiver), 0)
    }

    /// Creates a sealer whose next message has this counter, which must not have been used.
    pub(super) fn at(key: &[u8; 32], (lane, receiver): (u8, u32), counter: u64) -> Self {
        Sealer { key: aead(key), lane, receiver, counter }
    }

    /// Index of the session at the peer.
    pub(super) fn receiver(&self) -> u32 {
        self.receiver
    }

    /// Counter of the next message.
    pub(super) fn counter(&self) -> u64 {
        self.counter
    }

    /// Skips `count` counters.
    pub(super) fn skip(&mut self, count: u64) {
        self.counter = self.counter.saturating_add(count);
    }

    /// Appends a sealed datagram to `out`; `write` appends the message to be sealed.
    pub(super) fn seal(&mut self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        let counter = self.counter;
        self.counter += 1;
        Datagram::Transport { lane: self.lane, receiver: self.receiver, counter }.emit(out);
        write(out);
        let (head, message) = out[start..].split_at_mut(TRANSPORT_HEAD);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(counter), Aad::from(head), message)
            .expect("a message is shorter than the cipher's 64 GiB");
        out.extend_from_slice(tag.as_ref());
    }
}

/// Reason why a transport datagram was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Failed authentication.
    Forged,
    /// Counter seen before, or below the window.
    Replayed,
}

/// Receiving half of a session.
pub(super) struct Opener {
    key: LessSafeKey,
    /// Counters of the opened datagrams.
    window: ReplayWindow<64>,
}

impl Opener {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Opener { key: aead(key), window: ReplayWindow::default() }
    }

    /// Creates an opener that refuses all counters below `received`.
    pub(super) fn after(key: &[u8; 32], received: u64) -> Self {
        let window = received.checked_sub(1).map(ReplayWindow::after).unwrap_or_default();
        Opener { key: aead(key), window }
    }

    /// Counter after the highest counter received.
    pub(super) fn received(&self) -> u64 {
        self.window.next()
    }

    /// Opens a complete transport datagram in place and returns its message.
    pub(super) fn open<'a>(
        &mut self,
        counter: u64,
        datagram: &'a mut [u8],
    ) -> Result<&'a [u8], Refusal> {
        if !self.window.is_fresh(counter) {
            return Err(Refusal::Replayed);
        }
        let (head, sealed) =
            datagram.split_at_mut_checked(TRANSPORT_HEAD).ok_or(Refusal::Forged)?;
        let message = self
            .key
            .open_in_place(nonce(counter), Aad::from(head), sealed)
            .map_err(|_| Refusal::Forged)?;
        self.window.mark(counter);
        Ok(message)
    }
}

fn aead(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("AES-256 keys have 32 bytes"))
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Bytes that sealing adds to a message.
pub(super) const SEAL_OVERHEAD: usize = TRANSPORT_HEAD + TAG;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        (Sealer::new(&[5; 32], 3, 77), Opener::new(&[5; 32]))
    }

    fn counter_of(datagram: &[u8]) -> u64 {
        match Datagram::parse(datagram) {
            Some(Datagram::Transport { counter, .. }) => counter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_sealed_datagram_opens_once() {
        let (mut sealer, mut opener) = pair();
        let mut datagram = Vec::new();
        sealer.seal(&mut datagram, |out| out.extend(b"repair"));
        let mut again = datagram.clone();
        assert_eq!(opener.open(0, &mut datagram), Ok(&b"repair"[..]));
        assert_eq!(opener.open(0, &mut again), Err(Refusal::Replayed));
    }

    #[test]
    fn any_changed_bit_is_detected() {
        let (mut sealer, mut opener) = pair();
        let mut datagram = Vec::new();
        sealer.seal(&mut datagram, |out| out.extend(b"repair"));
        for bit in 0..datagram.len() * 8 {
            let mut other = datagram.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let Some(Datagram::Transport { counter, .. }) = Datagram::parse(&other) else {
                continue;
            };
            assert!(opener.open(counter, &mut other).is_err(), "bit {bit}");
        }
        assert!(opener.open(counter_of(&datagram), &mut datagram).is_ok());
    }
}
