//! Trickles' packets. A packet that parses has the same fields after it is emitted and parsed
//! again, a server's answer to it parses, and no answer makes a client exceed its windows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::trickles::packet::tcp::{self, Checksum, Kind, Packet, Segment};
use viaduct_proto::trickles::packet::{Mark, Numbers, Return, Role, icmp, run, udp};
use viaduct_proto::wire::ip::internet_checksum;

const MTU: usize = 1500;
/// Maximum of `ahead` in a client's request, in bytes of sequence numbers.
const WIDE: u32 = 1 << 29;

fuzz_target!(|input: &[u8]| {
    let _ = icmp::parse(input);
    is_an_error(input, false);
    is_an_error(input, true);
    if let Some(way) = Return::parse(input) {
        assert_eq!(Return::parse(&way.emit()), Some(way));
    }
    if let Ok((role, count, message)) = udp::parse(input) {
        assert_eq!([&udp::head(role, count)[..], message].concat(), input);
    }
    if let Ok(Packet::Message(segment, message)) = tcp::parse(input, input.len(), Checksum::Trust) {
        let all: usize = segment.messages(message).map(<[u8]>::len).sum();
        assert_eq!(all, message.len());
        is_read_again(&segment, message);
        is_answered(&segment);
    }
    is_cut(input);
    parses_any_exchange(input);
});

/// Parses the input as the message of an ICMP or ICMPv6 packet with a correct checksum.
fn is_an_error(input: &[u8], v6: bool) {
    if !(8..60_000).contains(&input.len()) {
        return;
    }
    let (mut message, length) = (input.to_vec(), input.len() as u16);
    message[2..4].fill(0);
    let (mut packet, pseudo) = if v6 {
        let head = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[58, 64], &[0; 32]].concat();
        (head, [&[0; 34][..], &length.to_be_bytes(), &[0, 0, 0, 58]].concat())
    } else {
        let length = (length + 20).to_be_bytes();
        ([&[0x45, 0][..], &length, &[0, 0, 0, 0, 64, 1], &[0; 10]].concat(), Vec::new())
    };
    let sum = internet_checksum(&[&pseudo[..], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet.extend(message);
    let Some(report) = icmp::parse(&packet) else { return };
    assert_eq!(report.source.is_ipv6(), v6);
    let least = if v6 { icmp::MIN_MTU_V6 } else { icmp::MIN_MTU_V4 };
    assert!(!matches!(report.why, icmp::Why::TooBig(mtu) if mtu < least));
}

/// Checks a packet that can begin a run (several answers in one packet): the run's headers are as
/// long as the packet's, and `goes_on` does not panic.
fn is_cut(input: &[u8]) {
    let Some(cut) = run::cut(input) else { return };
    assert_eq!(cut.headers + cut.message, input.len());
    assert!(run::is_one_way(input, input));
    for count in 1..=16 {
        if cut.headers + count * cut.message <= usize::from(u16::MAX) {
            assert_eq!(run::head(input, cut, count).len(), cut.headers);
            let _ = run::goes_on(input, count, input);
        }
    }
}

/// Checks that an emitted segment parses to an equal segment, except for fields that only some
/// segments carry or that the path may change.
fn is_read_again(segment: &Segment, message: &[u8]) {
    let (mut packet, mtu) = (Vec::new(), usize::from(u16::MAX));
    if tcp::emit(segment, message, mtu, &mut packet).is_err() {
        return;
    }
    let largest = tcp::largest(segment.source.is_ipv4(), segment.kind, mtu);
    let mark = Mark { length: message.len() as u16, ..segment.mark };
    let whole = Segment { scaled: true, largest, mark, ..*segment };
    let read = tcp::parse(&packet, packet.len(), Checksum::Check);
    assert_eq!(read, Ok(Packet::Message(whole, message)));
}

fn is_answered(request: &Segment) {
    let Some(mut way) = Return::of(request) else { return };
    assert_eq!(request.mark.role, Role::Request);
    let mut packet = Vec::new();
    for kind in [if request.kind == Kind::Syn { Kind::SynAck } else { Kind::Data }, Kind::Data] {
        way.answer(b"answer", MTU, &mut packet).expect("it fits");
        let read = tcp::parse(&packet, packet.len(), Checksum::Check);
        let Ok(Packet::Message(answer, b"answer")) = read else { panic!("{read:?}") };
        assert_eq!((answer.kind, answer.destination), (kind, request.source));
    }
}

/// Sends a request before each answer. Ten bytes describe an answer: its kind, its sequence number,
/// its acknowledgement number, and its length.
fn parses_any_exchange(input: &[u8]) {
    let ends = ["10.0.0.1:40000", "10.0.0.2:80"].map(|at| at.parse().expect("an address"));
    let mut client = Numbers::new(ends[0], ends[1], 1);
    let mut packet = Vec::new();
    for told in input.chunks_exact(10) {
        let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| told[at + n]));
        client.request(&told[..9], number(1), MTU, &mut packet).expect("it fits");
        let Ok(Packet::Message(sent, _)) = tcp::parse(&packet, packet.len(), Checksum::Check)
        else {
            panic!("the client's own request does not parse")
        };
        assert!(sent.mark.ahead <= WIDE);
        assert_eq!(sent.kind.is_syn(), !client.is_open());
        let mut answer = sent;
        (answer.source, answer.destination) = (ends[1], ends[0]);
        answer.mark.role = if told[0] & 1 == 0 { Role::Answer } else { Role::Request };
        answer.kind = if told[0] & 2 == 0 { Kind::SynAck } else { Kind::Data };
        answer.scaled = told[0] & 4 == 0;
        // Near the correct numbers, or anywhere.
        let base = if told[0] & 8 == 0 { [sent.ack, sent.seq] } else { [0, 0] };
        (answer.seq, answer.ack) =
            (base[0].wrapping_add(number(1)), base[1].wrapping_add(number(5)));
        answer.mark.length = u16::from_be_bytes([told[8], told[9]]);
        let bytes = usize::from(answer.mark.length) * (1 + usize::from(told[0] >> 4));
        assert_eq!(client.handle_answer(&answer, bytes), answer.mark.role == Role::Answer);
    }
}
