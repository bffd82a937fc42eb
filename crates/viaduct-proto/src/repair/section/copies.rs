//! Copies of packets in a section.

use super::{COPIES, SECTION_HEAD, emit};
use crate::fec::Seq;
use crate::wire::ip::MutableFields;

/// Overhead of a section of copies, in bytes.
pub const COPIES_OVERHEAD: usize = SECTION_HEAD + COPIES_HEAD;
/// Overhead of each copy in such a section, in bytes.
pub const COPY_OVERHEAD: usize = 2;
const COPIES_HEAD: usize = 6;

/// Copies of consecutive packets, in case the originals were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies<'a> {
    /// Number of the first packet, truncated to its low 32 bits.
    pub first: Seq,
    /// Mutable fields of all packets, as they left.
    pub fields: MutableFields,
    packets: &'a [u8],
}

impl<'a> Copies<'a> {
    /// Normalised packets. An item is `None` if it is malformed, which never happens after parsing.
    pub fn packets(&self) -> impl Iterator<Item = Option<&'a [u8]>> + use<'a> {
        let mut rest = self.packets;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let packet = take_packet(&mut rest);
            if packet.is_none() {
                rest = &[];
            }
            Some(packet)
        })
    }
}

fn take_packet<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, tail) = rest.split_first_chunk::<COPY_OVERHEAD>()?;
    let (packet, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    *rest = tail;
    (!packet.is_empty()).then_some(packet)
}

pub(super) fn parse(body: &[u8]) -> Option<Copies<'_>> {
    let (&[ref first @ .., ttl, tos], packets) = body.split_first_chunk::<COPIES_HEAD>()?;
    let copies = Copies {
        first: u32::from_be_bytes(*first).into(),
        fields: MutableFields { ttl, tos },
        packets,
    };
    copies.packets().all(|packet| packet.is_some()).then_some(copies)
}

/// Appends copies of consecutive normalised packets, the first of which has number `first`. All of
/// them left with `fields`.
pub fn emit_copies<'a>(
    first: Seq,
    fields: MutableFields,
    packets: impl Iterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) {
    emit(COPIES, out, |out| {
        out.extend((first as u32).to_be_bytes());
        out.extend([fields.ttl, fields.tos]);
        for packet in packets {
            out.extend(u16::try_from(packet.len()).unwrap_or(0).to_be_bytes());
            out.extend_from_slice(packet);
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Section, sections};
    use super::*;

    proptest! {
        #[test]
        fn copies_round_trip(
            first: u32, ttl: u8, tos: u8,
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 1..5),
        ) {
            let mut out = Vec::new();
            let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
            let fields = MutableFields { ttl, tos };
            emit_copies(first.into(), fields, packets.iter().copied(), &mut out);
            let each = packets.iter().map(|packet| COPY_OVERHEAD + packet.len());
            prop_assert_eq!(out.len(), COPIES_OVERHEAD + each.sum::<usize>());
            let sections: Vec<_> = sections(&out).collect();
            let [Some(Section::Copies(copies))] = &sections[..] else {
                return Err(TestCaseError::fail("one section"));
            };
            prop_assert_eq!((copies.first, copies.fields), (first.into(), fields));
            let read: Option<Vec<_>> = copies.packets().collect();
            prop_assert_eq!(read, Some(packets));
        }
    }
}
