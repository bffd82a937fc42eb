use super::*;
use crate::trickles::bytes::Reader;
use crate::trickles::epoch::Acks;

/// A continuation with `losses` losses.
pub(crate) fn sample(losses: u64) -> Continuation {
    let acks = Acks { delayed: true, by_request: false };
    let mut continuation = Continuation {
        mode: Mode::Survivors,
        connection: 0x0123_4567_89ab_cdef,
        generation: 3,
        tag: 77,
        epoch: Epoch { base: 1_000, start: 20, ssthresh: 20, acks },
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
fn continuations_round_trip_within_the_papers_size() {
    let ring = KeyRing::new(9, &[5; 32]);
    for m in 0..=MAX_LOSSES {
        let continuation = sample(m as u64);
        let mut bytes = Vec::new();
        continuation.emit(ring.newest(), &mut bytes);
        assert_eq!(bytes.len(), continuation.len());
        assert!(bytes.len() <= 75 + 12 * m, "{} bytes with {m} losses", bytes.len());
        assert_eq!(Continuation::open(&ring, &bytes), Ok(continuation));
    }
}

#[test]
fn a_changed_bit_or_a_truncation_is_refused() {
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
fn continuations_outlive_a_rotation_until_their_secret_is_dropped() {
    let mut ring = KeyRing::new(1, &[1; 32]);
    let mut bytes = Vec::new();
    sample(0).emit(ring.newest(), &mut bytes);
    ring.rotate(2, &[2; 32], 2);
    assert!(Continuation::open(&ring, &bytes).is_ok());
    ring.rotate(3, &[3; 32], 2);
    assert_eq!(Continuation::open(&ring, &bytes), Err(Invalid::UnknownSecret(1)));
}

#[test]
fn a_delta_expands_to_the_complete_continuation() {
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
fn a_renumbered_body_equals_the_one_that_the_server_emits() {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let continuation = sample(2);
    continuation.emit_body(1, &mut first);
    Continuation { number: 1_031, ..continuation }.emit_body(1, &mut second);
    renumber(&mut first, 31);
    assert_eq!(first, second);
}
