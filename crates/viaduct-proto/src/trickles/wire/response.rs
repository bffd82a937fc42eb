//! Responses: messages of a server.

use super::MAX_USER;
use crate::trickles::bytes::{Reader, put_counted};
use crate::trickles::continuation::{Continuation, DELTA, Delta, renumber};
use crate::trickles::epoch::Epoch;
use crate::trickles::keys::{Keys, MAC};

/// Kind of a response: its first byte; see [`Form`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::trickles) enum Kind {
    AddressToken = 1,
    Fresh = 2,
    Half = 3,
    Again = 4,
    Group = 5,
    Slim = 6,
}

impl Kind {
    pub(in crate::trickles) fn of(byte: u8) -> Option<Kind> {
        use Kind::{AddressToken, Again, Fresh, Group, Half, Slim};
        let mut all = [AddressToken, Fresh, Half, Again, Group, Slim].into_iter();
        all.find(|kind| *kind as u8 == byte)
    }
}

/// Length in bytes of the head, which is common to all forms.
pub const HEAD: usize = 23;
/// Maximum length in bytes of a payload without its user continuation and data, but with the length
/// field of the user continuation.
pub const PAYLOAD_HEAD: usize = 8 + 1 + 2;
/// Maximum number of packets in a group.
pub const MAX_GROUP: u8 = 32;

/// A parsed response.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// Lower half of the token that the client chose.
    pub tag: u32,
    /// Number of the generation.
    pub generation: u16,
    /// Number of the packet; in a group, of the first packet.
    pub number: u64,
    /// The packet's nonce.
    pub nonce: u64,
    /// Form of the response.
    pub form: Form<'a>,
    /// Payload of the application; empty in a group.
    pub payload: Payload<'a>,
}

/// Form of a response.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// Address token, which the client must echo before the server sends more.
    AddressToken(&'a [u8]),
    /// Packet that carries a continuation.
    Fresh(&'a [u8]),
    /// Packet with the delta from another continuation of the same epoch, known to the client.
    Slim(Delta<'a>),
    /// First packet of a pair, which the request of the second packet acknowledges.
    Half,
    /// Retransmission (repair) of a lost packet.
    Again,
    /// Several packets without data.
    Group(Group<'a>),
}

/// Content of a packet that the application provides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload<'a> {
    /// Position of the data in the stream.
    pub position: u64,
    /// Flags of the application.
    pub flags: u8,
    /// Sealed user continuation; may be empty.
    pub user: &'a [u8],
    /// The data.
    pub data: &'a [u8],
}

/// Consecutive packets without data, whose continuations are sent together.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    body: &'a [u8],
    epoch: Epoch,
    first: u64,
    entries: &'a [u8],
    count: u8,
}

/// Error: the message is not a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is not a response: it ends early, or a field is out of range")]
pub struct InvalidResponse;

impl<'a> Response<'a> {
    /// Parses a response. Errors: [`InvalidResponse`].
    pub fn parse(message: &'a [u8]) -> Result<Self, InvalidResponse> {
        read(message).ok_or(InvalidResponse)
    }
}

fn read(message: &[u8]) -> Option<Response<'_>> {
    let mut reader = Reader(message);
    let kind = Kind::of(reader.u8()?)?;
    let (tag, generation) = (reader.u32()?, reader.u16()?);
    let (number, nonce) = (reader.u64()?, reader.u64()?);
    let form = match kind {
        Kind::AddressToken => Form::AddressToken(continuation(&mut reader)?),
        Kind::Fresh => Form::Fresh(continuation(&mut reader)?),
        Kind::Half => Form::Half,
        Kind::Again => Form::Again,
        Kind::Group => Form::Group(group(&mut reader)?),
        Kind::Slim => Form::Slim(Delta::read(&mut reader)?),
    };
    let payload = match form {
        Form::Group(_) if reader.0.is_empty() => Payload::default(),
        Form::Group(_) => return None,
        _ => payload(&mut reader)?,
    };
    (number < 1 << 63).then_some(Response { tag, generation, number, nonce, form, payload })
}

fn continuation<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let (_, len) = Continuation::peek(reader.0).ok()?;
    reader.take(len)
}

fn payload<'a>(reader: &mut Reader<'a>) -> Option<Payload<'a>> {
    let (position, flags) = (reader.u64()?, reader.u8()?);
    let user = reader.counted().filter(|user| user.len() <= MAX_USER)?;
    position.checked_add(reader.0.len() as u64)?;
    Some(Payload { position, flags, user, data: reader.0 })
}

fn group<'a>(reader: &mut Reader<'a>) -> Option<Group<'a>> {
    let count = reader.u8()?;
    let (first, len) = Continuation::peek_body(reader.0)?;
    let body = reader.take(len)?;
    let Continuation { epoch, number, .. } = first;
    let group = Group { body, epoch, first: number, entries: reader.0, count };
    let points = group.numbers().filter(|&n| epoch.is_point(n)).count();
    let _entries = reader.take(usize::from(count) * 8 + points * MAC)?;
    (1..=MAX_GROUP).contains(&count).then_some(group)
}

impl<'a> Group<'a> {
    fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + u64::from(self.count)
    }

    /// The packets in order: number, nonce and, for a point, the continuation's bytes.
    pub fn packets(self) -> impl Iterator<Item = (u64, u64, Option<Vec<u8>>)> + 'a {
        let mut entries = Reader(self.entries);
        self.numbers().map_while(move |number| {
            let nonce = entries.u64()?;
            if !self.epoch.is_point(number) {
                return Some((number, nonce, None));
            }
            let mut bytes = self.body.to_vec();
            renumber(&mut bytes, u32::try_from(number - self.epoch.base).ok()?);
            bytes.extend_from_slice(entries.take(MAC)?);
            Some((number, nonce, Some(bytes)))
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::trickles) struct Head {
    pub(in crate::trickles) tag: u32,
    pub(in crate::trickles) generation: u16,
    pub(in crate::trickles) number: u64,
    pub(in crate::trickles) nonce: u64,
}

/// Length of a packet's continuation in bytes; in a slim packet, that of the delta.
pub(in crate::trickles) fn continuation_len(len: usize, slim: bool) -> usize {
    if slim { DELTA } else { len }
}

/// Bytes of a response without its user continuation and data.
pub(in crate::trickles) fn overhead(continuation: Option<usize>) -> usize {
    HEAD + continuation.unwrap_or(0) + PAYLOAD_HEAD
}

/// Maximum number of packets in a group, at least 1, whose message has at most `message` bytes and
/// whose continuations have `len` bytes.
pub(in crate::trickles) fn most_grouped(message: usize, len: usize) -> u8 {
    let left = message.saturating_sub(HEAD + 1 + len - MAC);
    (left / (8 + MAC)).clamp(1, MAX_GROUP.into()) as u8
}

/// Appends a response with a payload, and with the `continuation` or its delta if the kind has one.
/// Groups are emitted by [`emit_group`].
pub(in crate::trickles) fn emit(
    keys: &Keys,
    (kind, head): (Kind, Head),
    continuation: &Continuation,
    payload: &Payload,
    out: &mut Vec<u8>,
) {
    emit_head(kind, head, out);
    match kind {
        Kind::AddressToken | Kind::Fresh => continuation.emit(keys, out),
        Kind::Slim => continuation.emit_delta(keys, out),
        Kind::Half | Kind::Again | Kind::Group => {}
    }
    out.extend_from_slice(&payload.position.to_be_bytes());
    out.push(payload.flags);
    put_counted(out, payload.user);
    out.extend_from_slice(payload.data);
}

/// Appends a group of packets that begins with `first`: one packet for each of at most
/// [`MAX_GROUP`] `nonces`.
pub(in crate::trickles) fn emit_group(
    keys: &Keys,
    head: Head,
    first: &Continuation,
    nonces: &[u64],
    out: &mut Vec<u8>,
) {
    emit_head(Kind::Group, head, out);
    out.push(nonces.len() as u8);
    let start = out.len();
    first.emit_body(keys.number(), out);
    let mut body = out[start..].to_vec();
    for (number, nonce) in (first.number..).zip(nonces) {
        out.extend_from_slice(&nonce.to_be_bytes());
        if first.epoch.is_point(number) {
            renumber(&mut body, (number - first.epoch.base) as u32);
            out.extend_from_slice(&keys.transport(&body));
        }
    }
}

fn emit_head(kind: Kind, head: Head, out: &mut Vec<u8>) {
    out.push(kind as u8);
    out.extend_from_slice(&head.tag.to_be_bytes());
    out.extend_from_slice(&head.generation.to_be_bytes());
    out.extend_from_slice(&head.number.to_be_bytes());
    out.extend_from_slice(&head.nonce.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trickles::continuation::tests::sample;
    use crate::trickles::keys::KeyRing;

    const HEADER: Head = Head { tag: 7, generation: 3, number: 1_007, nonce: 99 };

    #[test]
    fn a_response_round_trips() {
        let ring = KeyRing::new(1, &[1; 32]);
        let payload = Payload { position: 1 << 40, flags: 3, user: b"user", data: b"data" };
        let mut message = Vec::new();
        emit(ring.newest(), (Kind::Fresh, HEADER), &sample(1), &payload, &mut message);
        let response = Response::parse(&message).unwrap();
        assert_eq!((response.tag, response.generation, response.number), (7, 3, 1_007));
        assert_eq!(response.payload, payload);
        let Form::Fresh(bytes) = response.form else { panic!("{response:?}") };
        assert_eq!(Continuation::open(&ring, bytes), Ok(sample(1)));
        assert!((0..message.len() - 4).all(|len| Response::parse(&message[..len]).is_err()));
    }

    #[test]
    fn a_group_may_be_of_one_packet_without_a_continuation() {
        let ring = KeyRing::new(1, &[1; 32]);
        let half = Continuation { number: 1_008, ..sample(0) };
        assert!(!half.epoch.is_point(half.number));
        let mut message = Vec::new();
        emit_group(ring.newest(), HEADER, &half, &[5], &mut message);
        let Form::Group(group) = Response::parse(&message).unwrap().form else { panic!() };
        assert_eq!(group.packets().collect::<Vec<_>>(), [(1_008, 5, None)]);
    }

    #[test]
    fn a_group_expands_to_the_individual_continuations() {
        let ring = KeyRing::new(1, &[1; 32]);
        let mut message = Vec::new();
        let nonces: Vec<u64> = (0..9).collect();
        emit_group(ring.newest(), HEADER, &sample(2), &nonces, &mut message);
        let Form::Group(group) = Response::parse(&message).unwrap().form else { panic!() };
        let packets: Vec<_> = group.packets().collect();
        assert_eq!(packets.len(), 9);
        for (i, (number, nonce, bytes)) in packets.into_iter().enumerate() {
            assert_eq!((number, nonce), (1_007 + i as u64, i as u64));
            let expected = sample(2).epoch.is_point(number);
            assert_eq!(bytes.is_some(), expected);
            let opened = bytes.map(|bytes| Continuation::open(&ring, &bytes));
            let original = Continuation { number, ..sample(2) };
            assert_eq!(opened, expected.then_some(Ok(original)));
        }
    }
}
