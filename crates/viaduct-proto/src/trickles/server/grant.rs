//! Answer to a request, which the application fills.

use std::net::SocketAddr;

use super::work::Item;
use crate::trickles::bytes::{Reader, put_varint};
use crate::trickles::continuation::Continuation;
use crate::trickles::keys::KeyRing;
use crate::trickles::wire::response::{
    self, Head, Kind, Payload, continuation_len, most_grouped, overhead,
};

/// Maximum number of permits in a grant from another server.
const MAX_ITEMS: u64 = 4_096;

/// Meaning of a request for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection begins.
    Open {
        /// Number of the connection, the same in all events of the connection.
        connection: u64,
    },
    /// A connection continues.
    Request {
        /// Number of the connection.
        connection: u64,
    },
}

/// The right to send one packet, or one group of continuations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Number of the packet; of a group, that of the first packet.
    pub number: u64,
    /// Maximum total length of user continuation and data, in bytes; 0 if neither may be sent, as
    /// in a group of continuations.
    pub room: usize,
}

/// Answer to a request: permits, which the application fills in order. The grant outlives the
/// request, and may be filled by another server that has the secrets.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The event.
    pub event: Event,
    /// Number of the secret that was the newest when the grant was made. The grant's continuations
    /// can be sealed only with this secret: they contain the address hash under this secret, and
    /// slim continuations (deltas) can be expanded only with another continuation under this
    /// secret.
    pub(in crate::trickles) secret: u8,
    pub(super) work: Vec<Item>,
    pub(super) templates: [Continuation; 2],
    /// Series of the packets' nonces; without meaning for an address token, which has none.
    pub(super) series: u64,
}

impl Grant {
    /// The permits, in the order of sending. Each permit with room answers one of the request's
    /// asks, in order.
    pub fn permits(&self) -> impl ExactSizeIterator<Item = Permit> + '_ {
        self.work.iter().map(|item| Permit { number: item.number, room: item.room })
    }

    /// Number of the connection.
    pub fn connection(&self) -> u64 {
        let (Event::Open { connection } | Event::Request { connection }) = self.event;
        connection
    }

    /// Limits messages to `most` bytes, for a path whose MTU is smaller than the client assumes.
    /// The client makes a new request for bytes that do not fit; a group that does not fit is
    /// split.
    pub(in crate::trickles) fn fit(&mut self, most: usize) {
        for mut item in std::mem::take(&mut self.work) {
            let len = self.templates[item.template].len();
            let taken = match item.kind {
                Kind::AddressToken | Kind::Fresh => overhead(Some(len)),
                Kind::Slim => overhead(Some(continuation_len(len, true))),
                Kind::Half | Kind::Again => overhead(None),
                Kind::Group => {
                    self.work.extend(item.split(most_grouped(most, len)));
                    continue;
                }
            };
            item.room = item.room.min(most.saturating_sub(taken));
            self.work.push(item);
        }
    }

    /// Returns whether `ring` has the secret that seals the packets.
    pub(in crate::trickles) fn is_answerable(&self, ring: &KeyRing) -> bool {
        ring.get(self.secret).is_some()
    }

    /// Appends the message of permit `index`, with a payload whose user continuation and data fit
    /// in the permit's room. The messages of all permits must be sent, because the client needs the
    /// packets' continuations. In a group, `payload` is ignored. Returns false, with nothing
    /// appended, if `ring` lacks a secret that the packet needs. Panics if there is no such permit,
    /// or if the payload is longer than the permit's room.
    pub fn emit(&self, ring: &KeyRing, index: usize, payload: &Payload, out: &mut Vec<u8>) -> bool {
        let (item, Some(keys)) = (&self.work[index], ring.get(self.secret)) else { return false };
        let template = &self.templates[item.template];
        let continuation = Continuation { number: item.number, ..*template };
        let Continuation { tag, generation, number, .. } = continuation;
        let head = Head { tag, generation, number, nonce: item.nonce };
        if item.kind == Kind::Group {
            let Some(of_nonces) = ring.get(template.nonces) else { return false };
            let mut nonces = of_nonces.nonces(self.series);
            let nonces = (number..).take(item.count.into()).map(|number| nonces.of(number));
            response::emit_group(keys, head, &continuation, &nonces.collect::<Vec<_>>(), out);
            return true;
        }
        let len = payload.user.len() + payload.data.len();
        assert!(len <= item.room, "a payload of {len} bytes exceeds the room of {}", item.room);
        response::emit(keys, (item.kind, head), &continuation, payload, out);
        true
    }

    /// Serializes the grant for another server that has the secrets:
    ///
    /// ```text
    ///   event 1: 0 open, 1 request | templates: two continuations without their MACs, sealed
    ///   later with the secret that they name
    ///   permits, a number | each: form 1 | template 1 | number 8 | room, a number
    ///   form: 0 address token, 1 fresh, 2 half, 3 again, 4 slim, above: a group of (form - 4)
    /// ```
    ///
    /// Nonces are left out, because the other server can compute them.
    pub(in crate::trickles) fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(matches!(self.event, Event::Request { .. })));
        for template in &self.templates {
            let number = template.epoch.base;
            Continuation { number, ..*template }.emit_body(self.secret, out);
        }
        put_varint(out, self.work.len() as u64);
        for item in &self.work {
            let form = match item.kind {
                Kind::Slim => 4,
                Kind::Group => 4 + item.count,
                kind => kind as u8 - 1,
            };
            out.extend_from_slice(&[form, item.template as u8]);
            out.extend_from_slice(&item.number.to_be_bytes());
            put_varint(out, item.room as u64);
        }
    }

    /// Parses a grant for the client at `client`; `None` if it is invalid, or `ring` lacks one of
    /// its secrets.
    pub(in crate::trickles) fn read(
        ring: &KeyRing,
        client: SocketAddr,
        reader: &mut Reader,
    ) -> Option<Grant> {
        let request = reader.u8()?;
        // A continuation begins with its secret's number.
        let secret = ring.get(*reader.0.first()?)?.number();
        let mut template = || {
            let (template, len) = Continuation::peek_body(reader.0)?;
            reader.take(len)?;
            Some(template)
        };
        let templates = [template()?, template()?];
        let Continuation { connection, generation, nonces, .. } = templates[0];
        let series = ring.get(nonces)?.series(connection, generation, client);
        let event = match request {
            0 => Event::Open { connection },
            _ => Event::Request { connection },
        };
        let count = reader.varint().filter(|&count| count <= MAX_ITEMS)?;
        let work = (0..count).map(|_| item(ring, reader, &templates, series));
        let work = work.collect::<Option<_>>()?;
        Some(Grant { event, secret, work, templates, series })
    }
}

fn item(
    ring: &KeyRing,
    reader: &mut Reader,
    templates: &[Continuation; 2],
    series: u64,
) -> Option<Item> {
    let (form, template) = (reader.u8()?, usize::from(reader.u8()?));
    let number = reader.u64()?;
    let room = usize::try_from(reader.varint()?).ok()?;
    let of = templates.get(template)?;
    let keys = ring.get(of.nonces)?;
    let (kind, count) = match form {
        0..=3 => (Kind::of(form + 1)?, 1),
        4 => (Kind::Slim, 1),
        group => (Kind::Group, group - 4),
    };
    let nonce = match kind {
        Kind::AddressToken | Kind::Group => 0,
        Kind::Again => keys.nonces_again(series).of(number),
        Kind::Fresh | Kind::Half | Kind::Slim => keys.nonces(series).of(number),
    };
    let within = kind == Kind::Again || number >= of.epoch.base;
    within.then_some(Item { kind, count, number, nonce, template, room })
}
