//! Answer to a request, to be filled by the application.

use super::grant::emit;
use super::work::Item;
use crate::trickles::continuation::Continuation;
use crate::trickles::keys::KeyRing;
use crate::trickles::wire::{Payload, Request};

/// Meaning of a request for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection begins.
    Open {
        /// Number of the connection, the same in all its requests.
        connection: u64,
    },
    /// A connection continues.
    Request {
        /// Number of the connection.
        connection: u64,
    },
}

/// The right to send one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The packet's number.
    pub number: u64,
    /// Maximum number of bytes of user continuation and data together; 0 if none may be sent,
    /// as in a group of continuations.
    pub room: usize,
}

/// Answer to a request: permits, which the application fills in order.
#[derive(Debug)]
pub struct Answer<'s, 'm> {
    /// The event.
    pub event: Event,
    /// The request, with its asks.
    pub request: Request<'m>,
    ring: &'s KeyRing,
    work: &'s [Item],
    templates: &'s [Continuation; 2],
}

impl<'s, 'm> Answer<'s, 'm> {
    pub(super) fn new(
        ring: &'s KeyRing,
        work: &'s [Item],
        templates: &'s [Continuation; 2],
        event: Event,
        request: Request<'m>,
    ) -> Self {
        Answer { event, request, ring, work, templates }
    }

    /// The permits, in the order of sending. The asks of the request belong to those with room,
    /// one each in order.
    pub fn permits(&self) -> impl ExactSizeIterator<Item = Permit> + 's {
        self.work.iter().map(|item| Permit { number: item.number, room: item.room })
    }

    /// Opens a user continuation of the application; `None` if it was not sealed with any of
    /// the secrets.
    pub fn user<'u>(&self, sealed: &'u [u8]) -> Option<&'u [u8]> {
        self.ring.open_user(sealed)
    }

    /// Appends `state` to `out` as a sealed user continuation.
    pub fn seal_user(&self, state: &[u8], out: &mut Vec<u8>) {
        self.ring.seal_user(state, out);
    }

    /// Appends the message of permit `index`, with a payload whose user continuation and data
    /// fit its room. Every permit must be sent, because the client continues with its
    /// continuation. A permit without room carries no payload, whatever is given.
    ///
    /// # Panics
    /// If there is no such permit, or the payload is longer than its room.
    pub fn emit(&self, index: usize, payload: &Payload, out: &mut Vec<u8>) {
        emit(self.ring, self.ring.newest(), &self.work[index], self.templates, payload, out);
    }
}
