use std::sync::{Arc, Mutex};

use super::handshake::LONGEST;
use super::*;
use crate::rng::Rng;

fn entropy(seed: u64) -> Entropy {
    let rng = Mutex::new(Rng::from_seed(seed));
    Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out))
}

fn secret(n: u8) -> SecretKey {
    SecretKey::from_bytes([n; 32])
}

/// Creates two ends. Returns them with the dialler's first message.
fn ends(dialler: u8, expects: u8, peers: &[u8]) -> (Secure, Secure, Vec<u8>) {
    let mut first = Vec::new();
    let a = Secure::dial(&secret(dialler), &secret(expects).public(), entropy(1), &mut first);
    let peers = peers.iter().map(|&n| secret(n).public()).collect();
    (a.unwrap(), Secure::listen(&secret(2), peers, entropy(2)), first)
}

fn give(to: &mut Secure, bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), RecordError> {
    let (mut out, mut plain) = (Vec::new(), Vec::new());
    to.inbox().extend_from_slice(bytes);
    to.open(&mut out, |bytes| plain.extend_from_slice(bytes))?;
    Ok((out, plain))
}

fn up() -> (Secure, Secure) {
    let (mut a, mut b, first) = ends(1, 2, &[9, 1]);
    let (answer, _) = give(&mut b, &first).unwrap();
    let (confirmation, _) = give(&mut a, &answer).unwrap();
    assert!(a.is_up());
    give(&mut b, &confirmation).unwrap();
    assert_eq!(b.peer(), Some(secret(1).public()));
    (a, b)
}

#[test]
fn records_are_opened_however_they_are_cut() {
    let (mut a, mut b) = up();
    let data: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    let mut sealed = Vec::new();
    a.seal(&data, &mut sealed);
    let pieces = sealed.chunks(777).map(|piece| give(&mut b, piece).unwrap().1);
    assert!(pieces.flatten().collect::<Vec<_>>() == data);
    let mut back = Vec::new();
    b.seal(b"and back", &mut back);
    assert_eq!(give(&mut a, &back).unwrap().1, b"and back");
}

#[test]
fn inside_a_channel_only_a_handshake_bound_to_it_takes_place() {
    for (theirs, fits) in [(b"this", true), (b"that", false)] {
        let mut first = Vec::new();
        let peer = secret(2).public();
        let mut a = Secure::dial_in(b"this", &secret(1), &peer, entropy(1), &mut first).unwrap();
        let peers = vec![secret(1).public()];
        let mut b = Secure::listen_in(theirs, &secret(2), peers, entropy(2));
        let answer = give(&mut b, &first);
        assert_eq!(answer.is_ok(), fits);
        let Ok((answer, _)) = answer else { continue };
        let (mut said, _) = give(&mut a, &answer).unwrap();
        a.seal(b"plain", &mut said);
        assert_eq!(give(&mut b, &said).unwrap().1, b"plain");
        let mut back = Vec::new();
        b.seal(b"and back", &mut back);
        assert_eq!(give(&mut a, &back).unwrap().1, b"and back");
        assert_eq!(give(&mut a, b"and more").unwrap().1, b"and more");
    }
}

#[test]
fn keys_are_replaced_in_step() {
    let (mut a, mut b) = up();
    for up in [&mut a, &mut b] {
        let State::Established(up) = &mut up.state else { panic!() };
        (up.seal.number, up.open.number) = (REKEY - 1, REKEY - 1);
    }
    for _ in 0..3 {
        let mut sealed = Vec::new();
        a.seal(b"x", &mut sealed);
        assert_eq!(give(&mut b, &sealed).unwrap().1, b"x");
    }
}

#[test]
fn a_stranger_an_impostor_and_a_changed_record_are_refused() {
    let (_, mut b, first) = ends(3, 2, &[1]);
    assert_eq!(give(&mut b, &first), Err(RecordError::Unknown(secret(3).public())));
    let (_, mut b, first) = ends(1, 4, &[1]);
    assert_eq!(give(&mut b, &first), Err(RecordError::Forged), "another key was dialled");
    let (mut a, mut b) = up();
    let mut sealed = Vec::new();
    a.seal(b"bytes", &mut sealed);
    let repeated = [&sealed[..], &sealed].concat();
    assert_eq!(give(&mut b, &repeated), Err(RecordError::Forged), "the record number differs");
    for bit in 0..sealed.len() * 8 {
        let (mut a, mut b) = up();
        let mut sealed = Vec::new();
        a.seal(b"bytes", &mut sealed);
        sealed[bit / 8] ^= 1 << (bit % 8);
        // With another length, the end may wait for more bytes.
        let opened = give(&mut b, &sealed).map(|(_, plain)| plain);
        assert!(opened.is_err() || opened == Ok(Vec::new()), "bit {bit}");
    }
    assert_eq!(give(&mut b, b""), Err(RecordError::Forged), "nothing is accepted after a failure");
}

/// The holder of the far end's secret key can create a first message with any dialler's key, and
/// any host can replay one. Anything further needs the dialler's own secret key.
#[test]
fn a_first_message_alone_does_not_make_a_peer() {
    for binding in [&b""[..], b"this"] {
        let mut first = Vec::new();
        let (own, peer) = (secret(1), secret(2).public());
        let mut a = Secure::dial_in(binding, &own, &peer, entropy(1), &mut first).unwrap();
        let listen =
            || Secure::listen_in(binding, &secret(2), vec![secret(1).public()], entropy(2));
        let mut hello = Vec::new();
        let fields = crate::tunnel::wire::Hello {
            instance: 7,
            link: 1,
            tokens: 0,
            least_window: 0,
            streams: 1,
        };
        crate::tunnel::wire::Frame::Hello(fields).emit(0, &mut hello);
        let record = [&[0, 16][..], &[0; 16]].concat();
        for follows in [hello, record] {
            let mut b = listen();
            assert_eq!(give(&mut b, &first).unwrap().1, b"");
            assert!(!b.is_up() && b.peer().is_none());
            assert!(give(&mut b, &follows).is_err(), "{follows:?}");
            assert!(!b.is_up() && b.peer().is_none());
        }
        let mut b = listen();
        let (answer, _) = give(&mut b, &first).unwrap();
        let (confirmation, _) = give(&mut a, &answer).unwrap();
        give(&mut b, &confirmation).unwrap();
        assert!(b.is_up() && b.peer() == Some(secret(1).public()));
    }
}

#[test]
fn a_refused_dialler_gets_the_reason() {
    let (mut a, mut b, first) = ends(3, 2, &[1]);
    let mut answer = Vec::new();
    b.inbox().extend_from_slice(&first);
    let refused = b.open(&mut answer, |_| panic!("nothing is to be read"));
    assert_eq!(refused, Err(RecordError::Unknown(secret(3).public())));
    assert_eq!(give(&mut a, &answer), Err(RecordError::Refused(Refusal::UnknownKey)));
    assert!(!a.is_up());

    let (_, mut b, _) = ends(1, 2, &[1]);
    let mut noise = builder(&LINK, LINK.prologue, &secret(1), entropy(1))
        .remote_public_key(secret(2).public().as_bytes())
        .and_then(Builder::build_initiator)
        .unwrap();
    let mut message = [0; LONGEST];
    let length = noise.write_message(&[VERSION + 1], &mut message).unwrap();
    b.inbox().extend_from_slice(&(length as u16).to_be_bytes());
    b.inbox().extend_from_slice(&message[..length]);
    let mut answer = Vec::new();
    assert_eq!(b.open(&mut answer, |_| {}), Err(RecordError::Version(VERSION + 1)));
    let mut said = [0; LONGEST];
    let length = noise.read_message(&answer[LENGTH..], &mut said).unwrap();
    let [version, verdict] = said[..length] else { panic!("{length} bytes") };
    assert_eq!(refusal::check(version, verdict), Err(Refusal::Version(VERSION)));
}
