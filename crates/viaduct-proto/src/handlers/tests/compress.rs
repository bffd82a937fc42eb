use std::io::Write as _;

use super::super::testing::{Net, factories, shell};
use super::exchange;
use crate::flow::{BottomId, Chain, Failure};
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// Chain with only `compress`, and its bottom.
fn alone() -> (Chain, BottomId) {
    let chain = Chain::new(factories(&["compress"], &shell()), 64 << 10, Instant::ZERO);
    let bottom = chain.bottom().unwrap();
    (chain, bottom)
}

/// Wire data for `data` written in pieces of `size`.
fn squeezed(data: &[u8], size: usize) -> Vec<u8> {
    let (mut chain, bottom) = alone();
    let mut out = Vec::new();
    for piece in data.chunks(size) {
        assert!(chain.write(Instant::ZERO, piece.to_vec().into()));
        chain.handle_timeout(Instant::ZERO);
        let bytes: Vec<u8> = chain.outgoing(bottom).pieces().flatten().copied().collect();
        chain.sent(Instant::ZERO, bottom, bytes.len());
        out.extend(bytes);
    }
    out
}

/// Data delivered for input in pieces of `size`, and the maximum queued for delivery.
fn expanded(data: &[u8], size: usize) -> (Vec<u8>, usize) {
    let (mut chain, bottom) = alone();
    let (mut got, mut most) = (Vec::new(), 0);
    for piece in data.chunks(size) {
        chain.avail(Instant::ZERO, bottom, piece.to_vec().into());
        loop {
            chain.handle_timeout(Instant::ZERO);
            let bytes: Vec<u8> = chain.incoming().pieces().flatten().copied().collect();
            most = most.max(bytes.len());
            chain.consumed(Instant::ZERO, bytes.len());
            if bytes.is_empty() {
                break;
            }
            got.extend(bytes);
        }
    }
    (got, most)
}

fn text() -> Vec<u8> {
    let mut rng = Rng::from_seed(3);
    let words = ["flow", "handler", "upstream", "network", "chain", "of", "the", "and", "gateway"];
    let mut word = || words[rng.below(9) as usize];
    (0..60_000).map(|_| format!("{} ", word())).collect::<String>().into_bytes()
}

fn noise(length: usize) -> Vec<u8> {
    let mut noise = vec![0; length];
    Rng::from_seed(1).fill(&mut noise);
    noise
}

#[test]
fn text_becomes_less_than_half_in_large_writes_and_in_small_ones() {
    let text = text();
    for size in [64 << 10, 100] {
        let out = squeezed(&text, size);
        assert!(out.len() < text.len() / 2, "{} of {} at {size}", out.len(), text.len());
        assert!(expanded(&out, 777).0 == text);
    }
}

#[test]
fn random_data_hardly_grows() {
    let noise = noise(1 << 20);
    let out = squeezed(&noise, 60_000);
    assert!(out.len() < noise.len() + 500, "{}", out.len());
    assert!(expanded(&out, 64 << 10).0 == noise);
    // Data after the incompressible part is compressed again.
    let both = [noise, text(), text(), text(), text(), text()].concat();
    assert!(squeezed(&both, 60_000).len() < (1 << 20) + 4 * text().len());
}

#[test]
fn data_is_not_expanded_while_the_application_does_not_read() {
    let zeros = vec![0; 16 << 20];
    let out = squeezed(&zeros, 64 << 10);
    assert!(out.len() < 32 << 10, "{}", out.len());
    let (got, most) = expanded(&out, usize::MAX);
    assert_eq!(got.len(), zeros.len());
    assert!(most <= 192 << 10, "{most} bytes waited");
}

#[test]
fn a_handler_below_that_delivers_many_pieces_at_a_time_does_not_fill_memory() {
    let mut net = Net::joined(&["compress", "crypt:key=1.key"]);
    exchange(&mut net);
    let now = net.now;
    let [from, to] = net.connections[0].seats.map(|seat| seat.unwrap().2);
    // Each block is sealed alone.
    let mut sealed = Vec::new();
    for _ in 0..200 {
        let chain = &mut net.end(0).chain;
        assert!(chain.write(now, vec![0; 64 << 10].into()));
        chain.handle_timeout(now);
        let bytes: Vec<u8> = chain.outgoing(from).pieces().flatten().copied().collect();
        chain.sent(now, from, bytes.len());
        sealed.extend(bytes);
    }
    assert!(sealed.len() < 64 << 10, "{}", sealed.len());
    let chain = &mut net.end(1).chain;
    chain.avail(now, to, sealed.into());
    chain.handle_timeout(now);
    let waits = chain.incoming().len();
    assert!((1..=192 << 10).contains(&waits), "{waits} bytes wait");
    // All data arrives as the application reads.
    let mut got = 0;
    loop {
        let waits = chain.incoming().len();
        if waits == 0 {
            break;
        }
        got += waits;
        chain.consumed(now, waits);
        chain.handle_timeout(now);
    }
    assert_eq!(got, 200 * (64 << 10));
}

#[test]
fn a_decompression_bomb_is_refused() {
    let mut net = Net::joined(&["compress"]);
    exchange(&mut net);
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(17).unwrap();
    encoder.write_all(&vec![0; 1 << 20]).unwrap();
    let bomb = encoder.finish().unwrap();
    let mut block = vec![1, 0, 0, bomb.len() as u8];
    block.extend(&bomb);
    for (bytes, said) in [
        (block, "expands to more than"),
        (vec![9; 40], "of an unknown kind"),
        (vec![0, 255, 0, 0], "of an unknown kind"),
        (vec![1, 0, 0, 4, 9, 9, 9, 9, 9], "invalid zstd data"),
    ] {
        let (mut chain, bottom) = alone();
        chain.avail(Instant::ZERO, bottom, bytes.into());
        let waits = chain.incoming().len();
        assert!(waits <= 64 << 10, "{waits} bytes wait");
        chain.consumed(Instant::ZERO, waits);
        chain.handle_timeout(Instant::ZERO);
        let actions: Vec<_> = std::iter::from_fn(|| chain.poll_action()).collect();
        let text = format!("{actions:?}");
        assert!(text.contains(said) && text.contains("Failed(Reset)"), "{text}");
    }
}

#[test]
fn an_end_inside_a_block_resets_the_flow() {
    let mut net = Net::joined(&["compress"]);
    exchange(&mut net);
    let now = net.now;
    let bottom = net.connections[0].seats[1].unwrap().2;
    net.end(1).chain.avail(now, bottom, vec![0, 0, 0, 9, 1].into());
    net.end(1).takes = false;
    net.end(1).chain.finished(now, bottom);
    net.wait(Duration::from_secs(1));
    assert_eq!((net.end(1).finished, net.end(1).failed.clone()), (0, vec![Failure::Reset]));
}
