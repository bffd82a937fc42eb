//! Names of packets in a section: tags and send times.

use std::num::NonZeroU16;

use super::super::align::Tag;
use super::gaps::{self, Gaps};
use super::{NAMES, SECTION_HEAD, emit};
use crate::fec::Seq;
use crate::reader::Reader;
use crate::time::Duration;

/// Maximum number of packets that a section names.
pub const MAX_NAMES: usize = 128;
/// Unit of the gaps between send times.
pub const GAP: Duration = Duration::from_micros(8);
const WITH_TIMES: u8 = 1;
const WITH_ACKS: u8 = 2;
const WITH_BARE: u8 = 4;
const OBSERVED: u8 = 8;
const COMBINED: u8 = 16;
const NAMES_HEAD: usize = 6;
const TIMES_HEAD: usize = 6;
const COMBINED_HEAD: usize = 2;

/// Names of consecutive packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// Number of the first packet, truncated to its low 32 bits.
    pub first: Seq,
    /// Manner in which the sender's packets are named.
    pub manner: Manner,
    /// Distance, in numbers, from each packet to the earlier packet whose tag and bit are combined
    /// with its own; 0 if tags are not combined.
    pub apart: u16,
    tags: &'a [[u8; 2]],
    /// Send times; `None` if these names are a repetition.
    pub times: Option<Times<'a>>,
    bare: &'a [u8],
}

/// Manner of naming packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// True if acknowledgements without data are also named.
    pub acks: bool,
    /// True if the link is only observed: no repairs are sent.
    pub is_observed: bool,
}

/// Send times of packets, and mutable fields of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times<'a> {
    /// Send time of the first packet, in microseconds of the sender's clock.
    pub sent: u32,
    /// TTL or hop limit of the first packet.
    pub ttl: u8,
    /// TOS or traffic class of the first packet.
    pub tos: u8,
    gaps: &'a [u8],
    count: usize,
}

impl<'a> Names<'a> {
    /// Tags, in order.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = Tag> + Clone + use<'a> {
        self.tags.iter().map(|tag| Tag::from_be_bytes(*tag))
    }

    /// Flag of each packet, in order: true if the packet is in no repair.
    pub fn bare(&self) -> impl Iterator<Item = bool> + Clone + use<'a> {
        let bits = self.bare;
        (0..self.tags.len()).map(|n| bits.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1))
    }
}

impl Times<'_> {
    /// Send time of each packet, in microseconds of the sender's clock.
    pub fn sent(&self) -> impl Iterator<Item = u32> {
        let unit = GAP.as_micros() as u32;
        let mut at = self.sent;
        std::iter::once(self.sent).chain(Gaps::new(self.gaps, self.count).map(move |gap| {
            at = at.wrapping_add(unit * u32::from(gap));
            at
        }))
    }
}

pub(super) fn parse(body: &[u8]) -> Option<Names<'_>> {
    let mut rest = Reader(body);
    let (flags, first, count) = (rest.u8()?, Seq::from(rest.u32()?), usize::from(rest.u8()?));
    const KNOWN: u8 = WITH_TIMES | WITH_ACKS | WITH_BARE | OBSERVED | COMBINED;
    if flags > KNOWN || count == 0 || count > MAX_NAMES {
        return None;
    }
    let has = |flag: u8| flags & flag != 0;
    if has(WITH_TIMES) && has(COMBINED) {
        return None;
    }
    let timed = match has(WITH_TIMES) {
        true => Some((rest.u32()?, rest.u8()?, rest.u8()?)),
        false => None,
    };
    let apart = if has(COMBINED) { NonZeroU16::new(rest.u16()?)?.get() } else { 0 };
    let tags = rest.take(2 * count)?.as_chunks().0;
    let gap_count = if timed.is_some() { count - 1 } else { 0 };
    let gaps = gaps::take(&mut rest.0, gap_count)?;
    let bits = if has(WITH_BARE) { count.div_ceil(8) } else { 0 };
    let times = timed.map(|(sent, ttl, tos)| Times { sent, ttl, tos, gaps, count: gap_count });
    let manner = Manner { acks: has(WITH_ACKS), is_observed: has(OBSERVED) };
    let bare = rest.0;
    (bare.len() == bits).then_some(Names { first, manner, apart, tags, times, bare })
}

/// Name of a packet, with its send time and mutable fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Tag: low 16 bits of the identity.
    pub tag: Tag,
    /// Send time, in microseconds of the sender's clock.
    pub sent: u32,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// True if the packet is in no repair.
    pub is_bare: bool,
}

impl Name {
    /// Combines two packets' tags and bits: either name follows from the other and the result.
    pub fn combine(self, other: Name) -> Name {
        let (tag, is_bare) = (self.tag ^ other.tag, self.is_bare ^ other.is_bare);
        Name { tag, is_bare, ..self }
    }
}

/// Form of a section of names: the fields in addition to the tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Send times; consecutive times are at most 255 [`GAP`]s apart.
    Timed,
    /// No other fields.
    Again,
    /// Distance, in numbers, to the earlier packets with whose names these names are combined.
    Combined(NonZeroU16),
}

/// Gaps between send times, each measured from the sum of the rounded gaps before it, so that
/// rounding errors do not add up.
fn gaps_between(names: &[Name]) -> impl Iterator<Item = u8> {
    let unit = GAP.as_micros() as u32;
    let mut at = names.first().map_or(0, |name| name.sent);
    names.iter().skip(1).map(move |name| {
        let gap = name.sent.wrapping_sub(at).cast_signed().max(0).cast_unsigned();
        let gap = u8::try_from(gap / unit).unwrap_or(u8::MAX);
        at = at.wrapping_add(unit * u32::from(gap));
        gap
    })
}

/// Length in bytes of a section with `names`, which are at most [`MAX_NAMES`].
pub fn names_len(names: &[Name], form: Form) -> usize {
    let each = names.len() * size_of::<Tag>();
    let fields = match form {
        Form::Timed => TIMES_HEAD + gaps::len(gaps_between(names)),
        Form::Again => 0,
        Form::Combined(_) => COMBINED_HEAD,
    };
    let with_bare = names.iter().any(|name| name.is_bare);
    let bits = if with_bare { names.len().div_ceil(8) } else { 0 };
    SECTION_HEAD + NAMES_HEAD + fields + each + bits
}

/// Appends the names of consecutive packets, the first of which has number `first`; at most
/// [`MAX_NAMES`] names.
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
            gaps::emit(gaps_between(names), out);
        }
        if with_bare {
            let bits = |names: &[Name]| {
                names.iter().rev().fold(0, |bits, name| bits << 1 | u8::from(name.is_bare))
            };
            out.extend(names.chunks(8).map(bits));
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Section, sections};
    use super::*;

    fn read(message: &[u8]) -> Option<Names<'_>> {
        let sections: Vec<_> = sections(message).collect();
        match &sections[..] {
            [Some(Section::Names(names))] => Some(names.clone()),
            _ => None,
        }
    }

    #[test]
    fn send_times_are_exact_to_a_gap() {
        let sent = |n: u32| (u32::MAX - 500).wrapping_add(13 * n);
        let names: Vec<_> = (0..100).map(|n| Name { sent: sent(n), ..Name::default() }).collect();
        let mut out = Vec::new();
        emit_names(7, &names, Form::Timed, Manner::default(), &mut out);
        let read = read(&out).expect("one section");
        for (name, sent) in names.iter().zip(read.times.unwrap().sent()) {
            assert!(name.sent.wrapping_sub(sent) < 8, "{} and {sent}", name.sent);
        }
    }

    proptest! {
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
            let names = read(&out).expect("one section");
            prop_assert_eq!((names.first, names.manner), (first.into(), manner));
            let read: Vec<_> = names.tags().zip(names.bare()).collect();
            prop_assert_eq!(&read, &tags);
            let apart = if let Form::Combined(apart) = form { apart.get() } else { 0 };
            prop_assert_eq!(names.apart, apart);
            let head = names.times.map(|of| (of.sent, of.ttl, of.tos));
            prop_assert_eq!(head, (form == Form::Timed).then_some((3, 64, 8)));
            prop_assert_eq!(names.times.map_or(tags.len(), |of| of.sent().count()), tags.len());
        }
    }
}
