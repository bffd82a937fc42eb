//! Sections of a sealed message, and their formats. All integers are big-endian.
//!
//! A message is one or more sections, so that small repairs, names and reports that leave
//! together share a datagram:
//!
//! ```text
//!  section  kind | length of the body 2 | body
//!
//!  repair   kind=1 | family | parameter | first 4 | stride or dense 2 | count 2 | seed 2
//!           | length code 2 | symbol
//!  names    kind=2 | flags | first 4 | count | (sent 4 | ttl | tos) | (apart 2) | count x tag 2
//!           | ((count - 1) x gap, in whole bytes) | (count bits, in whole bytes)
//!  need     kind=3 | first 8 | packets 2 | repairs
//!  report   kind=4: see [`super::report`]
//!  terms    kind=5: see [`super::terms`]
//!  copies   kind=6 | first 4 | ttl | tos | n x (length 2 | packet, normalised)
//!  trials   kind=7: see [`super::report`]
//!  throttle kind=8, without a body
//!  member   kind=9 | weight: see [`super::racks`]
//!  probe    kind=10: see [`super::liveness`]
//!  claims   kind=11: see [`super::claims`]
//! ```
//!
//! Numbers after a field are its length in bytes; fields without a number have one byte. The fields
//! are:
//!
//! - family: 0 exclusive or, 1 Reed-Solomon, 2 window; plus 0x40 for the head of a symbol in two
//!   datagrams, 0x80 for its tail
//! - parameter: layer, parity row, or density of the window in 256ths
//! - first: lowest number; a field of four bytes holds only its low 32 bits, which the receiver
//!   expands to the number nearest to the next expected number
//! - stride or dense: distance between the covered numbers; for a window, the number of newest
//!   packets that are all in the repair
//! - count: number of packets that are covered or named
//! - seed: determines, with the packets' numbers, their coefficients in a window
//! - length code: combination of the packets' lengths, with the same coefficients as the symbol
//! - symbol: combination of packets, each preceded by its [`PREFIX`]
//! - flags: 1: send times are present; names without send times are a repetition. 2:
//!   acknowledgements without data are also named. 4: bits are present. 8: no repairs are sent. 16:
//!   each tag and bit is the exclusive or of the tags and bits of two packets
//! - sent: send time of the first packet in microseconds of the sender's clock, low 32 bits
//! - ttl, tos: mutable fields of the first packet, as it left
//! - apart: distance between the numbers of two packets whose tags are combined; `first` is the
//!   number of the later packet of the first pair
//! - tag: low 16 bits of a packet's identity
//! - gap: time since the previous packet in units of 8 microseconds: half a byte if the gap is
//!   below 15, otherwise half a byte with the value 15 and a full byte
//! - bits: one for each packet, the lowest bit of a byte first; set if the packet is in no repair.
//!   Repairs have an empty packet in place of such a packet
//! - packets, repairs: number of consecutive packets, the first of which is `first`, and number of
//!   repairs requested for them; with 0 repairs, the packets' names are requested

mod copies;
mod gaps;
mod names;

use crate::fec::{Cover, Draw, MAX_COVER, Repair, Row, Seq};
pub use copies::{COPIES_OVERHEAD, COPY_OVERHEAD, Copies, emit_copies};
pub use names::{Form, GAP, MAX_NAMES, Manner, Name, Names, Times, emit_names, names_len};

/// Length of a section's head, in bytes.
pub const SECTION_HEAD: usize = 3;
/// Number of bytes of a repair's body before its symbol.
pub const REPAIR_HEAD: usize = 14;
/// Number of bytes before each packet of a symbol: eight for the identity; one each for ttl, tos
/// and their check.
pub const PREFIX: usize = 11;

const REPAIR: u8 = 1;
const NAMES: u8 = 2;
const NEED: u8 = 3;
const COPIES: u8 = 6;

const XOR: u8 = 0;
const REED_SOLOMON: u8 = 1;
const WINDOW: u8 = 2;
const FAMILY: u8 = 0x3f;
const HEAD: u8 = 0x40;
const TAIL: u8 = 0x80;

/// Part of a symbol that one repair section carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Complete symbol.
    Whole,
    /// First of two parts.
    Head,
    /// Second of two parts.
    Tail,
}

/// Parsed section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Section<'a> {
    /// Repair; its first number is truncated to the low 32 bits.
    Repair(Repair<'a>, Part),
    /// Names of packets.
    Names(Names<'a>),
    /// Request for repairs.
    Need(Need),
    /// Copies of consecutive packets.
    Copies(Copies<'a>),
    /// Section of another kind: its number and its body.
    Other(u8, &'a [u8]),
}

/// Request for repairs of missing packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Lowest packet number.
    pub first: Seq,
    /// Number of consecutive packets, including the first.
    pub packets: u16,
    /// Number of repairs requested; with 0, names are requested instead.
    pub repairs: u8,
}

impl Need {
    /// Returns whether a repair is requested for each packet: then all of them seem to be missing.
    pub fn is_whole(&self) -> bool {
        self.packets <= self.repairs.into()
    }

    /// Highest packet number.
    pub fn last(&self) -> Seq {
        self.first.saturating_add(self.packets.into()).saturating_sub(1)
    }
}

/// Parses the sections of a message; the last item is `None` if the message is malformed at that
/// point.
pub fn sections(mut message: &[u8]) -> impl Iterator<Item = Option<Section<'_>>> {
    std::iter::from_fn(move || {
        if message.is_empty() {
            return None;
        }
        let section = take(&mut message);
        if section.is_none() {
            message = &[];
        }
        Some(section)
    })
}

fn take<'a>(message: &mut &'a [u8]) -> Option<Section<'a>> {
    let (&[kind, high, low], rest) = message.split_first_chunk::<SECTION_HEAD>()?;
    let (body, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
    *message = rest;
    match kind {
        REPAIR => parse_repair(body),
        NAMES => names::parse(body).map(Section::Names),
        NEED => parse_need(body).map(Section::Need),
        COPIES => copies::parse(body).map(Section::Copies),
        other => Some(Section::Other(other, body)),
    }
}

fn parse_repair(body: &[u8]) -> Option<Section<'_>> {
    let (head, symbol) = body.split_first_chunk::<REPAIR_HEAD>()?;
    let &[family, parameter, f0, f1, f2, f3, s0, s1, c0, c1, d0, d1, l0, l1] = head;
    let [distance, count, seed] = [[s0, s1], [c0, c1], [d0, d1]].map(u16::from_be_bytes);
    let part = match family & !FAMILY {
        0 => Part::Whole,
        HEAD => Part::Head,
        TAIL => Part::Tail,
        _ => return None,
    };
    let (row, stride) = match family & FAMILY {
        XOR => (Row::Xor { layer: parameter }, distance),
        REED_SOLOMON => (Row::ReedSolomon { row: parameter }, distance),
        WINDOW => (Row::Window(Draw { seed, dense: distance, density: parameter }), 1),
        _ => return None,
    };
    let first = Seq::from(u32::from_be_bytes([f0, f1, f2, f3]));
    if stride == 0 || !(1..=MAX_COVER).contains(&count) || symbol.is_empty() {
        return None;
    }
    let cover = Cover { first, stride, count };
    Some(Section::Repair(Repair { cover, row, len_code: [l0, l1], body: symbol }, part))
}

fn parse_need(body: &[u8]) -> Option<Need> {
    let &[ref first @ .., p0, p1, repairs]: &[u8; 11] = body.try_into().ok()?;
    let need =
        Need { first: Seq::from_be_bytes(*first), packets: u16::from_be_bytes([p0, p1]), repairs };
    let most = if repairs > 0 { MAX_COVER } else { MAX_NAMES as u16 };
    let fits = (1..=most).contains(&need.packets);
    (fits && need.first > 0 && need.first.checked_add(MAX_COVER.into()).is_some()).then_some(need)
}

/// Appends a section of the given kind; `write` appends its body.
pub fn emit(kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend([kind, 0, 0]);
    let start = out.len();
    write(out);
    let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    out[start - 2..start].copy_from_slice(&length.to_be_bytes());
}

/// Appends a repair that carries `part` of its symbol.
pub fn emit_repair(repair: &Repair<'_>, part: Part, out: &mut Vec<u8>) {
    let Cover { first, stride, count } = repair.cover;
    let (family, parameter, distance, seed) = match repair.row {
        Row::Xor { layer } => (XOR, layer, stride, 0),
        Row::ReedSolomon { row } => (REED_SOLOMON, row, stride, 0),
        Row::Window(draw) => (WINDOW, draw.density, draw.dense, draw.seed),
    };
    let part = match part {
        Part::Whole => 0,
        Part::Head => HEAD,
        Part::Tail => TAIL,
    };
    emit(REPAIR, out, |out| {
        out.extend([family | part, parameter]);
        out.extend((first as u32).to_be_bytes());
        [distance, count, seed].iter().for_each(|number| out.extend(number.to_be_bytes()));
        out.extend(repair.len_code);
        out.extend_from_slice(repair.body);
    });
}

/// Appends a request.
pub fn emit_need(need: Need, out: &mut Vec<u8>) {
    emit(NEED, out, |out| {
        out.extend(need.first.to_be_bytes());
        out.extend(need.packets.to_be_bytes());
        out.push(need.repairs);
    });
}

/// Returns the number nearest to `near` that has `low` as its low 32 bits.
pub fn expand(low: u32, near: Seq) -> Seq {
    let distance = low.wrapping_sub(near as u32).cast_signed();
    near.wrapping_add_signed(distance.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Vec<Option<Section<'_>>> {
        sections(bytes).collect()
    }

    #[test]
    fn numbers_are_expanded_to_the_nearest_number() {
        for near in [5, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 50) + 77] {
            for seq in [near - 4, near, near + 1_000_000] {
                assert_eq!(expand(seq as u32, near), seq);
            }
        }
    }

    #[test]
    fn sections_share_a_message_and_a_truncated_section_ends_it() {
        let (mut out, need) = (Vec::new(), Need { first: 9, packets: 64, repairs: 2 });
        emit_need(need, &mut out);
        emit(9, &mut out, |out| out.extend(b"later"));
        emit_need(need, &mut out);
        let expected = [Section::Need(need), Section::Other(9, b"later"), Section::Need(need)];
        assert_eq!(read(&out), expected.clone().map(Some));
        for cut in 1..out.len() {
            let read = read(&out[..cut]);
            let whole = read.iter().filter(|section| section.is_some()).count();
            assert!(
                read.len() <= whole + 1 && read[..whole].iter().flatten().eq(&expected[..whole])
            );
        }
    }

    fn rows() -> impl Strategy<Value = (Row, u16)> {
        prop_oneof![
            (any::<u8>(), 1..=u16::MAX).prop_map(|(layer, stride)| (Row::Xor { layer }, stride)),
            (any::<u8>(), 1..=u16::MAX)
                .prop_map(|(row, stride)| (Row::ReedSolomon { row }, stride)),
            any::<(u16, u16, u8)>()
                .prop_map(|(seed, dense, density)| (Row::Window(Draw { seed, dense, density }), 1)),
        ]
    }

    proptest! {
        #[test]
        fn repairs_round_trip(
            (row, stride) in rows(), first: u32, count in 1..=MAX_COVER, len_code: [u8; 2],
            body in prop::collection::vec(any::<u8>(), 1..50),
            part in prop_oneof![Just(Part::Whole), Just(Part::Head), Just(Part::Tail)],
        ) {
            let cover = Cover { first: first.into(), stride, count };
            let repair = Repair { cover, row, len_code, body: &body };
            let mut out = Vec::new();
            emit_repair(&repair, part, &mut out);
            prop_assert_eq!(out.len(), SECTION_HEAD + REPAIR_HEAD + body.len());
            prop_assert_eq!(read(&out), vec![Some(Section::Repair(repair, part))]);
        }

        #[test]
        fn parsing_never_panics(mut bytes: Vec<u8>, kind in 0..8u8, length in 0..80u16) {
            if let Some(head) = bytes.first_chunk_mut::<3>() {
                *head = [kind, 0, length as u8];
            }
            for section in sections(&bytes).flatten() {
                if let Section::Names(names) = section {
                    prop_assert!(names.tags().len() <= MAX_NAMES);
                }
            }
        }
    }
}
