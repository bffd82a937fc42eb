//! An event, and the minisocket that it comes with.

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

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A connection begins.
    Open,
    /// A client's packet.
    Request,
    /// The client needs the connection no more. Nobody waits for an answer.
    Close,
}

/// The right to answer one request, once. See the [module](super).
#[derive(Clone, Debug)]
pub struct Minisocket<'m> {
    grant: Grant,
    to: Return,
    /// The request; empty when it was detached.
    message: Cow<'m, [u8]>,
    /// What was in it, when it was detached.
    kept: Option<Wants>,
    /// How the request came, and the answers go.
    channel: Channel,
}

/// What of a request shapes its answer.
#[derive(Clone, Debug)]
pub(super) struct Wants {
    /// How many asks it has.
    pub(super) asks: usize,
    /// From where on it wants what its input yields, if that went with another request, too.
    pub(super) beyond: Option<u64>,
    /// The first continuation that it asks with and that another secret than the newest says to have sealed, and which
    /// ask that is: who has it by the newest needs the other no more.
    pub(super) other: Option<(usize, Vec<u8>)>,
}

impl Wants {
    /// Of a request whose packets are laid out as in `grant`. Asks for which there is no room say nothing.
    fn of(message: &[u8], grant: &Grant) -> Wants {
        let request = Request::parse(message);
        let roomy = grant.permits().filter(|permit| permit.room > 0);
        let groups = request.as_ref().map(|it| it.groups).unwrap_or_default();
        let other = groups.zip(roomy).enumerate().find_map(|(index, ((continuation, _), _))| {
            let by = sealed_by(continuation)?;
            (by != grant.secret()).then(|| (index, continuation.to_vec()))
        });
        let (asks, data) = request.map_or((0, &[][..]), |it| (it.groups.count(), it.data));
        let beyond = match Segments::new(data).next() {
            Some(Segment::Beyond(from)) => Some(from),
            _ => None,
        };
        Wants { asks, beyond, other }
    }
}

/// Bytes of an input stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'m> {
    /// Where they stand in it.
    pub place: Place,
    /// The application's state there; empty at the beginning.
    pub state: &'m [u8],
    /// The bytes.
    pub bytes: &'m [u8],
    /// Whether the stream ends with them.
    pub ends: bool,
}

/// Output that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'m> {
    /// Which of the request's asks it is, from 0; see [`Reply::answer`](super::Reply::answer).
    pub index: usize,
    /// What the continuation yields.
    pub valid: Valid,
    /// The application's state.
    pub state: &'m [u8],
    /// The bytes that are asked for, of those that have room; within what the continuation yields.
    pub range: Range<u64>,
}

/// A continuation that none of the secrets has sealed, or that does not yield what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strange {
    /// The stream that it claims to be of.
    pub stream: u32,
}

impl<'m> Minisocket<'m> {
    pub(super) fn new(grant: Grant, to: Return, message: Cow<'m, [u8]>, channel: Channel) -> Self {
        Minisocket { grant, to, message, kept: None, channel }
    }

    /// What happened.
    pub fn kind(&self) -> Kind {
        let closes = || self.segments().any(|segment| segment == Segment::Close);
        match self.grant.event {
            _ if closes() => Kind::Close,
            Event::Open { .. } => Kind::Open,
            Event::Request { .. } => Kind::Request,
        }
    }

    /// The connection's number, which all its events bear.
    pub fn connection(&self) -> u64 {
        self.grant.connection()
    }

    /// Who asks.
    pub fn client(&self) -> SocketAddr {
        self.to.client()
    }

    /// Where its answers go.
    pub fn to(&self) -> &Return {
        &self.to
    }

    /// Has its answers be messages of `most` bytes, if its client allows longer ones that the way does not
    /// take. What has no room its client asks for again.
    pub fn fit(&mut self, most: usize) {
        self.grant.fit(most.saturating_sub(self.channel.overhead()));
    }

    /// Most bytes of user continuation and data in each packet of the answer; 0 where there is no room.
    pub fn room(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.grant.permits().map(|permit| permit.room)
    }

    /// What the client sends, by stream; where its continuation cannot be read, which stream that is.
    pub fn inputs<'s>(
        &'s self,
        ring: &'s KeyRing,
    ) -> impl Iterator<Item = Result<Input<'s>, Strange>> {
        self.segments().filter_map(|segment| match segment {
            Segment::Input { continuation, ends, bytes } => match open_place(ring, continuation) {
                Some((place, state)) => Some(Ok(Input { place, state, bytes, ends })),
                None => Some(Err(Strange { stream: claimed_stream(continuation)? })),
            },
            Segment::Close | Segment::Beyond(_) => None,
        })
    }

    /// What the client asks for, in the order of the packets that it is to come with: no more of each than
    /// its packet has room for, so what it costs to answer is bounded by what is sent.
    pub fn asks<'s>(
        &'s self,
        ring: &'s KeyRing,
    ) -> impl Iterator<Item = Result<Asked<'s>, Strange>> {
        let groups = Request::parse(&self.message).map(|request| request.groups);
        let asks = groups.unwrap_or_default().zip(self.room().filter(|&room| room > 0));
        asks.enumerate().filter_map(move |(index, ((continuation, ask), room))| {
            let range = ask.position..ask.position.checked_add(ask.length.into())?;
            match open_valid(ring, continuation) {
                Some((valid, state)) if valid.start <= range.start && range.end <= valid.end => {
                    let range = range.start..range.end.min(range.start + room as u64);
                    Some(Ok(Asked { index, valid, state, range }))
                }
                _ => Some(Err(Strange { stream: claimed_stream(continuation)? })),
            }
        })
    }

    /// What the client sends, where it does not use standard continuations.
    pub fn data(&self) -> &[u8] {
        Request::parse(&self.message).map_or(&[], |request| request.data)
    }

    /// Keeps the right to answer, and gives the request back: for who answers later. A detached
    /// minisocket takes a few hundred bytes, and no place in the queue.
    #[must_use]
    pub fn detach(self) -> Minisocket<'static> {
        let kept = Some(self.wants());
        let Minisocket { grant, to, channel, .. } = self;
        Minisocket { grant, to, message: Cow::Borrowed(&[]), kept, channel }
    }

    /// Gives the request back, as [`Minisocket::detach`].
    pub fn forget_request(&mut self) {
        self.kept = Some(self.wants());
        self.message = Cow::Borrowed(&[]);
    }

    /// Bytes that it has at most when it is extracted.
    pub fn sealed_len(&self) -> usize {
        self.message.len() + self.grant.written_len() + 128 + self.channel.overhead()
    }

    /// The same with a copy of the request.
    #[must_use]
    pub fn into_owned(self) -> Minisocket<'static> {
        let Minisocket { grant, to, message, kept, channel } = self;
        Minisocket { grant, to, message: Cow::Owned(message.into_owned()), kept, channel }
    }

    /// Whether it came encrypted; then so go the answers.
    pub fn is_encrypted(&self) -> bool {
        self.channel != Channel::Clear
    }

    pub(super) fn into_parts(self) -> (Grant, Return, Cow<'m, [u8]>, Channel) {
        (self.grant, self.to, self.message, self.channel)
    }

    /// What its answer is shaped by.
    pub(super) fn wants(&self) -> Wants {
        self.kept.clone().unwrap_or_else(|| Wants::of(&self.message, &self.grant))
    }

    fn segments(&self) -> Segments<'_> {
        Segments::new(self.data())
    }
}
