//! Running combination of packets: the bytes of a bin, a parity or an equation.

use super::buffer::Buffer;
use super::{MAX_COVER, Repair, Seq, kernel};

/// Combination of packets under some coefficients, with the combination of their lengths. A sum is
/// as long as its longest packet; shorter packets count as padded with zeros.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) buffer: Buffer,
    pub(super) len_code: [u8; 2],
}

impl Sum {
    /// Returns the combination that `repair` carries.
    pub(super) fn of(repair: &Repair<'_>) -> Self {
        let mut buffer = Buffer::default();
        buffer.set(repair.body);
        Sum { buffer, len_code: repair.len_code }
    }

    /// Resets the sum to zero, keeping the memory.
    pub(super) fn clear(&mut self) {
        self.buffer.clear();
        self.len_code = [0; 2];
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Adds the length of a packet, without its bytes.
    pub(super) fn add_len(&mut self, len: usize, coefficient: u8) {
        for (sum, byte) in self.len_code.iter_mut().zip(len_bytes(len)) {
            *sum ^= kernel::gf::mul(coefficient, byte);
        }
    }

    /// Adds `coefficient * packet`.
    pub(super) fn add_packet(&mut self, packet: &[u8], coefficient: u8) {
        self.buffer.grow(packet.len());
        self.add_len(packet.len(), coefficient);
        kernel::mul_add(self.buffer.lines(), packet, coefficient);
    }

    /// Adds `coefficient * other`.
    pub(super) fn add_sum(&mut self, other: &Sum, coefficient: u8) {
        self.buffer.grow(other.buffer.len());
        kernel::mul_add(&mut self.len_code, &other.len_code, coefficient);
        kernel::mul_add(self.buffer.lines(), other.bytes(), coefficient);
    }

    /// Returns the packet that remains in a sum of one packet with coefficient 1; `None` if its
    /// length is invalid, as in a garbled or forged repair.
    pub(super) fn packet(&self) -> Option<&[u8]> {
        self.bytes().get(..usize::from(u16::from_be_bytes(self.len_code)))
    }
}

/// Coded form of a packet's length. Packets are at most 65535 bytes long.
pub(super) fn len_bytes(len: usize) -> [u8; 2] {
    debug_assert!(len <= MAX_PACKET, "a packet of {len} bytes; at most {MAX_PACKET}");
    (len as u16).to_be_bytes()
}

/// Longest packet in bytes, by the length field of IP.
pub(super) const MAX_PACKET: usize = u16::MAX as usize;

/// Packets collected for one sum, so that the kernel adds several at once.
pub(super) struct Batch<'a, 's> {
    sum: &'s mut Sum,
    packets: [&'a [u8]; kernel::GROUP],
    coefficients: [u8; kernel::GROUP],
    waiting: usize,
}

impl<'a, 's> Batch<'a, 's> {
    /// Creates an empty batch for `sum`.
    pub(super) fn into_sum(sum: &'s mut Sum) -> Self {
        let packets = [&[][..]; kernel::GROUP];
        Batch { sum, packets, coefficients: [0; kernel::GROUP], waiting: 0 }
    }

    /// Adds `coefficient * packet` to the batch; a full batch is added to the sum.
    pub(super) fn add(&mut self, packet: &'a [u8], coefficient: u8) {
        self.sum.buffer.grow(packet.len());
        self.sum.add_len(packet.len(), coefficient);
        self.packets[self.waiting] = packet;
        self.coefficients[self.waiting] = coefficient;
        self.waiting += 1;
        if self.waiting == kernel::GROUP {
            self.finish();
        }
    }

    /// Adds the waiting packets. They are lost if the batch is dropped without this call.
    pub(super) fn finish(&mut self) {
        let dst = &mut [self.sum.buffer.lines()];
        let waiting = std::mem::take(&mut self.waiting);
        kernel::mul_add_many(dst, &self.packets[..waiting], &self.coefficients[..waiting]);
    }
}

/// Returns whether the numbers that a repair covers, and the length of its body, are valid.
pub(super) fn plausible(repair: &Repair<'_>) -> bool {
    let cover = repair.cover;
    let span = u64::from(cover.stride) * u64::from(cover.count.saturating_sub(1));
    let first: Seq = cover.first;
    (1..=MAX_COVER).contains(&cover.count)
        && cover.stride > 0
        && first > 0
        && first.checked_add(span).is_some_and(|last| last < Seq::MAX)
        && repair.body.len() <= MAX_PACKET
}
