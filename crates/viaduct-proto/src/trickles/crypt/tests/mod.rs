//! Complete transfers, and what an eavesdropper sees of them.

mod bounds;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ClientCrypt, OPENING, ServerCrypt};
use crate::keys::{Entropy, SecretKey};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::trickles::api::{Endpoint, Minisocket, Piece, Reply, Stretch};
use crate::trickles::keys::KeyRing;
use crate::trickles::packet::Return;
use crate::trickles::replay::Replay;
use crate::trickles::server::{Server, Settings};
use crate::trickles::standard::{MAIN, Reason, Valid};
use crate::trickles::stream::{Config, Failure, State, Stream};

const LENGTH: u64 = 300_000;
const SAID: &[u8] = b"GET /what-nobody-is-to-know";
const STATE: &[u8] = b"what the application remembers";
const TEXT: &[u8] = b"what the answer says over and over";
const START: Instant = Instant::from_nanos(1 << 40);

fn entropy(seed: u64) -> Entropy {
    let turn = AtomicU64::new(seed << 32);
    Arc::new(move |out| Rng::from_seed(turn.fetch_add(1, Ordering::Relaxed)).fill(out))
}

fn identity() -> SecretKey {
    SecretKey::from_bytes([0x42; 32])
}

fn replica(required: bool) -> Endpoint {
    let replay = Replay::new(1 << 18, Duration::from_secs(30), [1, 2, 3, 4], START);
    let settings = Settings { make_up: 0, ..Settings::default() };
    let server = Server::new(settings, KeyRing::new(1, &[7; 32]), replay);
    Endpoint::new(server, 100).with_crypt(ServerCrypt::new(identity(), required, entropy(1)))
}

fn way_back() -> Return {
    Return::of_datagram("192.0.2.1:4000".parse().unwrap(), "192.0.2.2:80".parse().unwrap())
}

fn text(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| TEXT[at as usize % TEXT.len()]).collect()
}

fn respond(ring: &KeyRing, event: &Minisocket<'_>) -> Reply {
    let mut reply = Reply::default();
    for input in event.inputs(ring).flatten() {
        assert_eq!(input.bytes, SAID);
        let (stream, start) = (input.place.stream, input.place.start);
        let valid = Valid { stream, start, end: start + LENGTH, last: true, leave: 0 };
        reply.closed(stream, SAID.len() as u64).output(valid, STATE);
    }
    for asked in event.asks(ring) {
        let asked = match asked {
            Ok(asked) => asked,
            Err(strange) => {
                reply.reset(strange.stream, Reason::Unknown);
                continue;
            }
        };
        assert_eq!(asked.state, STATE);
        let (stream, position) = (asked.valid.stream, asked.range.start);
        let ends = asked.range.end == asked.valid.end;
        let pieces = vec![Piece::Bytes(text(asked.range).into())];
        reply.answer(asked.index, Stretch { stream, position, pieces, ends });
    }
    reply
}

fn answers(endpoint: &mut Endpoint, event: Minisocket<'_>) -> Vec<Vec<u8>> {
    let reply = respond(endpoint.ring(), &event);
    let mut out = Vec::new();
    endpoint.send(event, &reply, &mut (), |_, answer| out.push(answer.to_vec()));
    out
}

struct Client {
    stream: Stream,
    crypt: ClientCrypt,
    now: Instant,
    read: Vec<u8>,
}

impl Client {
    fn new(server: &SecretKey) -> Client {
        let mut stream = Stream::open(Config::default(), 3, START);
        stream.write(MAIN, SAID);
        stream.shutdown(MAIN);
        let crypt = ClientCrypt::new(server.public(), entropy(2));
        Client { stream, crypt, now: START, read: Vec::new() }
    }

    fn requests(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while let Some(message) = self.stream.poll_transmit(self.now) {
            out.extend(self.crypt.seal(&message));
        }
        out
    }

    fn take(&mut self, answer: &[u8]) {
        if let Some(message) = self.crypt.open(answer) {
            self.stream.handle(self.now, &message);
        }
        while let Some(bytes) = self.stream.read(MAIN) {
            self.read.extend_from_slice(&bytes);
        }
    }

    fn wait(&mut self) {
        self.now += Duration::from_millis(10);
        if self.stream.poll_timeout().is_some_and(|due| due <= self.now) {
            self.stream.handle_timeout(self.now);
        }
    }

    fn is_done(&self) -> bool {
        self.stream.state(MAIN) == State::Finished
    }
}

/// Runs a transfer from these replicas in turn, and returns all messages. `each` is called in
/// every round.
fn transfer(
    client: &mut Client,
    replicas: &mut [Endpoint],
    loss: f64,
    mut each: impl FnMut(usize, &mut [Endpoint]),
) -> Vec<Vec<u8>> {
    let (mut seen, mut rng, mut turn) = (Vec::new(), Rng::from_seed(8), 0);
    for round in 0..20_000 {
        if client.is_done() {
            break;
        }
        each(round, replicas);
        let mut coming = Vec::new();
        for request in client.requests() {
            turn += 1;
            let replica = &mut replicas[turn % replicas.len()];
            if let Ok(event) = replica.accept(client.now, way_back(), &request)
                && !rng.chance(loss)
            {
                coming.extend(answers(replica, event));
            }
            seen.push(request);
        }
        client.wait();
        for answer in coming {
            if !rng.chance(loss) {
                client.take(&answer);
            }
            seen.push(answer);
        }
    }
    seen
}

#[test]
fn an_observer_sees_no_plaintext_and_any_replica_answers() {
    let mut replicas = [replica(true), replica(true)];
    let mut client = Client::new(&identity());
    let seen = transfer(&mut client, &mut replicas, 0.01, |_, _| {});
    assert!(client.is_done() && client.read == text(0..LENGTH), "{} bytes", client.read.len());
    assert!(client.stream.stats().lost > 0);
    for words in [SAID, STATE, &TEXT[..12]] {
        let shows = |message: &Vec<u8>| message.windows(words.len()).any(|window| window == words);
        assert!(!seen.iter().any(shows), "{}", String::from_utf8_lossy(words));
    }
    assert!(seen.iter().all(|message| (0xc1..=0xc4).contains(&message[0])));
    let stats = replicas.each_ref().map(|replica| replica.crypt().unwrap().stats());
    assert!(stats.iter().all(|stats| stats.opened > 20 && stats.altered + stats.clear == 0));
}

#[test]
fn an_answer_is_no_longer_than_its_opening() {
    let (mut replica, mut client) = (replica(true), Client::new(&identity()));
    let [opening] = &client.requests()[..] else { panic!("not exactly one request") };
    let event = replica.accept(START, way_back(), opening).unwrap();
    let answers = answers(&mut replica, event);
    assert!(answers.len() == 1 && answers[0].len() <= opening.len());
    let mut plain = Stream::open(Config::default(), 3, START);
    plain.write(MAIN, SAID);
    plain.shutdown(MAIN);
    assert_eq!(opening.len(), plain.poll_transmit(START).unwrap().len() + OPENING);
}

#[test]
fn any_altered_byte_is_refused_by_either_end() {
    let (mut replica, mut client) = (replica(false), Client::new(&identity()));
    for _ in 0..6 {
        let requests = client.requests();
        for request in &requests {
            for at in 0..request.len() {
                let mut altered = request.clone();
                altered[at] ^= 0x10;
                // Handshakes are rate-limited.
                client.now += Duration::from_millis(1);
                assert!(replica.accept(client.now, way_back(), &altered).is_err(), "byte {at}");
            }
        }
        for request in &requests {
            client.now += Duration::from_millis(1);
            let event = replica.accept(client.now, way_back(), request).unwrap();
            assert!(event.is_encrypted());
            for answer in answers(&mut replica, event) {
                let refused = client.crypt.refused();
                for at in 0..answer.len() {
                    let mut altered = answer.clone();
                    altered[at] ^= 0x10;
                    assert_eq!(client.crypt.open(&altered), None, "byte {at}");
                }
                assert_eq!(client.crypt.refused() - refused, answer.len() as u64);
                client.take(&answer);
            }
        }
    }
    assert!(client.stream.is_open() && client.read.len() > 5_000);
}

#[test]
fn neither_end_falls_back_to_clear_text() {
    // A server that requires encryption does not answer unencrypted messages.
    let mut replica = replica(true);
    let mut plain = Stream::open(Config::default(), 3, START);
    let opening = plain.poll_transmit(START).unwrap();
    assert!(replica.accept(START, way_back(), &opening).is_err());
    assert_eq!(replica.crypt().unwrap().stats().clear, 1);
    // A server that does not require encryption answers unencrypted requests in clear. An
    // encrypting client ignores such answers.
    let mut both = self::replica(false);
    let event = both.accept(START, way_back(), &opening).unwrap();
    assert!(!event.is_encrypted());
    let mut client = Client::new(&identity());
    let opening = client.requests().remove(0);
    for answer in answers(&mut both, event) {
        client.take(&answer);
    }
    assert!(!client.stream.is_open() && client.crypt.refused() == 1);
    // A host with another key cannot answer in the server's place.
    let other = ServerCrypt::new(SecretKey::from_bytes([9; 32]), false, entropy(5));
    let mut false_one = self::replica(false).with_crypt(other);
    assert!(false_one.accept(START, way_back(), &opening).is_err());
    assert!(both.accept(START, way_back(), &opening).is_ok());
}

#[test]
fn secrets_rotate_during_a_transfer_and_a_client_with_a_dropped_secret_handshakes_again() {
    let mut replicas = [replica(true)];
    let mut client = Client::new(&identity());
    transfer(&mut client, &mut replicas, 0.0, |round, replicas| match round {
        2 => replicas[0].server_mut().ring_mut().rotate(2, &[2; 32], 2),
        4 => replicas[0].server_mut().ring_mut().rotate(3, &[3; 32], 1),
        _ => {}
    });
    // The output continuation was sealed with a secret that was dropped. The client can decrypt the
    // answer that reports this.
    let handshakes = replicas[0].crypt().unwrap().stats().handshakes;
    assert!(handshakes > 1, "{handshakes} handshakes");
    let unknown = State::Failed(Failure::Reset(Reason::Unknown));
    assert_eq!(client.stream.state(MAIN), unknown);
}

#[test]
fn a_detached_event_is_answered_by_a_replica_under_its_clients_key() {
    let mut replicas = [replica(true), replica(true)];
    let mut client = Client::new(&identity());
    for _ in 0..200 {
        if client.is_done() {
            break;
        }
        let mut collection = Vec::new();
        for request in client.requests() {
            replicas[0].handle(client.now, way_back(), &request, usize::MAX).unwrap();
        }
        let count = replicas[0].extract_events(client.now, usize::MAX, |_| true, &mut collection);
        assert!(!collection.windows(SAID.len()).any(|window| window == SAID));
        assert_eq!(replicas[1].install_events(client.now, &collection).taken, count);
        client.wait();
        while let Some(event) = replicas[1].poll_event() {
            for answer in answers(&mut replicas[1], event) {
                client.take(&answer);
            }
        }
    }
    assert!(client.is_done() && client.read == text(0..LENGTH), "{} bytes", client.read.len());
}
