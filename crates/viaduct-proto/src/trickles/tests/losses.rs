//! Losses that a client reports, correctly or falsely, and the server's answers.

use super::attacks::{LENGTH, at, begun, kept, ranges, refusal, request};
use crate::sim::trickles::world::{address, serve};
use crate::trickles::server::Refusal;
use crate::trickles::wire::{Form, Response};

#[test]
fn a_request_makes_up_for_lost_requests_before_it() {
    let (mut server, window) = begun();
    // The requests of the first four packets are lost; the request of the fifth proves that all
    // five packets have arrived.
    let message = request(0, &window[4], &ranges(&window[..5]));
    let answer = serve(&mut server, at(200), address(), LENGTH, &message);
    assert_eq!(answer.len(), 3, "a group, and two packets for this request");
    let Form::Group(group) = Response::parse(&answer[0]).unwrap().form else { panic!() };
    let numbers: Vec<u64> = group.packets().map(|(number, ..)| number).collect();
    let base = window[0].number;
    assert_eq!(numbers, (base + 10..base + 18).collect::<Vec<_>>());
    assert_eq!(server.stats().made_up, 4);
    // The lost requests are recorded as answered, and are not answered again.
    let late = request(0, &window[2], &ranges(&window[..3]));
    assert_eq!(refusal(&mut server, at(201), address(), &late), Refusal::Replayed);
}

#[test]
fn a_loss_is_repaired_only_if_its_slot_was_not_used() {
    let is_again =
        |one: &&Vec<u8>| matches!(Response::parse(one.as_slice()).unwrap().form, Form::Again);
    let again = |answer: &[Vec<u8>]| answer.iter().filter(is_again).count();
    // Seven packets are lost, and the request of the eighth reports them.
    let (mut honest, window) = begun();
    let message = request(0, &window[7], &ranges(&window[7..8]));
    let answer = serve(&mut honest, at(200), address(), LENGTH, &message);
    assert_eq!((again(&answer), honest.stats().invented), (7, 0));
    // The seven packets have arrived, and their requests were answered.
    let (mut server, window) = begun();
    for n in 0..7 {
        let message = request(0, &window[n], &ranges(&window[..=n]));
        assert_eq!(serve(&mut server, at(200), address(), LENGTH, &message).len(), 2);
    }
    let base = window[0].number;
    let message = request(0, &window[7], &ranges(&window[7..8]));
    let refused = refusal(&mut server, at(201), address(), &message);
    assert_eq!(refused, Refusal::Forked { base });
    // The requests of all packets except the first are answered, and report the first as lost. A
    // later request also reports the others as lost.
    let (mut server, window) = begun();
    for n in 1..7 {
        let message = request(0, &window[n], &ranges(&window[1..=n]));
        serve(&mut server, at(200), address(), LENGTH, &message);
    }
    let message = request(0, &window[7], &ranges(&window[7..8]));
    let answer = serve(&mut server, at(201), address(), LENGTH, &message);
    assert_eq!((again(&answer), server.stats().invented), (0, 6));
    // The first packet of a pair has no continuation. The request of the second was answered, and
    // proved that the first had arrived.
    let (mut server, window) = begun();
    // Under a new secret the answers have complete continuations instead of deltas.
    server.ring_mut().rotate(2, &[9; 32], 2);
    let [pair, more] = [0, 1].map(|n| {
        let message = request(0, &window[n], &ranges(&window[..=n]));
        kept(&serve(&mut server, at(200), address(), LENGTH, &message))
    });
    // The ninth packet of the window was lost.
    let window = [&window[..8], &window[9..]].concat();
    let message = request(0, &pair[1], &ranges(&[&window[..], &pair].concat()));
    assert!(!serve(&mut server, at(300), address(), LENGTH, &message).is_empty());
    let without = [&window[..], &more[1..]].concat();
    let message = request(0, &more[1], &ranges(&without));
    let answer = serve(&mut server, at(400), address(), LENGTH, &message);
    assert_eq!(
        (again(&answer), server.stats().invented),
        (1, 2),
        "only the packet after the pair is lost"
    );
}

#[test]
fn the_first_of_two_contradicting_reports_counts() {
    let (mut server, window) = begun();
    let base = window[0].number;
    let but = |lost: &[usize], last: usize| {
        let came = (0..=last).filter(|n| !lost.contains(n)).map(|n| window[n].clone());
        request(0, &window[last], &ranges(&came.collect::<Vec<_>>()))
    };
    assert!(!serve(&mut server, at(200), address(), LENGTH, &but(&[1, 2], 5)).is_empty());
    // To get two windows, the client continues as if the packets had arrived, or reports other
    // losses.
    for (lost, last, refused) in [(&[][..], 6, base), (&[2], 6, base + 2), (&[4], 6, base + 4)] {
        let refusal = refusal(&mut server, at(201), address(), &but(lost, last));
        assert_eq!(refusal, Refusal::Forked { base: refused });
    }
    assert!(!serve(&mut server, at(202), address(), LENGTH, &but(&[1, 2, 6], 7)).is_empty());
    assert_eq!(server.stats().inconsistent, 3);
}
