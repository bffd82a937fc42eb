//! Answers of an application.

use bytes::Bytes;

use crate::trickles::standard::wire::MAX_STATE;
use crate::trickles::standard::{Note, Place, Reason, Valid};

/// A part of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes, shared and not copied.
    Bytes(Bytes),
    /// A range of a file, which [`Files`] reads.
    File {
        /// Number of the file, assigned by the application.
        file: u64,
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl Piece {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { length, .. } => *length,
        }
    }

    /// Returns whether the piece is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Part of the piece that starts at offset `skip`, at most `most` bytes.
    pub(super) fn cut(&self, skip: u64, most: u64) -> Piece {
        let skip = skip.min(self.len());
        let length = most.min(self.len() - skip);
        match self {
            Piece::Bytes(bytes) => {
                Piece::Bytes(bytes.slice(skip as usize..(skip + length) as usize))
            }
            Piece::File { file, offset, .. } => {
                Piece::File { file: *file, offset: offset + skip, length }
            }
        }
    }
}

/// Consecutive bytes of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Stream that the bytes belong to.
    pub stream: u32,
    /// Position of the first byte.
    pub position: u64,
    /// The bytes, in order; those beyond the packets' room are not sent.
    pub pieces: Vec<Piece>,
    /// True if the stream's output ends with these bytes (SKIP, 5.2).
    pub ends: bool,
}

impl Stretch {
    /// Part of the stretch that starts at offset `skip`, at most `most` bytes.
    pub(super) fn part(&self, skip: u64, most: u64) -> Stretch {
        let (mut before, mut left) = (skip, most);
        let cut = |piece: &Piece| {
            let part = piece.cut(before, left);
            before -= before.min(piece.len());
            left -= part.len();
            part
        };
        let pieces = self.pieces.iter().map(cut).filter(|piece| !piece.is_empty()).collect();
        let position = self.position + skip.min(self.len());
        let mut part = Stretch { position, pieces, ..*self };
        part.ends &= position + part.len() == self.position + self.len();
        part
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Returns whether the stretch is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reader of the files that pieces name.
pub trait Files {
    /// Fills `out` with the bytes of `file` at `offset`. Returns false if the bytes cannot be read;
    /// the stream is then reset.
    fn read(&mut self, file: u64, offset: u64, out: &mut [u8]) -> bool;
}

/// Reader for replies without files.
impl Files for () {
    fn read(&mut self, _file: u64, _offset: u64, _out: &mut [u8]) -> bool {
        false
    }
}

/// Answer to one event, under construction. Output that does not fit is left out, and the client
/// requests it again.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub(super) continuations: Vec<Sealed>,
    pub(super) notes: Vec<Note<'static>>,
    pub(super) users: Vec<(usize, Vec<u8>)>,
    pub(super) asked: Vec<(usize, Stretch)>,
    pub(super) brought: Option<Stretch>,
}

fn checked(state: impl Into<Vec<u8>>) -> Vec<u8> {
    let state = state.into();
    assert!(state.len() <= MAX_STATE, "a state of {} bytes exceeds {MAX_STATE}", state.len());
    state
}

#[derive(Clone, Debug)]
pub(super) enum Sealed {
    Input(Place, Vec<u8>),
    Output(Valid, Vec<u8>),
}

impl Reply {
    /// Part of this reply for a request that carries the same input as another request: only the
    /// output that no ask requested, from position `from`. The continuations are in the answer to
    /// the other request.
    pub(super) fn beyond(&self, from: u64) -> Reply {
        let rest = |all: &Stretch| all.part(from.saturating_sub(all.position), u64::MAX);
        let brought = self.brought.as_ref().map(rest);
        Reply { brought, ..Reply::default() }
    }

    /// Answers ask `index` of the request with these bytes.
    pub fn answer(&mut self, index: usize, stretch: Stretch) -> &mut Self {
        self.asked.push((index, stretch));
        self
    }

    /// Sends output that the request's input causes and that no ask has requested yet, in packets
    /// without an ask.
    pub fn bring(&mut self, stretch: Stretch) -> &mut Self {
        self.brought = Some(stretch);
        self
    }

    /// Gives the client an input continuation: the stream was read up to `place`, and the client
    /// returns `state` with the input after that place (4.2). Panics if the state is longer than
    /// [`MAX_STATE`], because no request could return it.
    pub fn input(&mut self, place: Place, state: impl Into<Vec<u8>>) -> &mut Self {
        self.continuations.push(Sealed::Input(place, checked(state)));
        self
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (&Place, &[u8])> {
        self.continuations.iter().filter_map(|continuation| match continuation {
            Sealed::Input(place, state) => Some((place, &state[..])),
            Sealed::Output(..) => None,
        })
    }

    /// Gives the client an output continuation (4.3). Panics if the state is longer than
    /// [`MAX_STATE`].
    pub fn output(&mut self, valid: Valid, state: impl Into<Vec<u8>>) -> &mut Self {
        self.continuations.push(Sealed::Output(valid, checked(state)));
        self
    }

    /// Tells the client that `position` bytes of input were read, and that no more will be.
    pub fn closed(&mut self, stream: u32, position: u64) -> &mut Self {
        self.notes.push(Note::Closed { stream, position });
        self
    }

    /// Tells the client that the stream has failed.
    pub fn reset(&mut self, stream: u32, reason: Reason) -> &mut Self {
        let note = Note::Reset { stream, reason };
        // Several asks of a stream may fail for the same reason.
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
        self
    }

    /// Number of streams that are reset because their continuation is unknown.
    pub(super) fn unknown(&self) -> u64 {
        let is = |note: &&Note| matches!(note, Note::Reset { reason: Reason::Unknown, .. });
        self.notes.iter().filter(is).count() as u64
    }

    /// Puts `user` unchanged into the packet of permit `index`, in place of standard continuations:
    /// for applications with a format of their own (msk_setucont). The application must seal
    /// `user`: [`KeyRing::seal_user`](crate::trickles::keys::KeyRing::seal_user).
    pub fn set_user(&mut self, index: usize, user: impl Into<Vec<u8>>) -> &mut Self {
        self.users.push((index, user.into()));
        self
    }
}
