//! Output for which a server has sent no continuation: the stream fails with the reason.

use super::events::ByHand;
use super::world::{endpoint, way_back};
use super::{Failure, State, at};
use crate::trickles::api::{Endpoint, Input, Reply};
use crate::trickles::standard::{MAIN, Place, Reason, Valid};

/// Exchanges messages between `server`, which answers with `reply`, and `hand`, for 20 rounds.
fn answer(server: &mut Endpoint, hand: &mut ByHand, reply: impl Fn(&Input, &mut Reply)) {
    for _ in 0..20 {
        for request in hand.requests() {
            server.handle(hand.now, way_back(), &request, usize::MAX).unwrap();
        }
        let mut out = Vec::new();
        while let Some(event) = server.poll_event() {
            let mut said = Reply::default();
            for input in event.inputs(server.ring()) {
                reply(&input.unwrap(), &mut said);
            }
            server.send(event, &said, &mut (), |_, message| out.push(message.to_vec()));
        }
        hand.take(&out);
    }
}

fn valid(start: u64, end: u64) -> Valid {
    Valid { stream: MAIN, start, end, last: false, leave: 0 }
}

fn all(input: &Input) -> Place {
    input.place.after(input.bytes.len() as u64)
}

#[test]
fn a_stream_fails_if_no_continuation_yields_its_missing_bytes() {
    type Says = fn(&Input, &mut Reply);
    let missing = State::Failed(Failure::Missing);
    let cases: [(&str, Says, State); 4] = [
        (
            "a hole before the bytes that can be requested",
            |input, reply| {
                reply.output(valid(50, 100), "x").input(all(input), "x");
            },
            missing,
        ),
        (
            "the input is closed, and there is no continuation",
            |input, reply| {
                reply.closed(MAIN, all(input).position);
            },
            missing,
        ),
        (
            "an end, and no continuation before it",
            |input, reply| {
                let end = Valid { last: true, ..valid(50, 50) };
                reply.output(end, "x").input(all(input), "x");
            },
            missing,
        ),
        (
            "more continuations may follow",
            |input, reply| {
                reply.input(all(input), "x");
            },
            State::Open,
        ),
    ];
    for (name, says, state) in cases {
        let (mut server, mut hand) = (endpoint(at(0.0)), ByHand::new());
        hand.stream.write(MAIN, b"hello");
        answer(&mut server, &mut hand, says);
        assert_eq!(hand.stream.state(MAIN), state, "{name}");
        assert!(hand.stream.is_flushed(MAIN), "{name}");
    }
}

#[test]
fn a_stream_fails_if_the_server_sends_continuations_without_end() {
    let (mut server, mut hand) = (endpoint(at(0.0)), ByHand::new());
    hand.stream.write(MAIN, &[b'x'; 100_000]);
    // No continuation yields the next byte, so nothing can be requested, and only more input may
    // produce the byte.
    let gives = |input: &Input, reply: &mut Reply| {
        for part in 0..25 {
            let start = 1_000 + 1_000 * input.place.position + 10 * part;
            reply.output(valid(start, start + 10), "");
        }
        reply.input(input.place.after(1), "x");
    };
    for _ in 0..20 {
        answer(&mut server, &mut hand, gives);
    }
    assert_eq!(hand.stream.state(MAIN), State::Failed(Failure::Reset(Reason::Failed)));
}

#[test]
fn a_stream_fails_if_its_input_is_never_consumed_although_all_output_has_arrived() {
    let (mut server, mut hand) = (endpoint(at(0.0)), ByHand::new());
    hand.stream.write(MAIN, &[b'x'; 100_000]);
    for _ in 0..20 {
        answer(&mut server, &mut hand, |input, reply| {
            let end = Valid { last: true, ..valid(0, 0) };
            reply.output(end, "x").input(input.place.after(0), "x");
        });
    }
    let state = hand.stream.state(MAIN);
    assert!(
        matches!(state, State::Failed(_)),
        "{state:?}, flushed: {}",
        hand.stream.is_flushed(MAIN)
    );
}
