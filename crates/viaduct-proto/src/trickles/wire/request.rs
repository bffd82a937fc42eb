//! Requests: messages of a client.

use super::{MAX_ASKS, MAX_ATTEMPTS, MAX_USER};
use crate::trickles::bytes::{Reader, put_counted, put_varint};
use crate::trickles::continuation::Continuation;
use crate::trickles::plan::Tail;
use crate::trickles::proof::Proof;

const OPEN: u8 = 1;
const STEP: u8 = 2;
const RESTART: u8 = 3;

const TAIL: u8 = 1;
const REPAIRED: u8 = 2;

/// A parsed request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Kind of the request.
    pub kind: Kind<'a>,
    /// Number of requests that the client has sent before this one; wraps around.
    pub count: u32,
    /// Byte ranges that the client asks for.
    pub groups: Groups<'a>,
    /// Data for the application.
    pub data: &'a [u8],
    /// Length of the message in bytes.
    pub len: usize,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// First request of a connection.
    Open {
        /// Token chosen by the client; its lower half is in every response.
        token: u64,
        /// Maximum length of messages that the client can receive, in bytes.
        message: u16,
    },
    /// Request of a trickle.
    Step(Returned<'a>),
    /// Restart after a timeout, or after a silence of the client.
    Restart {
        /// Number of the attempt with this continuation, from 1 to [`MAX_ATTEMPTS`].
        attempt: u8,
        /// Continuation and proof.
        returned: Returned<'a>,
    },
}

/// A returned continuation, with the client's additional information.
#[derive(Clone, Copy, Debug)]
pub struct Returned<'a> {
    /// Bytes of the transport continuation, not verified yet.
    pub continuation: &'a [u8],
    /// Losses at the end of the previous epoch.
    pub tail: Option<Tail>,
    /// Xor of the nonces of the repairs that the continuation waits for; `None` if a repair is
    /// missing, or if the continuation waits for no repairs.
    pub repaired: Option<u64>,
    /// Proof of which packets of the epoch have arrived.
    pub proof: Proof<'a>,
}

/// A byte range that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Position in the stream.
    pub position: u64,
    /// Length in bytes.
    pub length: u32,
}

/// Error: the message is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is not a request: it ends early, or a field is out of range")]
pub struct InvalidRequest;

/// Returns whether the first byte is that of a connection's first request.
pub(in crate::trickles) fn is_open(message: &[u8]) -> bool {
    message.first() == Some(&OPEN)
}

impl<'a> Request<'a> {
    /// Parses a request. Errors: [`InvalidRequest`].
    pub fn parse(message: &'a [u8]) -> Result<Self, InvalidRequest> {
        read(message).ok_or(InvalidRequest)
    }
}

fn read(message: &[u8]) -> Option<Request<'_>> {
    let mut reader = Reader(message);
    let (kind, count) = (reader.u8()?, reader.u32()?);
    let kind = match kind {
        OPEN => Kind::Open { token: reader.u64()?, message: reader.u16()? },
        STEP => Kind::Step(returned(&mut reader)?),
        RESTART => {
            let attempt = reader.u8().filter(|attempt| (1..=MAX_ATTEMPTS).contains(attempt))?;
            Kind::Restart { attempt, returned: returned(&mut reader)? }
        }
        _ => return None,
    };
    if !matches!(kind, Kind::Step(_)) {
        let _padding = reader.counted()?;
    }
    let groups = Groups::read(&mut reader)?;
    Some(Request { kind, count, groups, data: reader.0, len: message.len() })
}

fn returned<'a>(reader: &mut Reader<'a>) -> Option<Returned<'a>> {
    let (_, len) = Continuation::peek(reader.0).ok()?;
    let continuation = reader.take(len)?;
    let flags = reader.u8()?;
    if flags & !(TAIL | REPAIRED) != 0 {
        return None;
    }
    let tail = if flags & TAIL != 0 { Some(tail(reader)?) } else { None };
    let repaired = if flags & REPAIRED != 0 { Some(reader.u64()?) } else { None };
    Some(Returned { continuation, tail, repaired, proof: Proof::read(reader)? })
}

fn tail(reader: &mut Reader) -> Option<Tail> {
    let [lost, unanswered] = [reader.varint()?, reader.varint()?];
    Some(Tail { lost: lost.try_into().ok()?, unanswered: unanswered.try_into().ok()? })
}

/// Asks grouped by user continuation; an iterator over (user continuation, ask).
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a> {
    bytes: &'a [u8],
    groups: u64,
    user: &'a [u8],
    asks: u64,
}

impl<'a> Groups<'a> {
    /// Parses groups from `reader`, and validates all of them.
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let groups = reader.varint()?;
        let bytes = reader.0;
        let mut total: u64 = 0;
        for _ in 0..groups {
            let user = reader.counted()?;
            let asks = reader.varint()?;
            // The number is not authenticated, so it can have any value.
            total = total.saturating_add(asks);
            if user.len() > MAX_USER || asks == 0 || total > MAX_ASKS as u64 {
                return None;
            }
            for _ in 0..asks {
                let (position, length) = (reader.varint()?, reader.varint()?);
                position.checked_add(length).filter(|_| length <= u32::MAX.into())?;
            }
        }
        Some(Groups { bytes, groups, user: &[], asks: 0 })
    }
}

impl<'a> Iterator for Groups<'a> {
    type Item = (&'a [u8], Ask);

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = Reader(self.bytes);
        if self.asks == 0 {
            self.groups = self.groups.checked_sub(1)?;
            self.user = reader.counted()?;
            self.asks = reader.varint()?;
        }
        self.asks -= 1;
        let (position, length) = (reader.varint()?, reader.varint()?);
        self.bytes = reader.0;
        Some((self.user, Ask { position, length: length.try_into().ok()? }))
    }
}

/// Appends the head of a first request.
pub fn emit_open(count: u32, token: u64, message: u16, out: &mut Vec<u8>) {
    out.push(OPEN);
    out.extend_from_slice(&count.to_be_bytes());
    out.extend_from_slice(&token.to_be_bytes());
    out.extend_from_slice(&message.to_be_bytes());
}

/// Appends the head of a later request: a restart if `attempt` is not 0. `proof` is in the
/// format of [`emit`](crate::trickles::proof::emit).
pub fn emit_returned(
    count: u32,
    attempt: u8,
    continuation: &[u8],
    tail: Option<Tail>,
    repaired: Option<u64>,
    proof: &[u8],
    out: &mut Vec<u8>,
) {
    out.push(if attempt == 0 { STEP } else { RESTART });
    out.extend_from_slice(&count.to_be_bytes());
    if attempt > 0 {
        out.push(attempt);
    }
    out.extend_from_slice(continuation);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    out.push(flag(tail.is_some(), TAIL) | flag(repaired.is_some(), REPAIRED));
    if let Some(tail) = tail {
        put_varint(out, tail.lost.into());
        put_varint(out, tail.unanswered.into());
    }
    if let Some(sum) = repaired {
        out.extend_from_slice(&sum.to_be_bytes());
    }
    out.extend_from_slice(proof);
}

/// Appends the padding that precedes the asks of a first request and of a restart.
pub fn emit_padding(padding: usize, out: &mut Vec<u8>) {
    put_varint(out, padding as u64);
    out.resize(out.len() + padding, 0);
}

/// Appends groups of asks, each with its user continuation.
pub fn emit_groups<'a>(
    groups: impl ExactSizeIterator<Item = (&'a [u8], &'a [Ask])>,
    out: &mut Vec<u8>,
) {
    put_varint(out, groups.len() as u64);
    for (user, asks) in groups {
        put_counted(out, user);
        put_varint(out, asks.len() as u64);
        for ask in asks {
            put_varint(out, ask.position);
            put_varint(out, ask.length.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trickles::continuation::tests::sample;
    use crate::trickles::keys::KeyRing;
    use crate::trickles::proof::{self, Range};

    #[test]
    fn requests_with_too_many_asks_are_refused() {
        for counts in [&[u64::MAX][..], &[1, u64::MAX], &[1, u64::MAX - 1], &[MAX_ASKS as u64, 1]] {
            let mut message = Vec::new();
            emit_open(0, 7, 1_400, &mut message);
            emit_padding(0, &mut message);
            put_varint(&mut message, counts.len() as u64);
            for &asks in counts {
                put_counted(&mut message, b"user");
                put_varint(&mut message, asks);
                // As many as fit in a packet.
                (0..asks.min(100)).for_each(|_| message.extend_from_slice(&[0, 0]));
            }
            assert!(Request::parse(&message).is_err(), "{counts:?}");
        }
    }

    #[test]
    fn a_request_round_trips() {
        let ring = KeyRing::new(1, &[1; 32]);
        let (mut continuation, mut proof, mut message) = (Vec::new(), Vec::new(), Vec::new());
        sample(1).emit(ring.newest(), &mut continuation);
        proof::emit(1_000, &[Range { first: 1_000, last: 1_007, sum: 5 }], &mut proof);
        let tail = Some(Tail { lost: 1, unanswered: 2 });
        emit_returned(7, 2, &continuation, tail, Some(9), &proof, &mut message);
        emit_padding(30, &mut message);
        let asks = [Ask { position: 1 << 40, length: 1_000 }, Ask { position: 3, length: 0 }];
        let groups = [(&b"a"[..], &asks[..]), (&b""[..], &asks[..1])];
        emit_groups(groups.into_iter(), &mut message);
        message.extend_from_slice(b"data");

        let request = Request::parse(&message).unwrap();
        assert_eq!((request.count, request.data), (7, &b"data"[..]));
        let read: Vec<_> = request.groups.collect();
        assert_eq!(read, [(&b"a"[..], asks[0]), (&b"a"[..], asks[1]), (&b""[..], asks[0])]);
        let Kind::Restart { attempt: 2, returned } = request.kind else { panic!("{request:?}") };
        assert_eq!((returned.tail, returned.repaired), (tail, Some(9)));
        assert_eq!(returned.continuation, continuation);
        // A message that is cut anywhere before the data is invalid.
        assert!((0..message.len() - 4).all(|len| Request::parse(&message[..len]).is_err()));
    }
}
