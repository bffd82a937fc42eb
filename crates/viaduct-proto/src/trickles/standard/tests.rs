use super::wire::*;
use super::*;
use crate::rng::Rng;
use crate::trickles::keys::KeyRing;

fn ring() -> KeyRing {
    KeyRing::new(1, &[1; 32])
}

const PLACE: Place = Place { stream: 7, start: 1 << 50, reserve: 1 << 30, position: 1_234 };
const VALID: Valid = Valid { stream: 7, start: 1 << 50, end: 1 << 51, last: true, leave: 40 };

#[test]
fn notes_and_segments_round_trip() {
    let ring = ring();
    let plain = [
        Note::Closed { stream: 7, position: 99 },
        Note::Reset { stream: 7, reason: Reason::Changed },
        Note::Brings { from: 5, to: 500 },
    ];
    let mut user = Vec::new();
    emit_place(&ring, &PLACE, b"digest", &mut user);
    emit_valid(&ring, &VALID, b"inode", &mut user);
    plain.iter().for_each(|note| emit_note(note, &mut user));
    let notes: Vec<Note> = Notes::new(&user).collect();
    assert_eq!(notes[2..], plain);
    let Note::Input(place, input) = notes[0] else { panic!("{notes:?}") };
    let Note::Output(valid, output) = notes[1] else { panic!("{notes:?}") };
    assert_eq!((place, valid), (PLACE, VALID));
    assert_eq!(open_place(&ring, input), Some((PLACE, &b"digest"[..])));
    assert_eq!(open_valid(&ring, output), Some((VALID, &b"inode"[..])));
    assert_eq!(claimed_stream(output), Some(7));
    // Neither kind can be mistaken for the other.
    assert!(open_place(&ring, output).is_none() && open_valid(&ring, input).is_none());

    let mut data = Vec::new();
    emit_segment(input, true, b"bytes", &mut data);
    emit_close(&mut data);
    let segments: Vec<Segment> = Segments::new(&data).collect();
    let input = Segment::Input { continuation: input, ends: true, bytes: b"bytes" };
    assert_eq!(segments, [input, Segment::Close]);
}

#[test]
fn only_the_first_continuation_of_a_stream_needs_no_seal() {
    let ring = ring();
    let first = Place { position: 0, ..PLACE };
    assert_eq!(open_place(&ring, &first_place(&first)), Some((first, &b""[..])));
    assert_eq!(open_place(&ring, &first_place(&PLACE)), None);
}

#[test]
fn a_changed_continuation_is_refused() {
    let ring = ring();
    let mut user = Vec::new();
    emit_place(&ring, &PLACE, b"digest", &mut user);
    let mut bytes = user[1..].to_vec();
    for i in 0..bytes.len() {
        for bit in 0..8 {
            bytes[i] ^= 1 << bit;
            assert_eq!(open_place(&ring, &bytes), None, "byte {i}");
            bytes[i] ^= 1 << bit;
        }
    }
    assert!((1..bytes.len()).all(|len| open_place(&ring, &bytes[..len]).is_none()));
}

#[test]
fn parsing_ends_at_garbage() {
    let mut rng = Rng::from_seed(5);
    for _ in 0..20_000 {
        let mut bytes = vec![0; rng.below(40) as usize];
        rng.fill(&mut bytes);
        assert!(Segments::new(&bytes).count() <= bytes.len());
        assert!(Notes::new(&bytes).count() <= bytes.len());
        let _ = (open_place(&ring(), &bytes), open_valid(&ring(), &bytes));
    }
}
