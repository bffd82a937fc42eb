//! What a request is answered with, for the application to fill.

use super::grant::emit;
use super::work::Item;
use crate::trickles::continuation::Continuation;
use crate::trickles::keys::KeyRing;
use crate::trickles::wire::{Payload, Request};

/// What a request means to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection begins.
    Open {
        /// Its number, which all its requests bear.
        connection: u64,
    },
    /// A connection goes on.
    Request {
        /// Its number.
        connection: u64,
    },
}

/// The right to send one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The packet's number.
    pub number: u64,
    /// Most bytes of user continuation and data together; 0 where none may be sent, as in a group
    /// of continuations.
    pub room: usize,
}

/// What a request is answered with: permits, which the application fills in turn.
#[derive(Debug)]
pub struct Answer<'s, 'm> {
    /// What happened.
    pub event: Event,
    /// What was asked for.
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

    /// The permits, in the order of sending. The asks of the request belong to those that have
    /// room, one each in turn.
    pub fn permits(&self) -> impl ExactSizeIterator<Item = Permit> + 's {
        self.work.iter().map(|item| Permit { number: item.number, room: item.room })
    }

    /// What the application had sealed into a user continuation; None if it did not.
    pub fn user<'u>(&self, sealed: &'u [u8]) -> Option<&'u [u8]> {
        self.ring.open_user(sealed)
    }

    /// Appends `state` to `out` as a sealed user continuation.
    pub fn seal_user(&self, state: &[u8], out: &mut Vec<u8>) {
        self.ring.seal_user(state, out);
    }

    /// Appends the message of permit `index`, with a payload whose user continuation and data fit
    /// its room. Every permit is to be sent, for the client goes on with its continuation; one
    /// without room carries no payload, whatever is given.
    ///
    /// # Panics
    /// If there is no such permit, or the payload is longer than its room.
    pub fn emit(&self, index: usize, payload: &Payload, out: &mut Vec<u8>) {
        emit(self.ring, self.ring.newest(), &self.work[index], self.templates, payload, out);
    }
}
