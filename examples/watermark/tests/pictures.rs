//! Marked files: a decoder accepts them, the mark is read back, and any range is produced from a
//! checkpoint alone.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use common::{SECRET, decoded, picture, psnr};
use viaduct_proto::rng::Rng;
use viaduct_watermark::jpeg::Jpeg;
use viaduct_watermark::mark::Key;
use viaduct_watermark::picture::{Checkpoint, Picture};
use viaduct_watermark::state::State;

#[test]
fn a_decoder_accepts_marked_files_and_their_marks_are_read_back() {
    let key = Key::new(&SECRET);
    let kinds: [&[&str]; 5] = [
        &["-quality", "75"],
        &["-quality", "90", "-optimize"],
        &["-quality", "60", "-grayscale"],
        &["-quality", "85", "-sample", "1x1"],
        &["-quality", "95", "-sample", "2x1"],
    ];
    for kind in kinds {
        // A size that leaves partial units at the edges.
        let Some(file) = picture(397, 283, kind) else { return };
        let source = Picture::open(&file).unwrap();
        let marked: Vec<Vec<u8>> =
            [1, 4711, u32::MAX].map(|client| source.whole(&key, client)).to_vec();
        for (client, marked) in [1, 4711, u32::MAX].into_iter().zip(&marked) {
            let reading = key.read(&Jpeg::parse(marked).unwrap()).unwrap();
            assert_eq!(reading.client, Some(client), "{kind:?}: {reading:?}");
            // A table optimised for its picture lacks some codes. Blocks that would need them carry
            // no bit.
            let least = if kind.contains(&"-optimize") { 0.8 } else { 0.95 };
            assert!(reading.agree > least, "{kind:?}: {reading:?}");
            let alike = psnr(&decoded(&file), &decoded(marked));
            assert!(alike > 30.0, "{kind:?}: {alike} dB");
            assert_ne!(marked.len(), file.len(), "codes have become longer, {kind:?}");
        }
        assert!(marked[0] != marked[1] && marked[1] != marked[2]);
        let plain = key.read(&Jpeg::parse(&file).unwrap()).unwrap();
        assert!(plain.client.is_none(), "{plain:?}");
        let other = Key::new(&[1; 32]).read(&Jpeg::parse(&marked[0]).unwrap()).unwrap();
        assert!(other.client.is_none() && other.agree < 0.7, "{other:?}");
    }
}

#[test]
fn any_range_is_the_same_from_the_checkpoints_of_any_replica() {
    let Some(file) = picture(640, 480, &["-quality", "92"]) else { return };
    let (key, client) = (Key::new(&SECRET), 4711);
    let replicas = [Picture::open(&file).unwrap(), Picture::open(&file).unwrap()];
    let whole = replicas[0].whole(&key, client);
    let mut rng = Rng::from_seed(5);
    // Parts of up to 7 strides, each continued from the previous part, by the replicas in turn.
    let (mut stride, mut at, mut turn) = (0, replicas[0].first(), 0);
    let mut alignments = [0; 8];
    while stride < replicas[0].strides() {
        let replica = &replicas[turn % 2];
        let checkpoints = replica.checkpoints(&key, client, stride, at, 7);
        let state = State { print: replica.print(), client, start: 3, stride, checkpoints };
        let state = State::parse(&state.emit()).filter(|read| *read == state).unwrap();
        let (first, (next, end)) = (state.checkpoints[0].offset, state.last());
        for Checkpoint { partial, .. } in &state.checkpoints {
            alignments[partial.byte().ilog2() as usize] += 1;
        }
        for _ in 0..40 {
            let from = first + rng.below(end.offset - first);
            let to = (from + 1 + rng.below(3000)).min(end.offset);
            let other = &replicas[rng.below(2) as usize];
            let bytes = other.bytes(&key, client, state.before(from), from..to);
            assert_eq!(bytes, whole[from as usize..to as usize], "{from} to {to}");
        }
        (stride, at, turn) = (next, end, turn + 1);
    }
    assert_eq!(at.offset, whole.len() as u64);
    assert!(alignments.iter().filter(|count| **count > 0).count() >= 6, "{alignments:?}");
    assert!(turn > 3, "several parts");
}

#[test]
fn unsupported_files_are_refused_with_the_reason() {
    let Some(progressive) = picture(64, 64, &["-progressive"]) else { return };
    let open = |file: &[u8]| Picture::open(file).unwrap_err().to_string();
    assert!(open(&progressive).contains("progressive"));
    let restarts = picture(64, 64, &["-restart", "1"]).unwrap();
    assert!(open(&restarts).contains("restart"));
    let file = picture(64, 64, &[]).unwrap();
    assert!(open(b"GIF89a").contains("not a JPEG"));
    // Truncated or altered files are refused or read, without a panic.
    let key = Key::new(&SECRET);
    for cut in 0..file.len() {
        let _ = Picture::open(&file[..cut]).map(|picture| picture.whole(&key, 1));
    }
    let (mut rng, mut altered) = (Rng::from_seed(7), file.clone());
    for _ in 0..20_000 {
        let at = rng.below(file.len() as u64) as usize;
        altered[at] = rng.next_u64() as u8;
        if let Ok(picture) = Picture::open(&altered) {
            picture.whole(&key, 1);
        }
        altered[at] = file[at];
    }
}
