//! Layout of an answer: the content of each packet.
//!
//! Notes fill the packets with room in order, before data. The answer to an ask is put into that
//! ask's packet, and output that no ask requested into packets without an ask, in order. The client
//! makes a new request for bytes that do not fit in their packet.

use super::reply::{Files, Piece, Reply, Sealed, Stretch};
use crate::trickles::client::ENDS;
use crate::trickles::keys::KeyRing;
use crate::trickles::server::Grant;
use crate::trickles::standard::wire::{MAX_NOTE, emit_note, emit_place, emit_valid};
use crate::trickles::standard::{Note, Reason};
use crate::trickles::wire::{MAX_USER, Payload};

#[derive(Debug, Default)]
pub(super) struct Slot {
    room: usize,
    user: Vec<u8>,
    position: u64,
    ends: bool,
    pieces: Vec<Piece>,
    /// Note that is sent in place of the data if a file cannot be read.
    failure: Vec<u8>,
}

impl Slot {
    fn free(&self) -> u64 {
        (self.room - self.user.len()) as u64
    }

    /// Adds the bytes of `stretch` from offset `skip`, as many as fit, and returns their number.
    /// Adds none if the packet already has data, because the data of a packet are contiguous.
    fn fill(&mut self, stretch: &Stretch, skip: u64) -> u64 {
        if !self.pieces.is_empty() {
            return 0;
        }
        let part = stretch.part(skip, self.free());
        let taken = part.len();
        (self.position, self.ends, self.pieces) = (part.position, part.ends, part.pieces);
        emit_note(
            &Note::Reset { stream: stretch.stream, reason: Reason::Failed },
            &mut self.failure,
        );
        taken
    }

    /// Payload of the packet; `data` is the buffer for its bytes.
    pub(super) fn payload<'a>(
        &'a self,
        files: &mut dyn Files,
        data: &'a mut Vec<u8>,
    ) -> Payload<'a> {
        data.clear();
        let read = self.pieces.iter().all(|piece| match piece {
            Piece::Bytes(bytes) => {
                data.extend_from_slice(bytes);
                true
            }
            Piece::File { file, offset, length } => {
                let start = data.len();
                data.resize(start + *length as usize, 0);
                files.read(*file, *offset, &mut data[start..])
            }
        });
        if !read {
            let user = if self.failure.len() <= self.room { &self.failure[..] } else { &[] };
            return Payload { user, ..Payload::default() };
        }
        let flags = if self.ends { ENDS } else { 0 };
        Payload { position: self.position, flags, user: &self.user, data }
    }
}

/// Lays out the answer to a request with this number of `asks`: one packet for each permit.
/// `renewed` is the index of an ask and its resealed continuation, which is added to the ask's
/// packet if that packet has room and contains no notes.
pub(super) fn lay_out(
    ring: &KeyRing,
    grant: &Grant,
    asks: usize,
    reply: &Reply,
    renewed: Option<(usize, Vec<u8>)>,
) -> Vec<Slot> {
    let mut slots: Vec<Slot> =
        grant.permits().map(|permit| Slot { room: permit.room, ..Slot::default() }).collect();
    for (index, user) in &reply.users {
        if let Some(slot) = slots.get_mut(*index).filter(|slot| user.len() <= slot.room) {
            slot.user.clone_from(user);
        }
    }
    // The packets with room answer the asks in order, one ask each.
    let with_room: Vec<usize> =
        slots.iter().enumerate().filter(|(_, slot)| slot.room > 0).map(|(at, _)| at).collect();
    // Notes that do not fit are left out: the client repeats input that is not acknowledged.
    let mut notes = notes(ring, reply).into_iter();
    for &at in with_room.iter().filter(|_| reply.users.is_empty()) {
        let slot = &mut slots[at];
        let most = slot.room.min(MAX_USER).saturating_sub(brings(reply));
        while notes.as_slice().first().is_some_and(|note| slot.user.len() + note.len() <= most) {
            slot.user.extend(notes.next().unwrap_or_default());
        }
    }
    if let Some(stretch) = &reply.brought
        && notes.as_slice().is_empty()
    {
        bring(&mut slots, with_room.get(asks..).unwrap_or_default(), &with_room, stretch);
    }
    if let Some((index, note)) = renewed
        && let Some(&at) = with_room.get(index)
    {
        let slot = &mut slots[at];
        if slot.user.is_empty() && note.len() <= slot.room.min(MAX_USER) {
            slot.user = note;
        }
    }
    for (index, stretch) in &reply.asked {
        if let Some(&at) = with_room.get(*index) {
            slots[at].fill(stretch, 0);
        }
    }
    slots
}

/// Bytes reserved for the note that announces output without an ask.
fn brings(reply: &Reply) -> usize {
    if reply.brought.is_some() { MAX_NOTE } else { 0 }
}

fn bring(slots: &mut [Slot], free: &[usize], all: &[usize], stretch: &Stretch) {
    let Some(&first) = all.first() else { return };
    // The note is assumed to have the maximum length, because its numbers depend on the room.
    let note = slots[first].user.len() + MAX_NOTE;
    if note > slots[first].room {
        return;
    }
    let room = free.iter().map(|&at| match slots[at].free() {
        free if at == first => free - MAX_NOTE as u64,
        free => free,
    });
    let taken = room.sum::<u64>().min(stretch.len());
    let brings = Note::Brings { from: stretch.position, to: stretch.position + taken };
    emit_note(&brings, &mut slots[first].user);
    let (brought, mut sent) = (stretch.part(0, taken), 0);
    for &at in free {
        if sent == taken && (sent > 0 || !stretch.ends) {
            break;
        }
        sent += slots[at].fill(&brought, sent);
        if taken == 0 {
            break;
        }
    }
}

/// Notes of a reply. Output continuations precede input continuations, which acknowledge input. So
/// a client whose input is acknowledged has received the output continuations, too.
fn notes(ring: &KeyRing, reply: &Reply) -> Vec<Vec<u8>> {
    let is_output = |continuation: &&Sealed| matches!(continuation, Sealed::Output(..));
    let (outputs, inputs): (Vec<_>, Vec<_>) = reply.continuations.iter().partition(is_output);
    let continuations = outputs.into_iter().chain(inputs).map(|continuation| {
        let mut note = Vec::new();
        match continuation {
            Sealed::Input(place, state) => emit_place(ring, place, state, &mut note),
            Sealed::Output(valid, state) => emit_valid(ring, valid, state, &mut note),
        }
        note
    });
    let plain = reply.notes.iter().map(|plain| {
        let mut note = Vec::new();
        emit_note(plain, &mut note);
        note
    });
    continuations.chain(plain).collect()
}
