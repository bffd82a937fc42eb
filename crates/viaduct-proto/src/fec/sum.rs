//! A running combination of packets: the bytes of a bin, a parity or an equation.

use super::buffer::Buffer;
use super::{MAX_COVER, Repair, Seq, kernel};

/// A combination of packets under some coefficients, and of their lengths beside it. As long as
/// the longest packet in it; shorter ones count as padded with zeros.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) buffer: Buffer,
    pub(super) len_code: [u8; 2],
}

impl Sum {
    /// The combination that `repair` carries.
    pub(super) fn of(repair: &Repair<'_>) -> Self {
        let mut buffer = Buffer::default();
        buffer.set(repair.body);
        Sum { buffer, len_code: repair.len_code }
    }

    /// Nothing, keeping the memory.
    pub(super) fn clear(&mut self) {
        self.buffer.clear();
        self.len_code = [0; 2];
    }

    /// The combined bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Adds the length of a packet, not its bytes.
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

    /// The packet that a sum of one packet with coefficient 1 is; `None` if its length cannot be
    /// true, which only a garbled or forged repair makes.
    pub(super) fn packet(&self) -> Option<&[u8]> {
        self.bytes().get(..usize::from(u16::from_be_bytes(self.len_code)))
    }
}

/// A packet's length as it is coded. Packets are at most 65535 bytes long.
pub(super) fn len_bytes(len: usize) -> [u8; 2] {
    debug_assert!(len <= MAX_PACKET, "a packet of {len} bytes; at most {MAX_PACKET}");
    (len as u16).to_be_bytes()
}

/// The longest packet, in bytes: what an IP packet's length field can say.
pub(super) const MAX_PACKET: usize = u16::MAX as usize;

/// Several packets on their way into one sum, so that the kernel takes them together.
pub(super) struct Batch<'a, 's> {
    sum: &'s mut Sum,
    packets: [&'a [u8]; kernel::GROUP],
    coefficients: [u8; kernel::GROUP],
    waiting: usize,
}

impl<'a, 's> Batch<'a, 's> {
    /// None yet, for `sum`.
    pub(super) fn into_sum(sum: &'s mut Sum) -> Self {
        let packets = [&[][..]; kernel::GROUP];
        Batch { sum, packets, coefficients: [0; kernel::GROUP], waiting: 0 }
    }

    /// Adds `coefficient * packet`, now or soon.
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

    /// Adds what waits. Dropping the batch without it would lose packets.
    pub(super) fn finish(&mut self) {
        let dst = &mut [self.sum.buffer.lines()];
        let waiting = std::mem::take(&mut self.waiting);
        kernel::mul_add_many(dst, &self.packets[..waiting], &self.coefficients[..waiting]);
    }
}

/// Whether every number of a sum's packets is a real one, and its bytes are no longer than a
/// packet can be.
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
