//! Sections of a sealed message, and all their numbers. Everything is big endian.
//!
//! A message is one or more sections, so that small repairs, names and reports that leave together share a datagram:
//!
//! ```text
//!  section  kind | length of what follows 2 | body
//!
//!  repair   kind=1 | family | parameter | first 4 | stride or dense 2 | count 2 | seed 2 | length code 2 | symbol
//!  names    kind=2 | flags | first 8 | count | (sent 4 | ttl | tos) | count x tag 2 | ((count - 1) x gap)
//!  need     kind=3 | first 8 | packets 2 | repairs
//!  report   kind=4: see [`super::report`]
//!  terms    kind=5: see [`super::terms`]
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | family | 0 exclusive or, 1 Reed-Solomon, 2 window; plus 0x40 for the head of a symbol in two datagrams, 0x80 for its tail |
//! | parameter | layer, parity row, or density of the window in 256ths |
//! | first | the lowest number covered; of a repair the low 32 bits, the others are those of the nearest number known |
//! | stride or dense | distance of the numbers covered; of a window the newest packets that are all in it |
//! | symbol | combination of packets, each with its [`PREFIX`] before it |
//! | flags | 1: with send times. Names without are repeated |
//! | sent | send time of the first packet, microseconds of the sender's clock, low 32 bits |
//! | ttl, tos | of the first packet, as it left |
//! | tag | low 16 bits of a packet's identity |
//! | gap | time since the packet before, in units of 8 microseconds |
//! | packets, repairs | numbers from `first` on that are asked for, and how many repairs of them |

use super::align::Tag;
use crate::fec::{Cover, Draw, MAX_COVER, Repair, Row, Seq};
use crate::time::Duration;

/// Bytes of a section's head.
pub const SECTION_HEAD: usize = 3;
/// Bytes of a repair's body before its symbol.
pub const REPAIR_HEAD: usize = 14;
/// Bytes before each packet of a symbol: identity 8, ttl, tos and their check.
pub const PREFIX: usize = 11;
/// Packets that a section names, at most.
pub const MAX_NAMES: usize = 128;
/// Unit of the gaps between send times.
pub const GAP: Duration = Duration::from_micros(8);

const REPAIR: u8 = 1;
const NAMES: u8 = 2;
const NEED: u8 = 3;

const XOR: u8 = 0;
const REED_SOLOMON: u8 = 1;
const WINDOW: u8 = 2;
const FAMILY: u8 = 0x3f;
const HEAD: u8 = 0x40;
const TAIL: u8 = 0x80;

const WITH_TIMES: u8 = 1;
/// Bytes of a section of names beside their tags and gaps, at most.
pub const NAMES_OVERHEAD: usize = SECTION_HEAD + NAMES_HEAD + TIMES_HEAD;

const NAMES_HEAD: usize = 10;
const TIMES_HEAD: usize = 6;

/// Which bytes of its symbol a repair carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All.
    Whole,
    /// The first of two parts.
    Head,
    /// The second.
    Tail,
}

/// A section, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Section<'a> {
    /// A repair. Its first number has the low 32 bits alone.
    Repair(Repair<'a>, Part),
    /// Names of packets.
    Names(Names<'a>),
    /// A request for repairs.
    Need(Need),
    /// Of another kind: its number, and its body.
    Other(u8, &'a [u8]),
}

/// Names of consecutive packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// Number of the first.
    pub first: Seq,
    tags: &'a [[u8; 2]],
    times: Option<Times<'a>>,
}

/// When packets left, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times<'a> {
    /// Send time of the first, microseconds of the sender's clock.
    pub sent: u32,
    /// Its TTL or hop limit.
    pub ttl: u8,
    /// Its TOS or traffic class.
    pub tos: u8,
    gaps: &'a [u8],
}

/// A request for repairs of what is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Lowest number.
    pub first: Seq,
    /// Numbers from there on.
    pub packets: u16,
    /// Repairs of them.
    pub repairs: u8,
}

impl<'a> Names<'a> {
    /// The tags, in order.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = Tag> + Clone + use<'a> {
        self.tags.iter().map(|tag| Tag::from_be_bytes(*tag))
    }

    /// Send times; `None` if these names are repeated.
    pub fn times(&self) -> Option<Times<'a>> {
        self.times
    }
}

impl Times<'_> {
    /// Send time of each packet, microseconds of the sender's clock.
    pub fn sent(&self) -> impl Iterator<Item = u32> {
        let unit = GAP.as_micros() as u32;
        let mut at = self.sent;
        std::iter::once(self.sent).chain(self.gaps.iter().map(move |&gap| {
            at = at.wrapping_add(unit * u32::from(gap));
            at
        }))
    }
}

/// The sections of a message; the last is `None` if the message is malformed there.
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
        NAMES => parse_names(body).map(Section::Names),
        NEED => parse_need(body).map(Section::Need),
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

fn parse_names(body: &[u8]) -> Option<Names<'_>> {
    let (head, mut rest) = body.split_first_chunk::<NAMES_HEAD>()?;
    let &[flags, ref first @ .., count] = head;
    let (first, count) = (Seq::from_be_bytes(*first), usize::from(count));
    let last = first.checked_add(count as u64)?;
    if flags > WITH_TIMES || first == 0 || count == 0 || count > MAX_NAMES || last == Seq::MAX {
        return None;
    }
    let timed = (flags == WITH_TIMES).then(|| take_times_head(&mut rest));
    let (tags, gaps) = rest.split_at_checked(2 * count)?;
    let tags = tags.as_chunks().0;
    let times = match timed {
        None if gaps.is_empty() => None,
        Some(Some((sent, ttl, tos))) if gaps.len() == count - 1 => {
            Some(Times { sent, ttl, tos, gaps })
        }
        _ => return None,
    };
    Some(Names { first, tags, times })
}

fn take_times_head(rest: &mut &[u8]) -> Option<(u32, u8, u8)> {
    let (&[s0, s1, s2, s3, ttl, tos], behind) = rest.split_first_chunk::<TIMES_HEAD>()?;
    *rest = behind;
    Some((u32::from_be_bytes([s0, s1, s2, s3]), ttl, tos))
}

fn parse_need(body: &[u8]) -> Option<Need> {
    let &[ref first @ .., p0, p1, repairs]: &[u8; 11] = body.try_into().ok()?;
    let need =
        Need { first: Seq::from_be_bytes(*first), packets: u16::from_be_bytes([p0, p1]), repairs };
    let fits = (1..=MAX_COVER).contains(&need.packets) && repairs > 0;
    (fits && need.first > 0 && need.first.checked_add(MAX_COVER.into()).is_some()).then_some(need)
}

/// Appends a section of this kind, whose body `write` appends.
pub fn emit(kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend([kind, 0, 0]);
    let start = out.len();
    write(out);
    let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    out[start - 2..start].copy_from_slice(&length.to_be_bytes());
}

/// Appends a repair, of whose symbol it carries `part`.
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

/// What is said of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Its tag.
    pub tag: Tag,
    /// When it left, microseconds of the sender's clock.
    pub sent: u32,
    /// Its TTL or hop limit.
    pub ttl: u8,
    /// Its TOS or traffic class.
    pub tos: u8,
}

/// Appends names of the packets from `first` on, at most [`MAX_NAMES`], with their send times or without. Those have
/// to be at most 255 [`GAP`]s apart.
pub fn emit_names(first: Seq, names: &[Name], with_times: bool, out: &mut Vec<u8>) {
    let names = &names[..names.len().min(MAX_NAMES)];
    let Some(begin) = names.first() else { return };
    emit(NAMES, out, |out| {
        out.push(if with_times { WITH_TIMES } else { 0 });
        out.extend(first.to_be_bytes());
        out.push(names.len() as u8);
        if with_times {
            out.extend(begin.sent.to_be_bytes());
            out.extend([begin.ttl, begin.tos]);
        }
        names.iter().for_each(|name| out.extend(name.tag.to_be_bytes()));
        if with_times {
            let unit = GAP.as_micros() as u32;
            // Each gap from where the rounded ones before it have come, so that errors do not add up.
            let mut at = begin.sent;
            for name in &names[1..] {
                let gap = name.sent.wrapping_sub(at).cast_signed().max(0).cast_unsigned();
                let gap = u8::try_from(gap / unit).unwrap_or(u8::MAX);
                at = at.wrapping_add(unit * u32::from(gap));
                out.push(gap);
            }
        }
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

/// The number whose low 32 bits are `low` and which is nearest to `near`.
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
    fn numbers_are_expanded_to_the_nearest() {
        for near in [5, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 50) + 77] {
            for seq in [near - 4, near, near + 1_000_000] {
                assert_eq!(expand(seq as u32, near), seq);
            }
        }
    }

    #[test]
    fn sections_share_a_message_and_a_cut_one_ends_it() {
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

    #[test]
    fn times_keep_to_a_gap() {
        let sent = |n: u32| (u32::MAX - 500).wrapping_add(13 * n);
        let names: Vec<_> = (0..100).map(|n| Name { sent: sent(n), ..Name::default() }).collect();
        let mut out = Vec::new();
        emit_names(7, &names, true, &mut out);
        let [Some(Section::Names(read))] = &read(&out)[..] else { panic!("one section") };
        for (name, sent) in names.iter().zip(read.times().unwrap().sent()) {
            assert!(name.sent.wrapping_sub(sent) < 8, "{} and {sent}", name.sent);
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
        fn names_round_trip(first in 1..u64::MAX / 2, tags in prop::collection::vec(any::<u16>(), 1..=MAX_NAMES), timed: bool) {
            let names: Vec<_> = tags.iter().map(|&tag| Name { tag, sent: 3, ttl: 64, tos: 8 }).collect();
            let mut out = Vec::new();
            emit_names(first, &names, timed, &mut out);
            let sections = read(&out);
            let [Some(Section::Names(names))] = &sections[..] else { return Err(TestCaseError::fail("one section")) };
            prop_assert_eq!((names.first, names.tags().collect::<Vec<_>>()), (first, tags.clone()));
            prop_assert_eq!(names.times().map(|of| (of.sent, of.ttl, of.tos)), timed.then_some((3, 64, 8)));
            prop_assert_eq!(names.times().map_or(tags.len(), |of| of.sent().count()), tags.len());
        }

        #[test]
        fn parsing_never_panics(mut bytes: Vec<u8>, kind in 0..5u8, length in 0..80u16) {
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
