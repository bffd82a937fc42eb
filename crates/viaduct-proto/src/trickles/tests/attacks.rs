//! Attacks by a client or an eavesdropper, and their results.

use std::net::SocketAddr;

use crate::sim::trickles::world::{address, serve, server};
use crate::time::{Duration, Instant};
use crate::trickles::continuation::{Continuation, Invalid, Mode};
use crate::trickles::proof::{self, Range, Unproven};
use crate::trickles::server::{Refusal, Server, Settings};
use crate::trickles::wire::request::{emit_open, emit_padding, emit_returned};
use crate::trickles::wire::{Form, MAX_ATTEMPTS, Response};

pub(super) const LENGTH: u64 = 1 << 40;

pub(super) fn at(millis: u64) -> Instant {
    Instant::from_nanos(1_000_000_000_000 + millis * 1_000_000)
}

fn elsewhere() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 9], 4_000))
}

/// A packet that a client has received: number, nonce, continuation.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) number: u64,
    nonce: u64,
    bytes: Vec<u8>,
    known: Option<Continuation>,
}

pub(super) fn kept(messages: &[Vec<u8>]) -> Vec<Kept> {
    messages
        .iter()
        .map(|message| {
            let response = Response::parse(message).unwrap();
            let bytes = match response.form {
                Form::AddressToken(bytes) | Form::Fresh(bytes) => bytes.to_vec(),
                _ => Vec::new(),
            };
            let known = Continuation::peek(&bytes).ok().map(|(known, _)| known);
            Kept { number: response.number, nonce: response.nonce, bytes, known }
        })
        .collect()
}

fn open(padding: usize) -> Vec<u8> {
    let mut message = Vec::new();
    emit_open(0, 7, 1_400, &mut message);
    emit_padding(padding, &mut message);
    message.push(0);
    message.extend_from_slice(b"GET");
    message
}

/// A request with `kept`'s continuation and a proof of `ranges`.
pub(super) fn request(attempt: u8, kept: &Kept, ranges: &[Range]) -> Vec<u8> {
    let base = kept.known.unwrap().epoch.base;
    let (mut proof, mut message) = (Vec::new(), Vec::new());
    proof::emit(base, ranges, &mut proof);
    emit_returned(1, attempt, &kept.bytes, None, None, &proof, &mut message);
    if attempt > 0 {
        emit_padding(60, &mut message);
    }
    message.push(0);
    message
}

/// The ranges that `packets` prove.
pub(super) fn ranges(packets: &[Kept]) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for packet in packets {
        match ranges.last_mut() {
            Some(range) if range.last + 1 == packet.number => {
                range.last = packet.number;
                range.sum ^= packet.nonce;
            }
            _ => {
                let Kept { number, nonce, .. } = *packet;
                ranges.push(Range { first: number, last: number, sum: nonce });
            }
        }
    }
    ranges
}

/// The ranges of an echo; they prove nothing.
fn any(token: &Kept) -> [Range; 1] {
    [Range { first: token.known.unwrap().epoch.base, last: token.number, sum: 0 }]
}

/// A server, and the first window of a client at [`address`], at 100 ms.
pub(super) fn begun() -> (Server, Vec<Kept>) {
    begun_at(0)
}

/// The same, with a server whose clock is ahead by this time.
fn begun_at(millis: u64) -> (Server, Vec<Kept>) {
    let begin = at(millis);
    let mut server = server(Settings::default(), begin);
    let address_token = kept(&serve(&mut server, begin, address(), LENGTH, &open(200)));
    let echo = request(0, &address_token[0], &any(&address_token[0]));
    let window = kept(&serve(&mut server, at(millis + 100), address(), LENGTH, &echo));
    assert_eq!(window.len(), 10);
    (server, window)
}

pub(super) fn refusal(
    server: &mut Server,
    now: Instant,
    from: SocketAddr,
    message: &[u8],
) -> Refusal {
    server.handle(now, from, message).expect_err("a refusal")
}

#[test]
fn a_first_request_gets_no_more_bytes_than_it_has() {
    let mut server = server(Settings::default(), at(0));
    for padding in 0..600 {
        let request = open(padding);
        let answer = serve(&mut server, at(0), address(), LENGTH, &request);
        let bytes: usize = answer.iter().map(Vec::len).sum();
        assert!(bytes <= request.len(), "{bytes} bytes for {}", request.len());
    }
    assert!(server.stats().greedy > 50 && server.stats().opened > 400);
}

#[test]
fn a_replayed_request_is_answered_once() {
    let (mut server, window) = begun();
    let message = request(0, &window[0], &ranges(&window[..1]));
    assert_eq!(serve(&mut server, at(200), address(), LENGTH, &message).len(), 2);
    for later in [200, 300, 10_000, 29_000] {
        assert_eq!(refusal(&mut server, at(later), address(), &message), Refusal::Replayed);
    }
    let stale = refusal(&mut server, at(60_000), address(), &message);
    assert!(matches!(stale, Refusal::Stale { .. }), "{stale}");
    assert_eq!((server.stats().replayed, server.stats().stale), (4, 1));
}

#[test]
fn a_forged_larger_window_is_refused() {
    let (mut server, window) = begun();
    let mut forged = window[0].clone();
    // The first byte of startCwnd.
    forged.bytes[28] = 0x7f;
    let message = request(0, &forged, &ranges(&window[..1]));
    assert_eq!(
        refusal(&mut server, at(200), address(), &message),
        Refusal::Invalid(Invalid::Forged)
    );
}

#[test]
fn a_hidden_loss_is_refused_and_a_reported_one_halves_the_window() {
    let (mut server, window) = begun();
    let mut hidden = ranges(&window[..4]);
    hidden[0].sum ^= window[2].nonce;
    let message = request(0, &window[3], &hidden);
    let base = window[0].number;
    assert_eq!(
        refusal(&mut server, at(200), address(), &message),
        Refusal::Unproven(Unproven::Sum { first: base, last: base + 3 })
    );
    for (first, kept) in window.iter().enumerate().take(2) {
        let message = request(0, kept, &ranges(&window[..=first]));
        assert_eq!(serve(&mut server, at(200), address(), LENGTH, &message).len(), 2);
    }
    // A refusal does not consume the continuation, because an eavesdropper may have sent the
    // request.
    let received = [&window[..2], &window[3..]].concat();
    let mut brought = 0;
    for last in 3..=10 {
        let Some(kept) = window.get(last).filter(|kept| kept.known.is_some()) else { continue };
        let message = request(0, kept, &ranges(&received[..last]));
        brought += serve(&mut server, at(200 + last as u64), address(), LENGTH, &message).len();
    }
    // Of the twelve packets in flight the last six are survivors. Two of these have arrived
    // already, and the new packet for one of the two has no data, because of the repair.
    assert_eq!(brought, 3);
}

#[test]
fn a_client_that_moves_gets_no_more_than_it_sends_until_it_has_echoed() {
    let (mut server, window) = begun();
    let message = request(1, &window[0], &ranges(&window[..1]));
    let answer = serve(&mut server, at(200), elsewhere(), LENGTH, &message);
    let bytes: usize = answer.iter().map(Vec::len).sum();
    assert!(bytes <= message.len(), "{bytes} bytes for {}", message.len());
    let address_token = kept(&answer);
    let known = address_token[0].known.unwrap();
    assert_eq!((known.mode, known.generation), (Mode::AddressToken, 1));

    let any = [Range { first: known.epoch.base, last: known.number, sum: 0 }];
    let echo = request(0, &address_token[0], &any);
    let begun = kept(&serve(&mut server, at(300), elsewhere(), LENGTH, &echo));
    let epoch = begun[0].known.unwrap().epoch;
    assert_eq!(
        (begun.len(), epoch.ssthresh),
        (5, 5),
        "as after a loss, because the client need not report earlier losses"
    );
    // The continuations at the old address are invalid.
    let old = request(0, &window[1], &ranges(&window[..2]));
    assert_eq!(refusal(&mut server, at(300), address(), &old), Refusal::Superseded(0));
}

/// Restarts a client at 200 ms from the new address `from`, echoes the address token at 300 ms, and
/// returns the first window.
fn moved(server: &mut Server, from: SocketAddr, attempt: u8, window: &[Kept]) -> Vec<Kept> {
    let message = request(attempt, &window[0], &ranges(&window[..1]));
    let address_token = kept(&serve(server, at(200), from, LENGTH, &message));
    let echo = request(0, &address_token[0], &any(&address_token[0]));
    kept(&serve(server, at(300), from, LENGTH, &echo))
}

/// Asserts that `a` and `b` have the same packet numbers, but different nonces.
fn assert_apart(a: &[Kept], b: &[Kept]) {
    assert!(!a.is_empty() && a.len() == b.len());
    for (a, b) in a.iter().zip(b) {
        assert!(a.number == b.number && a.nonce != b.nonce, "{a:?} and {b:?}");
    }
}

#[test]
fn generations_that_begin_at_one_time_have_nonces_of_their_own() {
    let (mut server, window) = begun();
    let [one, two] = [1, 2].map(|attempt| moved(&mut server, elsewhere(), attempt, &window));
    assert_apart(&one, &two);
    // The nonce of a packet that arrived only in the first generation.
    let mut hidden = ranges(&two[..2]);
    hidden[0].sum ^= two[0].nonce ^ one[0].nonce;
    let refused = refusal(&mut server, at(400), elsewhere(), &request(0, &two[1], &hidden));
    assert!(matches!(refused, Refusal::Unproven(_)), "{refused}");
}

#[test]
fn restarts_in_a_row_do_not_move_the_numbers_far_ahead_of_the_clock() {
    let (mut server, mut newest) = begun();
    let mut restarts = 0;
    let refused = loop {
        let (now, message) = (at(200 + restarts), request(1, &newest[0], &ranges(&newest[..1])));
        let answers = serve(&mut server, now, address(), LENGTH, &message);
        if answers.is_empty() {
            break refusal(&mut server, now, address(), &message);
        }
        newest = kept(&answers);
        restarts += 1;
    };
    assert!(matches!(refused, Refusal::TooSoon { .. }), "{refused}");
    assert!((50..100).contains(&restarts), "{restarts}: each one adds 65 ms");
}

#[test]
fn a_restart_replaces_numbers_of_a_clock_that_was_ahead() {
    let (_, ahead) = begun_at(3_600_000);
    let mut server = server(Settings::default(), at(0));
    let window = moved(&mut server, address(), 1, &ahead);
    assert!(window[0].number < ahead[0].number);
    let restart = request(1, &window[0], &ranges(&window[..1]));
    server.handle(at(1_300), address(), &restart).unwrap();
}

#[test]
fn a_client_at_two_addresses_of_two_replay_windows_has_nonces_of_their_own() {
    // Two threads of a server, which the client's ports select.
    let (mut first, window) = begun();
    let mut second = server(Settings::default(), at(0));
    let other = SocketAddr::new(elsewhere().ip(), 4_001);
    let one = moved(&mut first, elsewhere(), 1, &window);
    let two = moved(&mut second, other, 1, &window);
    assert_apart(&one, &two);
}

#[test]
fn an_address_token_is_useless_to_other_hosts() {
    let mut server = server(Settings::default(), at(0));
    let address_token = kept(&serve(&mut server, at(0), address(), LENGTH, &open(200)));
    let echo = request(0, &address_token[0], &any(&address_token[0]));
    let answer = serve(&mut server, at(1), elsewhere(), LENGTH, &echo);
    assert!(answer.iter().map(Vec::len).sum::<usize>() <= echo.len());
}

#[test]
fn a_timeout_ends_the_trickles_before_it() {
    let (mut server, window) = begun();
    let message = request(1, &window[0], &ranges(&window[..1]));
    let restarted = kept(&serve(&mut server, at(500), address(), LENGTH, &message));
    let known = restarted[0].known.unwrap();
    assert_eq!((restarted.len(), known.generation, known.epoch.start), (1, 1, 1));
    assert_eq!(known.epoch.ssthresh, 5, "half of the window");
    let old = request(0, &window[1], &ranges(&window[..2]));
    assert_eq!(refusal(&mut server, at(500), address(), &old), Refusal::Superseded(0));
    assert_eq!(refusal(&mut server, at(501), address(), &message), Refusal::Replayed);
    // Many attempts at the same time do not get many first windows.
    let soon = request(6, &window[0], &ranges(&window[..1]));
    let refused = refusal(&mut server, at(502), address(), &soon);
    assert!(matches!(refused, Refusal::TooSoon { attempt: 6, .. }), "{refused}");
}

#[test]
fn a_client_silent_beyond_the_horizon_resumes() {
    let (mut server, window) = begun();
    let message = request(1, &window[0], &ranges(&window[..1]));
    let late = at(0) + Duration::from_secs(3_600);
    // A later replay, when the address belongs to another host, gets no more.
    let mut address_token = Vec::new();
    for _ in 0..20 {
        let answer = serve(&mut server, late, address(), LENGTH, &message);
        let bytes: usize = answer.iter().map(Vec::len).sum();
        assert!(bytes <= message.len(), "{bytes} bytes for {}", message.len());
        address_token = kept(&answer);
    }
    let known = address_token[0].known.unwrap();
    let any = [Range { first: known.epoch.base, last: known.number, sum: 0 }];
    let echo = request(0, &address_token[0], &any);
    let later = late + Duration::from_millis(100);
    let resumed = kept(&serve(&mut server, later, address(), LENGTH, &echo));
    assert_eq!(resumed.len(), 10, "the first window again");
    let epoch = resumed[0].known.unwrap().epoch;
    assert_eq!((epoch.start, epoch.ssthresh), (10, 8), "three quarters of the old window");
    assert_eq!(refusal(&mut server, later, address(), &echo), Refusal::Replayed);
    assert_eq!(server.stats().resumed, 20);
}

#[test]
fn a_silence_counts_as_a_timeout_only_after_a_loss() {
    for (silence, came, packets) in [(9, vec![0], 1), (11, vec![0], 10), (11, vec![0, 2], 1)] {
        let (mut server, window) = begun();
        let came: Vec<Kept> =
            came.into_iter().map(|packet: usize| window[packet].clone()).collect();
        let message = request(1, came.last().unwrap(), &ranges(&came));
        let late = at(0) + Duration::from_secs(silence);
        let answer = serve(&mut server, late, address(), LENGTH, &message);
        assert_eq!(answer.len(), packets, "after {silence} s, with {} received", came.len());
        // A second attempt means that the answer was lost, which counts as a timeout.
        let message = request(2, came.last().unwrap(), &ranges(&came));
        assert_eq!(serve(&mut server, late, address(), LENGTH, &message).len(), 1);
    }
}

#[test]
fn each_replica_answers_a_request_once() {
    let (mut first, window) = begun();
    let mut second = server(Settings::default(), at(0));
    let message = request(0, &window[0], &ranges(&window[..1]));
    for replica in [&mut first, &mut second] {
        assert_eq!(serve(replica, at(200), address(), LENGTH, &message).len(), 2);
        assert_eq!(refusal(replica, at(200), address(), &message), Refusal::Replayed);
    }
}

#[test]
fn a_rotation_of_secrets_breaks_no_connection() {
    let (mut server, window) = begun();
    server.ring_mut().rotate(2, &[9; 32], 2);
    let message = request(0, &window[0], &ranges(&window[..1]));
    let answer = kept(&serve(&mut server, at(200), address(), LENGTH, &message));
    // The first of the two packets is the first of a pair, and has no continuation.
    assert_eq!((answer.len(), answer[1].bytes[0]), (2, 2), "under the new secret");
    let message = request(0, &answer[1], &ranges(&[window, answer.clone()].concat()));
    assert!(!serve(&mut server, at(300), address(), LENGTH, &message).is_empty());
}

#[test]
fn a_client_that_loses_every_answer_to_a_restart_gets_address_tokens_until_one_arrives() {
    let (mut server, window) = begun();
    let mut now = at(200);
    for attempt in 1..MAX_ATTEMPTS {
        now += Duration::from_millis(100 << attempt);
        let message = request(attempt, &window[0], &ranges(&window[..1]));
        let answer = serve(&mut server, now, address(), LENGTH, &message);
        if now.since(at(100)) < Duration::from_secs(30) {
            assert_eq!(refusal(&mut server, now, address(), &message), Refusal::Replayed);
        } else {
            // The continuation is older than the replay window.
            assert_eq!(kept(&answer)[0].known.unwrap().mode, Mode::AddressToken);
        }
    }
    let message = request(MAX_ATTEMPTS, &window[0], &ranges(&window[..1]));
    let mut address_token = Vec::new();
    for _ in 0..3 {
        let answer = serve(&mut server, now, address(), LENGTH, &message);
        assert!(answer.iter().map(Vec::len).sum::<usize>() <= message.len());
        address_token = kept(&answer);
    }
    let known = address_token[0].known.unwrap();
    assert_eq!((known.mode, known.epoch.start, known.epoch.ssthresh), (Mode::AddressToken, 1, 5));
    let echo = [Range { first: known.epoch.base, last: known.number, sum: 0 }];
    let echo = request(0, &address_token[0], &echo);
    assert_eq!(serve(&mut server, now, address(), LENGTH, &echo).len(), 1, "as after a timeout");
    let old = request(0, &window[1], &ranges(&window[..2]));
    assert!(server.handle(now, address(), &old).is_err());
}
