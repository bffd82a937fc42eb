//! Emitted packets are parsed unchanged, and strict connection tracking accepts all of them, with
//! losses and reordering, over any number of bytes.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::conntrack::Conntrack;
use super::stats::Refusal;
use super::tcp::{Checksum, Kind, Packet, SYN_OPTIONS, Segment, emit, largest, parse};
use super::{Mark, Numbers, Return, Role, run};
use crate::rng::Rng;

const MTU: usize = 1500;

fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
    match v6 {
        true => ("[fd00::1]:40000".parse().unwrap(), "[fd00:1::2]:80".parse().unwrap()),
        false => ("10.0.0.1:40000".parse().unwrap(), "10.1.0.2:80".parse().unwrap()),
    }
}

fn read(packet: &[u8]) -> Segment {
    match parse(packet, packet.len(), Checksum::Check) {
        Ok(Packet::Message(segment, _)) => segment,
        other => panic!("{other:?}"),
    }
}

/// Replaces the window scale of a SYN by NOPs, as some middleboxes do.
fn strip_scale(packet: &mut [u8]) {
    if let Some(at) = packet.windows(4).position(|found| found == &SYN_OPTIONS[4..]) {
        packet[at..at + 4].fill(1);
    }
}

/// A client, a stateless server, and connection tracking between them.
struct World {
    client: Numbers,
    track: Conntrack,
    /// Packets that have not arrived at the server, and those that have not arrived at the
    /// client.
    requests: Vec<Segment>,
    answers: Vec<Segment>,
    /// Answers to be sent together, if runs are enabled.
    batch: Option<Vec<Vec<u8>>>,
    scaled: bool,
    rng: Rng,
    loss: f64,
    /// Numbers of packets that passed, of runs among the answers, and of sequence numbers reserved
    /// for answers.
    passed: u64,
    runs: u64,
    numbers: u64,
}

impl World {
    fn new(seed: u64, loss: f64, scaled: bool) -> World {
        let mut rng = Rng::from_seed(seed);
        let (local, remote) = ends(seed.is_multiple_of(2));
        // An initial number near the wrap-around.
        let first = u32::MAX - rng.below(100_000) as u32;
        let client = Numbers::new(local, remote, first);
        let track = Conntrack::new(scaled);
        let (requests, answers) = Default::default();
        let (batch, passed, runs, numbers) = (None, 0, 0, 0);
        World { client, track, requests, answers, batch, scaled, rng, loss, passed, runs, numbers }
    }

    /// Sends answers of one length as runs.
    fn in_runs(mut self) -> World {
        self.batch = Some(Vec::new());
        self
    }

    fn request(&mut self, bytes: usize, expected: u32) {
        let mut packet = Vec::new();
        self.client.request(&vec![1; bytes], expected, MTU, &mut packet).unwrap();
        let segment = self.through(0, &mut packet);
        assert!(self.client.has_sent(segment.seq));
        self.numbers += u64::from(expected);
        if !self.rng.chance(self.loss) {
            self.requests.push(segment);
        }
    }

    fn room(&self) -> usize {
        let room = self.client.room(MTU);
        if self.client.is_open() { room.later } else { room.first }
    }

    /// Makes the server answer one of the waiting requests with `packets` packets.
    fn serve(&mut self, packets: usize) {
        let at = self.late(self.requests.len());
        let mut to = Return::of(&self.requests.remove(at)).unwrap();
        for _ in 0..packets {
            let mut packet = Vec::new();
            let bytes = 1 + self.rng.below(1_400) as usize;
            let bytes = if self.batch.is_some() { 1_400 } else { bytes };
            to.answer(&vec![2; bytes], MTU, &mut packet).unwrap();
            match &mut self.batch {
                Some(batch) => batch.push(packet),
                None => self.answer(packet),
            }
        }
        if self.batch.as_ref().is_some_and(|batch| batch.len() > 5) {
            self.leave();
        }
    }

    /// Sends the waiting answers, as runs where possible.
    fn leave(&mut self) {
        let Some(mut batch) = self.batch.as_mut().map(std::mem::take) else { return };
        while !batch.is_empty() {
            let cut = run::cut(&batch[0]);
            let count = 1
                + (1..batch.len())
                    .take_while(|&n| cut.is_some() && run::goes_on(&batch[0], n, &batch[n]))
                    .count();
            let mut packet = cut.map_or_else(Vec::new, |cut| run::head(&batch[0], cut, count));
            for one in batch.drain(..count) {
                packet.extend(&one[cut.map_or(0, |cut| cut.headers)..]);
            }
            self.answer(packet);
        }
    }

    fn answer(&mut self, mut packet: Vec<u8>) {
        // The packet is lost on the way to conntrack, or after it.
        if self.rng.chance(self.loss / 2.0) {
            return;
        }
        let segment = self.through(1, &mut packet);
        if !self.rng.chance(self.loss / 2.0) {
            self.answers.push(segment);
        }
    }

    fn hear(&mut self) {
        let at = self.late(self.answers.len());
        let answer = self.answers.remove(at);
        assert!(self.client.handle_answer(&answer, answer.mark.length.into()));
    }

    /// Index of the waiting packet that arrives next: usually the first. Unscaled windows are too
    /// small for reordering, so there it is always the first.
    fn late(&mut self, waiting: usize) -> usize {
        if self.scaled && self.rng.chance(0.2) {
            self.rng.below(waiting as u64) as usize
        } else {
            0
        }
    }

    fn through(&mut self, from: usize, packet: &mut [u8]) -> Segment {
        if !self.scaled {
            strip_scale(packet);
        }
        let segment = match parse(packet, packet.len(), Checksum::Trust) {
            Ok(Packet::Message(mut segment, messages)) => {
                self.runs += u64::from(messages.len() > segment.mark.length.into());
                segment.mark.length = messages.len() as u16;
                segment
            }
            other => panic!("{other:?}"),
        };
        self.passed += 1;
        let verdict = self.track.pass(from, &segment);
        assert_eq!(verdict, Ok(()), "packet {} {segment:?} {:?}", self.passed, self.client);
        segment
    }

    /// Sends `requests` requests, with at most `outstanding` unanswered. `expected` is the answer
    /// length that the client expects; a large value leaves gaps.
    fn run(&mut self, requests: usize, outstanding: usize, expected: u32) {
        for _ in 0..requests {
            let bytes = 80 + self.rng.below(1_300) as usize;
            let bytes = bytes.min(self.room());
            self.request(bytes, expected);
            while self.requests.len() > outstanding / 2 {
                let packets = 1 + self.rng.below(3) as usize;
                self.serve(packets);
            }
            while self.answers.len() > outstanding / 2 {
                self.hear();
            }
        }
    }
}

#[test]
fn strict_tracking_accepts_three_hundred_outstanding_requests_with_losses_and_late_packets() {
    for seed in 0..40 {
        for loss in [0.0, 0.01, 0.2, 0.6] {
            let mut world = World::new(seed, loss, true);
            world.run(1_500, 300, 3 * 1448);
            assert!(world.client.is_open());
        }
    }
}

#[test]
fn strict_tracking_accepts_runs_of_answers() {
    for (seed, loss) in (0..40).flat_map(|seed| [0.0, 0.05, 0.4].map(|loss| (seed, loss))) {
        for (scaled, outstanding) in [(true, 300), (false, 16)] {
            let mut world = World::new(seed, loss, scaled).in_runs();
            world.run(1_500, outstanding, 3 * 1448);
            assert!(world.runs > 100, "{} {scaled}", world.runs);
        }
    }
}

#[test]
fn strict_tracking_accepts_sparse_ranges_far_beyond_four_gigabytes() {
    let mut world = World::new(3, 0.02, true);
    world.run(20_000, 300, 1 << 20);
    assert!(world.numbers > 4 << 32, "{}", world.numbers);
    world.run(20_000, 20, 100 << 20);
}

#[test]
fn strict_tracking_accepts_a_connection_whose_window_scale_was_removed() {
    for seed in 0..40 {
        World::new(seed, 0.1, false).run(2_000, 16, 3 * 1448);
    }
}

#[test]
fn strict_tracking_accepts_a_long_time_without_answers() {
    let mut world = World::new(5, 0.0, true);
    world.run(100, 4, 1448);
    for _ in 0..2_000 {
        world.request(1_400, 1 << 20);
        world.requests.clear();
    }
    world.run(100, 4, 1448);
}

#[test]
fn forged_numbers_do_not_change_the_clients_own() {
    let mut world = World::new(6, 0.0, true);
    world.run(10, 2, 1448);
    let mut packet = Vec::new();
    world.client.request(b"x", 1448, MTU, &mut packet).unwrap();
    let before = read(&packet);
    let mut to = Return::of(&before).unwrap();
    to.answer(b"forged", MTU, &mut packet).unwrap();
    let mut forged = read(&packet);
    forged.seq = forged.seq.wrapping_add(1 << 30);
    forged.ack = forged.ack.wrapping_add(1 << 30);
    assert!(world.client.handle_answer(&forged, 6), "the message is processed");
    world.client.request(b"x", 1448, MTU, &mut packet).unwrap();
    assert_eq!(read(&packet).ack, before.ack);
    assert_eq!(read(&packet).seq, before.seq.wrapping_add(1));
    let mut to = Return::of(&before).unwrap();
    to.answer(b"forged", MTU, &mut packet).unwrap();
    let mut guessed = read(&packet);
    guessed.ack = guessed.ack.wrapping_add(1 << 30);
    assert!(world.client.handle_answer(&guessed, 6));
    world.client.request(b"x", 1448, MTU, &mut packet).unwrap();
    assert_eq!(read(&packet).ack, before.ack, "only one of the two numbers was guessed");
    let guesses = [1 << 30, 1 << 31, u32::MAX - (1 << 30)].map(|far| before.seq.wrapping_add(far));
    assert!(guesses.into_iter().all(|guess| !world.client.has_sent(guess)));
    forged.source.set_port(81);
    assert!(!world.client.handle_answer(&forged, 6));
}

#[test]
fn joined_cut_and_unmarked_packets_are_refused_and_distinguished() {
    let (local, remote) = ends(false);
    let mut packet = Vec::new();
    Numbers::new(local, remote, 1).request(&[7; 100], 1, MTU, &mut packet).unwrap();
    let length = packet.len();
    assert_eq!(parse(&packet[..90], length, Checksum::Check), Err(Refusal::Cut));
    let mut joined = packet.clone();
    joined.extend([7; 100]);
    joined[2..4].copy_from_slice(&((length + 100) as u16).to_be_bytes());
    assert_eq!(parse(&joined, length + 100, Checksum::Trust), Err(Refusal::Merged));
    let mut wrong = packet.clone();
    wrong[length - 1] ^= 1;
    assert_eq!(parse(&wrong, length, Checksum::Check), Err(Refusal::Checksum));
    assert!(parse(&wrong, length, Checksum::Trust).is_ok(), "a device fills the checksum in later");
    let mut unmarked = packet.clone();
    unmarked[40] = 254;
    assert_eq!(parse(&unmarked, length, Checksum::Trust), Err(Refusal::Unmarked));
    unmarked[33] = 0x12;
    let plain = parse(&unmarked, length, Checksum::Trust);
    assert!(matches!(plain, Ok(Packet::Plain { reset: false, .. })), "{plain:?}");
    let mut from_many = packet.clone();
    from_many[12..16].copy_from_slice(&[224, 0, 0, 1]);
    assert_eq!(parse(&from_many, length, Checksum::Trust), Err(Refusal::NotOurs));
    let mut fragment = packet.clone();
    fragment[6] = 0x20;
    assert_eq!(parse(&fragment, length, Checksum::Trust), Err(Refusal::Malformed));
}

#[test]
fn consecutive_packets_have_different_options() {
    let (local, remote) = ends(false);
    let mut packets = [Vec::new(), Vec::new()];
    let mut client = Numbers::new(local, remote, 1);
    for packet in &mut packets {
        client.request(&[7; 100], 1, MTU, packet).unwrap();
    }
    assert_ne!(packets[0][40..52], packets[1][40..52]);
    let mut to = Return::of(&read(&packets[0])).unwrap();
    to.answer(b"opens", MTU, &mut packets[0]).unwrap();
    for packet in &mut packets {
        to.answer(b"answer", MTU, packet).unwrap();
    }
    assert_ne!(packets[0][40..52], packets[1][40..52]);
}

fn segments() -> impl Strategy<Value = Segment> {
    let kinds = prop::sample::select(vec![Kind::Syn, Kind::SynAck, Kind::Data, Kind::Data]);
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u8>());
    (kinds, numbers, any::<bool>(), any::<bool>()).prop_map(|(kind, numbers, v6, answer)| {
        let (seq, ack, ahead, count) = numbers;
        let (source, destination) = ends(v6);
        let role = match kind {
            Kind::Syn => Role::Request,
            Kind::SynAck => Role::Answer,
            Kind::Data if answer => Role::Answer,
            Kind::Data => Role::Request,
        };
        let mark = Mark { role, count, length: 0, ahead };
        let largest = largest(!v6, kind, MTU);
        Segment { source, destination, kind, seq, ack, scaled: true, largest, mark }
    })
}

proptest! {
    #[test]
    fn emitted_packets_are_parsed_unchanged(
        segment in segments(),
        message in prop::collection::vec(any::<u8>(), 0..1420),
        padding in 0..20_usize,
    ) {
        let mut packet = Vec::new();
        emit(&segment, &message, MTU, &mut packet).unwrap();
        let length = packet.len();
        // An Ethernet frame may be longer than its packet.
        packet.extend(vec![0; padding]);
        let mark = Mark { length: message.len() as u16, ..segment.mark };
        let read = parse(&packet, length, Checksum::Check);
        prop_assert_eq!(read, Ok(Packet::Message(Segment { mark, ..segment }, &message[..])));
    }

    #[test]
    fn parsing_never_panics(mut bytes: Vec<u8>, length: usize, first in 0..3_usize) {
        if let Some(byte) = bytes.first_mut() {
            *byte = [*byte, 0x45, 0x60][first];
        }
        let _ = parse(&bytes, length % 100_000, Checksum::Trust);
        let _ = super::icmp::parse(&bytes);
        let _ = super::udp::parse(&bytes);
        let _ = Return::parse(&bytes);
    }
}
