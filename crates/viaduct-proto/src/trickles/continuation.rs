//! The transport continuation: what TCP would keep of a connection at the server (2.1), in
//! 70 + 12 m bytes where m losses wait for their repair. The paper's has 75 + 12 m.
//!
//! ```text
//!   0  number of the secret 1
//!   1  mode 2 bits | delayed 1 | by request 1 | losses 4
//!   2  connection 8
//!  10  generation 2          counts restarts
//!  12  tag 4                 chosen by the client; in every response
//!  16  base 8                the piece: TCPBase
//!  24  number 4              of the packet, above the base; of a ticket: which attempt it answers
//!  28  start 2               startCwnd
//!  30  ssthresh 2
//!  32  timestamp 6           microseconds of the server's clock
//!  38  smoothed RTT 4        microseconds; 0: not known
//!  42  secret of the nonces 1
//!  43  address 8             a keyed hash of the client's
//!  51  longest message 2     of a response
//!  53  delta 1 bit | burst limit 7
//!  54  losses, each: first 8 | count 4
//!      code 16               AES-CMAC of all before it
//! ```

use super::bytes::{Reader, put_u48};
use super::keys::{KeyRing, Keys, MAC};
use super::piece::{Acks, Piece};
use super::plan::Run;

/// Bytes of a continuation without its losses.
pub const CONTINUATION: usize = 54 + MAC;
/// Bytes that each loss adds.
pub const LOSS: usize = 12;
/// Most losses in one.
pub const MOST_LOSSES: usize = 15;
/// Where its number stands.
const NUMBER_AT: usize = 24;
/// Where its timestamp and its RTT stand.
const TIME_AT: usize = 32;

/// What a continuation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A ticket: its echo shows that the client is where it says, and begins a piece.
    Ticket,
    /// A packet of a piece that began anew.
    Begun,
    /// A packet of a piece that began with the survivors of the one before it.
    Survivors,
}

/// Losses that wait for their repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    runs: [Run; MOST_LOSSES],
    count: u8,
}

impl Losses {
    /// The losses, ascending.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..usize::from(self.count)]
    }

    /// Adds one. Beyond [`MOST_LOSSES`] they are not watched: whoever has so many has shown it, and
    /// that the first of them are repaired is shown later.
    pub fn push(&mut self, run: Run) {
        if let Some(free) = self.runs.get_mut(usize::from(self.count)) {
            *free = run;
            self.count += 1;
        }
    }
}

/// A transport continuation. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// What it is for.
    pub mode: Mode,
    /// Which connection.
    pub connection: u64,
    /// How often the connection was restarted; wraps.
    pub generation: u16,
    /// What responses to this client carry.
    pub tag: u32,
    /// The loss-free piece that the packet belongs to.
    pub piece: Piece,
    /// The packet's number, at or above the piece's base.
    pub number: u64,
    /// When it was made, in microseconds of the server's clock; below 2^48.
    pub timestamp: u64,
    /// The smoothed round trip, in microseconds; 0 if none was measured.
    pub rtt: u32,
    /// Number of the secret that the connection's nonces are made with.
    pub nonces: u8,
    /// The client's address, as [`Keys`] hash it.
    pub address: u64,
    /// Longest message of a response, in bytes.
    pub message: u16,
    /// Most lost packets that one request has sent again; below 128.
    pub burst: u8,
    /// Whether the server leaves out of its packets what the client has of their piece (5.3).
    pub delta: bool,
    /// Losses whose repair the client has not yet shown.
    pub losses: Losses,
}

/// A continuation that is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Too short, or fields out of range.
    #[error("these bytes are no transport continuation")]
    Malformed,
    /// The secret is not, or no longer, in the ring.
    #[error("the continuation is of secret {0}, which is not in the ring: open a new connection")]
    UnknownSecret(u8),
    /// The code does not fit.
    #[error("the continuation was altered, or made with another secret")]
    Forged,
}

impl Continuation {
    /// Bytes of this continuation on the wire.
    pub fn len(&self) -> usize {
        CONTINUATION + LOSS * self.losses.runs().len()
    }

    /// Always false: a continuation has its fixed part.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Appends it to `out`, authenticated.
    pub fn emit(&self, keys: &Keys, out: &mut Vec<u8>) {
        let start = out.len();
        self.emit_body(keys, out);
        let mac = keys.transport(&out[start..]);
        out.extend_from_slice(&mac);
    }

    /// Appends it without its code.
    pub(super) fn emit_body(&self, keys: &Keys, out: &mut Vec<u8>) {
        let acks =
            u8::from(self.piece.acks.delayed) << 5 | u8::from(self.piece.acks.by_request) << 4;
        let offset = u32::try_from(self.number - self.piece.base).unwrap_or(u32::MAX);
        out.extend_from_slice(&[keys.number(), (self.mode as u8) << 6 | acks | self.losses.count]);
        out.extend_from_slice(&self.connection.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.tag.to_be_bytes());
        out.extend_from_slice(&self.piece.base.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&self.piece.start.to_be_bytes());
        out.extend_from_slice(&self.piece.ssthresh.to_be_bytes());
        put_u48(out, self.timestamp);
        out.extend_from_slice(&self.rtt.to_be_bytes());
        out.push(self.nonces);
        out.extend_from_slice(&self.address.to_be_bytes());
        out.extend_from_slice(&self.message.to_be_bytes());
        out.push(u8::from(self.delta) << 7 | self.burst & 0x7f);
        for run in self.losses.runs() {
            out.extend_from_slice(&run.first.to_be_bytes());
            out.extend_from_slice(&run.count.to_be_bytes());
        }
    }

    /// Reads the fields without checking the code, as a client does, and how long it is.
    ///
    /// # Errors
    /// [`Invalid::Malformed`].
    pub fn peek(bytes: &[u8]) -> Result<(Continuation, usize), Invalid> {
        let (continuation, _) = Continuation::peek_body(bytes).ok_or(Invalid::Malformed)?;
        let len = continuation.len();
        if bytes.len() < len { Err(Invalid::Malformed) } else { Ok((continuation, len)) }
    }

    /// Reads the fields of one without its code, and how long they are.
    pub(super) fn peek_body(bytes: &[u8]) -> Option<(Continuation, usize)> {
        let mut reader = Reader(bytes);
        let continuation = read(&mut reader)?;
        Some((continuation, bytes.len() - reader.0.len()))
    }

    /// Reads one that begins `bytes`, and checks that a replica with this ring has made it.
    ///
    /// # Errors
    /// Any [`Invalid`].
    pub fn open(ring: &KeyRing, bytes: &[u8]) -> Result<Continuation, Invalid> {
        let (continuation, len) = Continuation::peek(bytes)?;
        let keys = ring.get(bytes[0]).ok_or(Invalid::UnknownSecret(bytes[0]))?;
        let (body, mac) = bytes[..len].split_last_chunk::<MAC>().ok_or(Invalid::Malformed)?;
        if keys.is_transport(body, mac) { Ok(continuation) } else { Err(Invalid::Forged) }
    }
}

/// Puts another packet's number into the body of a continuation: `offset` above the base.
pub(super) fn renumber(body: &mut [u8], offset: u32) {
    if let Some(place) = body.get_mut(NUMBER_AT..NUMBER_AT + 4) {
        place.copy_from_slice(&offset.to_be_bytes());
    }
}

/// What of a continuation a client cannot know that has another of its piece (5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'a>(&'a [u8]);

/// Bytes of a [`Delta`]: number of the secret 1, timestamp 6, smoothed RTT 4, code 16.
pub const DELTA: usize = 1 + 6 + 4 + MAC;

impl<'a> Delta<'a> {
    /// Takes one off `reader`.
    pub(super) fn read(reader: &mut Reader<'a>) -> Option<Self> {
        reader.take(DELTA).map(Delta)
    }

    /// Number of the secret.
    pub(super) fn secret(self) -> u8 {
        self.0[0]
    }

    /// The continuation `offset` above the base of the piece that `model` is of: its bytes.
    pub(super) fn on(self, model: &[u8], offset: u32) -> Option<Vec<u8>> {
        let mut bytes = model.get(..CONTINUATION - MAC)?.to_vec();
        bytes[0] = self.0[0];
        // No losses wait for their repair.
        bytes[1] &= 0xf0;
        renumber(&mut bytes, offset);
        bytes[TIME_AT..TIME_AT + 10].copy_from_slice(&self.0[1..11]);
        bytes.extend_from_slice(&self.0[11..]);
        Some(bytes)
    }
}

impl Continuation {
    /// Appends what is left of it for a client that has another of its piece. No losses wait.
    pub(super) fn emit_delta(&self, keys: &Keys, out: &mut Vec<u8>) {
        let start = out.len();
        self.emit_body(keys, out);
        let mac = keys.transport(&out[start..]);
        out.truncate(start);
        out.push(keys.number());
        put_u48(out, self.timestamp);
        out.extend_from_slice(&self.rtt.to_be_bytes());
        out.extend_from_slice(&mac);
    }
}

fn read(from: &mut Reader) -> Option<Continuation> {
    let _secret = from.u8()?;
    let flags = from.u8()?;
    let acks = Acks { delayed: flags & 0x20 != 0, by_request: flags & 0x10 != 0 };
    let mode = [Mode::Ticket, Mode::Begun, Mode::Survivors].into_iter().nth((flags >> 6).into())?;
    let (connection, generation, tag) = (from.u64()?, from.u16()?, from.u32()?);
    let (base, offset) = (from.u64()?, from.u32()?);
    let (start, ssthresh) = (from.u16()?, from.u16()?);
    // Numbers stay far from their end, so that sums of them do not overflow.
    if base == 0 || base >= 1 << 62 || start == 0 {
        return None;
    }
    let mut continuation = Continuation {
        mode,
        connection,
        generation,
        tag,
        piece: Piece { base, start, ssthresh, acks },
        number: base + u64::from(offset),
        timestamp: from.u48()?,
        rtt: from.u32()?,
        nonces: from.u8()?,
        address: from.u64()?,
        message: from.u16()?,
        burst: 0,
        delta: false,
        losses: Losses::default(),
    };
    let last = from.u8()?;
    (continuation.delta, continuation.burst) = (last & 0x80 != 0, last & 0x7f);
    for _ in 0..flags & 0x0f {
        let run = Run { first: from.u64()?, count: from.u32()? };
        let below = run.count > 0 && run.first > 0 && run.first < base;
        if !below || base - run.first < run.count.into() {
            return None;
        }
        continuation.losses.push(run);
    }
    Some(continuation)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One with `losses` losses.
    pub(crate) fn sample(losses: u64) -> Continuation {
        let acks = Acks { delayed: true, by_request: false };
        let mut continuation = Continuation {
            mode: Mode::Survivors,
            connection: 0x0123_4567_89ab_cdef,
            generation: 3,
            tag: 77,
            piece: Piece { base: 1_000, start: 20, ssthresh: 20, acks },
            number: 1_007,
            timestamp: 0x1234_5678_9abc,
            rtt: 50_000,
            nonces: 1,
            address: 42,
            message: 1_400,
            burst: 8,
            delta: true,
            losses: Losses::default(),
        };
        for i in 0..losses {
            continuation.losses.push(Run { first: 900 + 5 * i, count: 2 });
        }
        continuation
    }

    #[test]
    fn it_stays_within_the_papers_size_and_comes_back() {
        let ring = KeyRing::new(9, &[5; 32]);
        for m in 0..=MOST_LOSSES {
            let continuation = sample(m as u64);
            let mut bytes = Vec::new();
            continuation.emit(ring.newest(), &mut bytes);
            assert_eq!(bytes.len(), continuation.len());
            assert!(bytes.len() <= 75 + 12 * m, "{} bytes with {m} losses", bytes.len());
            assert_eq!(Continuation::open(&ring, &bytes), Ok(continuation));
        }
    }

    #[test]
    fn no_bit_can_be_changed() {
        let ring = KeyRing::new(9, &[5; 32]);
        let mut bytes = Vec::new();
        sample(1).emit(ring.newest(), &mut bytes);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Continuation::open(&ring, &bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert!(Continuation::open(&ring, &bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_rotation_breaks_none_until_its_secret_is_dropped() {
        let mut ring = KeyRing::new(1, &[1; 32]);
        let mut bytes = Vec::new();
        sample(0).emit(ring.newest(), &mut bytes);
        ring.rotate(2, &[2; 32], 2);
        assert!(Continuation::open(&ring, &bytes).is_ok());
        ring.rotate(3, &[3; 32], 2);
        assert_eq!(Continuation::open(&ring, &bytes), Err(Invalid::UnknownSecret(1)));
    }

    #[test]
    fn a_delta_on_another_of_its_piece_is_the_whole() {
        let ring = KeyRing::new(1, &[1; 32]);
        let (mut model, mut delta, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        sample(2).emit(ring.newest(), &mut model);
        let next =
            Continuation { number: 1_031, timestamp: 0x1234_5678_9fff, rtt: 51_000, ..sample(0) };
        next.emit_delta(ring.newest(), &mut delta);
        next.emit(ring.newest(), &mut whole);
        assert_eq!((delta.len(), whole.len()), (DELTA, CONTINUATION));
        let read = Delta::read(&mut Reader(&delta)).unwrap();
        assert_eq!(read.on(&model, 31), Some(whole));
        assert_eq!(read.on(&model[..40], 31), None);
    }

    #[test]
    fn renumbering_a_body_is_what_the_server_would_have_made() {
        let ring = KeyRing::new(1, &[1; 32]);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let continuation = sample(2);
        continuation.emit_body(ring.newest(), &mut first);
        Continuation { number: 1_031, ..continuation }.emit_body(ring.newest(), &mut second);
        renumber(&mut first, 31);
        assert_eq!(first, second);
    }
}
