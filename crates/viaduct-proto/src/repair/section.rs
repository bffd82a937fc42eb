//! Sections of a sealed message, and all their numbers. Everything is big endian.
//!
//! A message is one or more sections, so that small repairs, names and reports that leave together share a datagram:
//!
//! ```text
//!  section  kind | length of what follows 2 | body
//!
//!  repair   kind=1 | family | parameter | first 4 | stride or dense 2 | count 2 | seed 2 | length code 2 | symbol
//!  names    kind=2 | flags | first 4 | count | (sent 4 | ttl | tos) | (apart 2) | count x tag 2
//!           | ((count - 1) x gap) | (count bits, in whole bytes)
//!  need     kind=3 | first 8 | packets 2 | repairs
//!  report   kind=4: see [`super::report`]
//!  terms    kind=5: see [`super::terms`]
//!  tried    kind=7: see [`super::report`]
//!  copies   kind=6 | first 4 | ttl | tos | n x (length 2 | packet, normalised)
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | family | 0 exclusive or, 1 Reed-Solomon, 2 window; plus 0x40 for the head of a symbol in two datagrams, 0x80 for its tail |
//! | parameter | layer, parity row, or density of the window in 256ths |
//! | first | the lowest number; where it has four bytes, its low 32 bits: the others are those of the nearest number known |
//! | stride or dense | distance of the numbers covered; of a window the newest packets that are all in it |
//! | symbol | combination of packets, each with its [`PREFIX`] before it |
//! | flags | 1: with send times; names without are repeated. 2: acknowledgements without data are named, too. 4: with bits. 8: no repairs are made. 16: each tag and bit is the exclusive or of two packets' |
//! | sent | send time of the first packet, microseconds of the sender's clock, low 32 bits |
//! | ttl, tos | of the first packet, as it left |
//! | apart | of two packets whose tags are combined, the distance of their numbers; `first` is the later one's |
//! | tag | low 16 bits of a packet's identity |
//! | gap | time since the packet before, in units of 8 microseconds |
//! | bits | one for each packet, the lowest of a byte first: whether it is in no repair, where it counts as empty |
//! | packets, repairs | numbers from `first` on that are asked for, and how many repairs of them; 0 for their names |

use std::num::NonZeroU16;

use super::align::Tag;
use crate::fec::{Cover, Draw, MAX_COVER, Repair, Row, Seq};
use crate::time::Duration;
use crate::wire::ip::Hop;

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
const COPIES: u8 = 6;

const XOR: u8 = 0;
const REED_SOLOMON: u8 = 1;
const WINDOW: u8 = 2;
const FAMILY: u8 = 0x3f;
const HEAD: u8 = 0x40;
const TAIL: u8 = 0x80;

const WITH_TIMES: u8 = 1;
const WITH_ACKS: u8 = 2;
const WITH_BARE: u8 = 4;
const OBSERVED: u8 = 8;
const COMBINED: u8 = 16;
/// Bytes of a section of copies beside them.
pub const COPIES_OVERHEAD: usize = SECTION_HEAD + COPIES_HEAD;
/// Bytes of each copy beside its packet.
pub const COPY_OVERHEAD: usize = 2;

const NAMES_HEAD: usize = 6;
const COPIES_HEAD: usize = 6;
const TIMES_HEAD: usize = 6;
const COMBINED_HEAD: usize = 2;

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
    /// Copies of consecutive packets.
    Copies(Copies<'a>),
    /// Of another kind: its number, and its body.
    Other(u8, &'a [u8]),
}

/// Names of consecutive packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// Number of the first, its low 32 bits.
    pub first: Seq,
    /// How the sender's packets are named.
    pub manner: Manner,
    /// Distance, in numbers, to the earlier packet whose tag and bit are combined with each; 0 if none is.
    pub apart: u16,
    tags: &'a [[u8; 2]],
    times: Option<Times<'a>>,
    bare: &'a [u8],
}

/// How packets are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Acknowledgements without data are named, too.
    pub acks: bool,
    /// No repairs are made: the link is observed.
    pub is_observed: bool,
}

/// Consecutive packets again, after the first ones may have been lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies<'a> {
    /// Number of the first, its low 32 bits.
    pub first: Seq,
    /// Mutable fields of all, as they left.
    pub hop: Hop,
    packets: &'a [u8],
}

impl<'a> Copies<'a> {
    /// The packets, normalised; `None` where they are malformed, which those that were parsed are
    /// not.
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
    let (length, behind) = rest.split_first_chunk::<COPY_OVERHEAD>()?;
    let (packet, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    *rest = behind;
    (!packet.is_empty()).then_some(packet)
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
    /// Repairs of them; 0 for their names.
    pub repairs: u8,
}

impl<'a> Names<'a> {
    /// The tags, in order.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = Tag> + Clone + use<'a> {
        self.tags.iter().map(|tag| Tag::from_be_bytes(*tag))
    }

    /// Whether each packet is in no repair.
    pub fn bare(&self) -> impl Iterator<Item = bool> + Clone + use<'a> {
        let bits = self.bare;
        (0..self.tags.len()).map(|n| bits.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1))
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
        COPIES => parse_copies(body).map(Section::Copies),
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
    let (first, count) = (Seq::from(u32::from_be_bytes(*first)), usize::from(count));
    const KNOWN: u8 = WITH_TIMES | WITH_ACKS | WITH_BARE | OBSERVED | COMBINED;
    if flags > KNOWN || count == 0 || count > MAX_NAMES {
        return None;
    }
    let has = |flag: u8| flags & flag != 0;
    if has(WITH_TIMES) && has(COMBINED) {
        return None;
    }
    let timed = if has(WITH_TIMES) { Some(take_times_head(&mut rest)?) } else { None };
    let apart = if has(COMBINED) { take_apart(&mut rest)?.get() } else { 0 };
    let (tags, rest) = rest.split_at_checked(2 * count)?;
    let (gaps, rest) = rest.split_at_checked(if timed.is_some() { count - 1 } else { 0 })?;
    let bits = if has(WITH_BARE) { count.div_ceil(8) } else { 0 };
    let times = timed.map(|(sent, ttl, tos)| Times { sent, ttl, tos, gaps });
    let tags = tags.as_chunks().0;
    let manner = Manner { acks: has(WITH_ACKS), is_observed: has(OBSERVED) };
    (rest.len() == bits).then_some(Names { first, manner, apart, tags, times, bare: rest })
}

fn parse_copies(body: &[u8]) -> Option<Copies<'_>> {
    let (&[ref first @ .., ttl, tos], packets) = body.split_first_chunk::<COPIES_HEAD>()?;
    let copies =
        Copies { first: u32::from_be_bytes(*first).into(), hop: Hop { ttl, tos }, packets };
    copies.packets().all(|packet| packet.is_some()).then_some(copies)
}

fn take_times_head(rest: &mut &[u8]) -> Option<(u32, u8, u8)> {
    let (&[s0, s1, s2, s3, ttl, tos], behind) = rest.split_first_chunk::<TIMES_HEAD>()?;
    *rest = behind;
    Some((u32::from_be_bytes([s0, s1, s2, s3]), ttl, tos))
}

fn take_apart(rest: &mut &[u8]) -> Option<NonZeroU16> {
    let (&apart, behind) = rest.split_first_chunk()?;
    *rest = behind;
    NonZeroU16::new(u16::from_be_bytes(apart))
}

fn parse_need(body: &[u8]) -> Option<Need> {
    let &[ref first @ .., p0, p1, repairs]: &[u8; 11] = body.try_into().ok()?;
    let need =
        Need { first: Seq::from_be_bytes(*first), packets: u16::from_be_bytes([p0, p1]), repairs };
    let most = if repairs > 0 { MAX_COVER } else { MAX_NAMES as u16 };
    let fits = (1..=most).contains(&need.packets);
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
    /// Whether it is in no repair.
    pub is_bare: bool,
}

impl Name {
    /// Tag and bit of two packets, combined: either follows from the other.
    pub fn combine(self, other: Name) -> Name {
        let (tag, is_bare) = (self.tag ^ other.tag, self.is_bare ^ other.is_bare);
        Name { tag, is_bare, ..self }
    }
}

/// Form of a section of names: the fields beside the tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// When they left; at most 255 [`GAP`]s apart.
    Timed,
    /// Nothing.
    Again,
    /// The names are combined with those of the packets so far before.
    Combined(NonZeroU16),
}

/// Bytes of a section of these names, at most [`MAX_NAMES`].
pub fn names_len(names: &[Name], form: Form) -> usize {
    let each = names.len() * size_of::<Tag>();
    let beside = match form {
        Form::Timed => TIMES_HEAD + names.len().saturating_sub(1),
        Form::Again => 0,
        Form::Combined(_) => COMBINED_HEAD,
    };
    let with_bare = names.iter().any(|name| name.is_bare);
    let bits = if with_bare { names.len().div_ceil(8) } else { 0 };
    SECTION_HEAD + NAMES_HEAD + beside + each + bits
}

/// Appends names of the packets from `first` on, at most [`MAX_NAMES`].
pub fn emit_names(first: Seq, names: &[Name], form: Form, manner: Manner, out: &mut Vec<u8>) {
    let names = &names[..names.len().min(MAX_NAMES)];
    let Some(begin) = names.first() else { return };
    let with_bare = names.iter().any(|name| name.is_bare);
    let form_flag = match form {
        Form::Timed => WITH_TIMES,
        Form::Again => 0,
        Form::Combined(_) => COMBINED,
    };
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let flags = form_flag | flag(with_bare, WITH_BARE);
    let flags = flags | flag(manner.acks, WITH_ACKS) | flag(manner.is_observed, OBSERVED);
    emit(NAMES, out, |out| {
        out.push(flags);
        out.extend((first as u32).to_be_bytes());
        out.push(names.len() as u8);
        match form {
            Form::Timed => {
                out.extend(begin.sent.to_be_bytes());
                out.extend([begin.ttl, begin.tos]);
            }
            Form::Again => {}
            Form::Combined(apart) => out.extend(apart.get().to_be_bytes()),
        }
        names.iter().for_each(|name| out.extend(name.tag.to_be_bytes()));
        if form == Form::Timed {
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
        if with_bare {
            let bits = |names: &[Name]| {
                names.iter().rev().fold(0, |bits, name| bits << 1 | u8::from(name.is_bare))
            };
            out.extend(names.chunks(8).map(bits));
        }
    });
}

/// Appends copies of the packets from `first` on, which are normalised and left with `hop`.
pub fn emit_copies<'a>(
    first: Seq,
    hop: Hop,
    packets: impl Iterator<Item = &'a [u8]>,
    out: &mut Vec<u8>,
) {
    emit(COPIES, out, |out| {
        out.extend((first as u32).to_be_bytes());
        out.extend([hop.ttl, hop.tos]);
        for packet in packets {
            out.extend(u16::try_from(packet.len()).unwrap_or(0).to_be_bytes());
            out.extend_from_slice(packet);
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
        emit_names(7, &names, Form::Timed, Manner::default(), &mut out);
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
        fn names_round_trip(
            first: u32, tags in prop::collection::vec(any::<(u16, bool)>(), 1..=MAX_NAMES),
            form in prop_oneof![
                Just(Form::Timed),
                Just(Form::Again),
                any::<NonZeroU16>().prop_map(Form::Combined),
            ],
            acks: bool, is_observed: bool,
        ) {
            let manner = Manner { acks, is_observed };
            let name = |&(tag, is_bare)| Name { tag, sent: 3, ttl: 64, tos: 8, is_bare };
            let names: Vec<_> = tags.iter().map(name).collect();
            let mut out = Vec::new();
            emit_names(first.into(), &names, form, manner, &mut out);
            prop_assert_eq!(out.len(), names_len(&names, form));
            let sections = read(&out);
            let [Some(Section::Names(names))] = &sections[..] else {
                return Err(TestCaseError::fail("one section"));
            };
            prop_assert_eq!((names.first, names.manner), (first.into(), manner));
            let read: Vec<_> = names.tags().zip(names.bare()).collect();
            prop_assert_eq!(&read, &tags);
            let apart = if let Form::Combined(apart) = form { apart.get() } else { 0 };
            prop_assert_eq!(names.apart, apart);
            let head = names.times().map(|of| (of.sent, of.ttl, of.tos));
            prop_assert_eq!(head, (form == Form::Timed).then_some((3, 64, 8)));
            prop_assert_eq!(names.times().map_or(tags.len(), |of| of.sent().count()), tags.len());
        }

        #[test]
        fn copies_round_trip(
            first: u32, ttl: u8, tos: u8,
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 1..5),
        ) {
            let mut out = Vec::new();
            let packets: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
            emit_copies(first.into(), Hop { ttl, tos }, packets.iter().copied(), &mut out);
            let each = packets.iter().map(|packet| COPY_OVERHEAD + packet.len());
            prop_assert_eq!(out.len(), COPIES_OVERHEAD + each.sum::<usize>());
            let sections = read(&out);
            let [Some(Section::Copies(copies))] = &sections[..] else {
                return Err(TestCaseError::fail("one section"));
            };
            prop_assert_eq!((copies.first, copies.hop), (first.into(), Hop { ttl, tos }));
            let read: Option<Vec<_>> = copies.packets().collect();
            prop_assert_eq!(read, Some(packets));
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
