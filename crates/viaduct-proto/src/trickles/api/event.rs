//! An event, and the minisocket with which the application answers it.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::ops::Range;

use crate::trickles::crypt::Channel;
use crate::trickles::keys::KeyRing;
use crate::trickles::packet::Return;
use crate::trickles::server::{Event, Grant};
use crate::trickles::standard::wire::{claimed_stream, open_place, open_valid, sealed_by};
use crate::trickles::standard::{Place, Segment, Segments, Valid};
use crate::trickles::wire::Request;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A connection begins.
    Open,
    /// A connection continues: any later request.
    Request,
    /// The client no longer needs the connection, and expects no answer.
    Close,
}

/// The right to answer one request, once. See the [module](super).
#[derive(Clone, Debug)]
pub struct Minisocket<'m> {
    pub(super) grant: Grant,
    pub(super) to: Return,
    /// The request; empty if it was released.
    pub(super) message: Cow<'m, [u8]>,
    /// Parsed properties of the request, if the request was released.
    kept: Option<RequestSummary>,
    /// Channel of the request, also used for the answers.
    pub(super) channel: Channel,
}

/// Properties of a request that determine the layout of its answer.
#[derive(Clone, Debug)]
pub(super) struct RequestSummary {
    pub(super) asks: usize,
    /// Position from which the answer contains the output that the request's input causes. `None`
    /// unless another request carries the same input.
    pub(super) beyond: Option<u64>,
    /// Index and continuation of the first ask whose continuation was not sealed with the newest
    /// secret. The answer contains this continuation, resealed with the newest secret.
    pub(super) other: Option<(usize, Vec<u8>)>,
}

impl RequestSummary {
    /// Properties of a request answered by `grant`. `other` considers only asks whose packets have
    /// room.
    fn of(message: &[u8], grant: &Grant) -> RequestSummary {
        let request = Request::parse(message);
        let roomy = grant.permits().filter(|permit| permit.room > 0);
        let groups = request.as_ref().map(|it| it.groups).unwrap_or_default();
        let other = groups.zip(roomy).enumerate().find_map(|(index, ((continuation, _), _))| {
            let by = sealed_by(continuation)?;
            (by != grant.secret).then(|| (index, continuation.to_vec()))
        });
        let (asks, data) = request.map_or((0, &[][..]), |it| (it.groups.count(), it.data));
        let beyond = match Segments::new(data).next() {
            Some(Segment::Beyond(from)) => Some(from),
            _ => None,
        };
        RequestSummary { asks, beyond, other }
    }
}

/// Bytes of an input stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'m> {
    /// Position in the stream.
    pub place: Place,
    /// Application state at this position; empty at the beginning.
    pub state: &'m [u8],
    /// The bytes.
    pub bytes: &'m [u8],
    /// True if the stream ends with these bytes.
    pub ends: bool,
}

/// Requested output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRequest<'m> {
    /// Index of the ask in the request, from 0; see [`Reply::answer`](super::Reply::answer).
    pub index: usize,
    /// Range that the continuation yields.
    pub valid: Valid,
    /// The application's state.
    pub state: &'m [u8],
    /// Requested range, as far as the packet has room; within the range of the continuation.
    pub range: Range<u64>,
}

/// Error: a continuation was not sealed with a secret of the ring, or does not yield the requested
/// range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidContinuation {
    /// The stream that the continuation claims to belong to.
    pub stream: u32,
}

impl<'m> Minisocket<'m> {
    pub(super) fn new(grant: Grant, to: Return, message: Cow<'m, [u8]>, channel: Channel) -> Self {
        Minisocket { grant, to, message, kept: None, channel }
    }

    /// Kind of the event.
    pub fn kind(&self) -> Kind {
        let closes = || self.segments().any(|segment| segment == Segment::Close);
        match self.grant.event {
            _ if closes() => Kind::Close,
            Event::Open { .. } => Kind::Open,
            Event::Request { .. } => Kind::Request,
        }
    }

    /// Number of the connection, the same in all its events.
    pub fn connection(&self) -> u64 {
        self.grant.connection()
    }

    /// Address of the client.
    pub fn client(&self) -> SocketAddr {
        self.to.client()
    }

    /// Return path of the answers.
    pub fn to(&self) -> &Return {
        &self.to
    }

    /// Limits the answers to messages of `most` bytes, for a path whose MTU is smaller than the
    /// client assumes. The client makes a new request for bytes that do not fit.
    pub fn fit(&mut self, most: usize) {
        self.grant.fit(most.saturating_sub(self.channel.overhead()));
    }

    /// Maximum bytes of user continuation and data in each packet of the answer; 0 if the packet
    /// has no room.
    pub fn room(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.grant.permits().map(|permit| permit.room)
    }

    /// Inputs in the request. An error names the stream whose continuation is invalid.
    pub fn inputs<'s>(
        &'s self,
        ring: &'s KeyRing,
    ) -> impl Iterator<Item = Result<Input<'s>, InvalidContinuation>> {
        self.segments().filter_map(|segment| match segment {
            Segment::Input { continuation, ends, bytes } => match open_place(ring, continuation) {
                Some((place, state)) => Some(Ok(Input { place, state, bytes, ends })),
                None => Some(Err(InvalidContinuation { stream: claimed_stream(continuation)? })),
            },
            Segment::Close | Segment::Beyond(_) => None,
        })
    }

    /// Output that the client requests, in the order of the packets that are to carry it. Each
    /// range is limited to the room of its packet, so the cost of an answer is bounded by its
    /// length.
    pub fn asks<'s>(
        &'s self,
        ring: &'s KeyRing,
    ) -> impl Iterator<Item = Result<OutputRequest<'s>, InvalidContinuation>> {
        let groups = Request::parse(&self.message).map(|request| request.groups);
        let asks = groups.unwrap_or_default().zip(self.room().filter(|&room| room > 0));
        asks.enumerate().filter_map(move |(index, ((continuation, ask), room))| {
            let range = ask.position..ask.position.checked_add(ask.length.into())?;
            match open_valid(ring, continuation) {
                Some((valid, state)) if valid.start <= range.start && range.end <= valid.end => {
                    let range = range.start..range.end.min(range.start + room as u64);
                    Some(Ok(OutputRequest { index, valid, state, range }))
                }
                _ => Some(Err(InvalidContinuation { stream: claimed_stream(continuation)? })),
            }
        })
    }

    /// Data of the request, for applications that do not use standard continuations.
    pub fn data(&self) -> &[u8] {
        Request::parse(&self.message).map_or(&[], |request| request.data)
    }

    /// Releases the request, but keeps the right to answer: for applications that answer later. The
    /// minisocket then needs a few hundred bytes, and no place in the queue.
    pub fn forget_request(&mut self) {
        self.kept = Some(self.summary());
        self.message = Cow::Borrowed(&[]);
    }

    /// Returns the minisocket with a copy of the request.
    #[must_use]
    pub fn into_owned(self) -> Minisocket<'static> {
        let Minisocket { grant, to, message, kept, channel } = self;
        Minisocket { grant, to, message: Cow::Owned(message.into_owned()), kept, channel }
    }

    /// Returns whether the request was encrypted. If so, its answers are encrypted, too.
    pub fn is_encrypted(&self) -> bool {
        self.channel != Channel::Clear
    }

    /// Properties that determine the layout of the answer.
    pub(super) fn summary(&self) -> RequestSummary {
        self.kept.clone().unwrap_or_else(|| RequestSummary::of(&self.message, &self.grant))
    }

    fn segments(&self) -> Segments<'_> {
        Segments::new(self.data())
    }
}
