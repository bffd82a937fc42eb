//! Encrypted messages. Neither arbitrary bytes nor altered or truncated messages, in the handshake
//! or after it, make an end panic, and none of them is accepted.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::api::{Endpoint, Reply};
use viaduct_proto::trickles::crypt::{ClientCrypt, ServerCrypt};
use viaduct_proto::trickles::keys::KeyRing;
use viaduct_proto::trickles::packet::Return;
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Server, Settings};
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, Stream};

const NOW: Instant = Instant::from_nanos(1 << 50);

fuzz_target!(|input: &[u8]| {
    let identity = SecretKey::from_bytes([7; 32]);
    let entropy: Entropy = Arc::new(|out| out.fill(0x31));
    let mut client = ClientCrypt::new(identity.public(), entropy.clone());
    let replay = Replay::new(1 << 12, Duration::from_secs(30), [1, 2, 3, 4], NOW);
    let server = Server::new(Settings::default(), KeyRing::new(0, &[0; 32]), replay);
    let mut server = Endpoint::new(server, 4).with_crypt(ServerCrypt::new(identity, true, entropy));
    assert!(server.accept(NOW, way(), input).is_err());
    assert_eq!(client.open(input), None);

    let mut stream = Stream::open(Config::default(), 5, NOW);
    stream.write(MAIN, b"what is said");
    // The opening and its answer, then a request and its responses.
    for _ in 0..2 {
        let Some(message) = stream.poll_transmit(NOW) else { return };
        let sealed = client.seal(&message).expect("there is a key");
        if let Some(altered) = altered(&sealed, input) {
            assert!(server.accept(NOW, way(), &altered).is_err());
        }
        let event = server.accept(NOW, way(), &sealed).expect("an unaltered message is accepted");
        let mut answers = Vec::new();
        let keep = |_: &mut Return, answer: &[u8]| answers.push(answer.to_vec());
        server.send(event, &Reply::default(), &mut (), keep);
        for answer in answers {
            if let Some(altered) = altered(&answer, input) {
                assert_eq!(client.open(&altered), None);
            }
            let opened = client.open(&answer).expect("an unaltered message is accepted");
            stream.handle(NOW, &opened);
        }
        stream.write(MAIN, b"and more");
    }
});

fn way() -> Return {
    let at = |text: &str| text.parse().expect("an address");
    Return::of_datagram(at("192.0.2.1:4000"), at("192.0.2.2:80"))
}

/// Returns `message` as altered by `input`. Every three bytes of `input` are an offset (two) and a
/// value to XOR there; if bytes remain, the first is the number of bytes to cut off at the end.
/// `None` if the message is unchanged.
fn altered(message: &[u8], input: &[u8]) -> Option<Vec<u8>> {
    let mut altered = message.to_vec();
    let (changes, rest) = input.as_chunks::<3>();
    for &[high, low, with] in changes {
        let at = usize::from(u16::from_be_bytes([high, low])) % altered.len();
        altered[at] ^= with;
    }
    if let Some(&cut) = rest.first() {
        altered.truncate(altered.len().saturating_sub(usize::from(cut)));
    }
    (altered != message).then_some(altered)
}
