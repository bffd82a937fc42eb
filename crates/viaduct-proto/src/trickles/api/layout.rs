//! Which packet carries what.
//!
//! Notes go into the first packet that has room for them, before data; the ask of a packet into that
//! packet; what is brought into those that no ask takes, in order. What an ask's packet has no room for
//! its client wants again.

use super::reply::{Files, Piece, Reply, Sealed, Stretch};
use crate::trickles::client::ENDS;
use crate::trickles::keys::KeyRing;
use crate::trickles::server::Grant;
use crate::trickles::standard::wire::{MOST_NOTE, emit_note, emit_place, emit_valid};
use crate::trickles::standard::{Note, Reason};
use crate::trickles::wire::{MOST_USER, Payload};

/// One packet of an answer.
#[derive(Debug, Default)]
pub(super) struct Slot {
    room: usize,
    user: Vec<u8>,
    position: u64,
    ends: bool,
    pieces: Vec<Piece>,
    /// What is sent if a file cannot be read.
    failure: Vec<u8>,
}

impl Slot {
    fn free(&self) -> u64 {
        (self.room - self.user.len()) as u64
    }

    /// Takes the bytes of `stretch` from `skip` on that fit; how many. 0 if it has others: a packet has bytes of
    /// one place.
    fn fill(&mut self, stretch: &Stretch, skip: u64) -> u64 {
        let (mut skip, mut taken) = (skip, 0);
        if !self.pieces.is_empty() {
            return 0;
        }
        self.position = stretch.position + skip;
        for piece in &stretch.pieces {
            let part = piece.cut(skip, self.free() - taken);
            skip -= skip.min(piece.len());
            taken += part.len();
            if !part.is_empty() {
                self.pieces.push(part);
            }
        }
        self.ends = stretch.ends && self.position + taken == stretch.position + stretch.len();
        emit_note(
            &Note::Reset { stream: stretch.stream, reason: Reason::Failed },
            &mut self.failure,
        );
        taken
    }

    /// Its payload; `data` holds the bytes.
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

/// The packets of an answer to a request with so many `asks`, one for each permit. `renewed` goes with the packet of
/// an ask, if there is room.
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
    // What an ask brings comes with the packet that has room for it, one each in turn.
    let with_room: Vec<usize> =
        slots.iter().enumerate().filter(|(_, slot)| slot.room > 0).map(|(at, _)| at).collect();
    // Of what does not fit the end is left out: its client sends again what it hears nothing of.
    let mut notes = notes(ring, reply).into_iter();
    for &at in with_room.iter().filter(|_| reply.users.is_empty()) {
        let slot = &mut slots[at];
        let most = slot.room.min(MOST_USER).saturating_sub(brings(reply));
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
        if slot.user.is_empty() && note.len() <= slot.room.min(MOST_USER) {
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

/// Bytes that are kept for the note of what is brought.
fn brings(reply: &Reply) -> usize {
    if reply.brought.is_some() { MOST_NOTE } else { 0 }
}

fn bring(slots: &mut [Slot], free: &[usize], all: &[usize], stretch: &Stretch) {
    let Some(&first) = all.first() else { return };
    // The note is about as long as any: its numbers are known when the room is.
    let note = slots[first].user.len() + MOST_NOTE;
    if note > slots[first].room {
        return;
    }
    let room = free.iter().map(|&at| match slots[at].free() {
        free if at == first => free - MOST_NOTE as u64,
        free => free,
    });
    let taken = room.sum::<u64>().min(stretch.len());
    let brings = Note::Brings { from: stretch.position, to: stretch.position + taken };
    let mut user = std::mem::take(&mut slots[first].user);
    emit_note(&brings, &mut user);
    slots[first].user = user;
    let mut sent = 0;
    let cut = Stretch { pieces: Vec::new(), ..stretch.clone() };
    for &at in free {
        if sent == taken && (sent > 0 || !stretch.ends) {
            break;
        }
        let left = Stretch { pieces: within(&stretch.pieces, taken), ..cut.clone() };
        let ends = taken == stretch.len() && stretch.ends;
        sent += slots[at].fill(&Stretch { ends, ..left }, sent);
        if taken == 0 {
            break;
        }
    }
}

/// The first `most` bytes of these.
fn within(pieces: &[Piece], most: u64) -> Vec<Piece> {
    let mut left = most;
    let cut = |piece: &Piece| {
        let part = piece.cut(0, left);
        left -= part.len();
        part
    };
    pieces.iter().map(cut).filter(|piece| !piece.is_empty()).collect()
}

/// The notes of a reply, each by itself: what its inputs yield comes before what says that they were consumed, so
/// that a client that has the latter lacks nothing.
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
