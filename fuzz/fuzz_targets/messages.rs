//! A gateway whose authenticated peer is malicious: it sends repairs of any content, in any order.
//! Even then only packets between the two sites are injected, complete and with correct headers,
//! and memory stays bounded.
#![no_main]

use std::num::NonZeroU16;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, MEMORY, Steps, greet, member, packet, peer, rack};
use viaduct_proto::fec::{Cover, Draw, Repair, Row};
use viaduct_proto::repair::control::Limits;
use viaduct_proto::repair::report::{REPORT, Report};
use viaduct_proto::repair::section::{self, Form, Manner, Name, Need, Part, emit_names};
use viaduct_proto::repair::{Coding, Plane, RackConfig};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::ip::{self, Header, MutableFields};

#[derive(Arbitrary, Debug)]
struct Input {
    /// If this is 0 modulo 8, the handshake is done first, so that the gateway also sends. This is
    /// rare, because handshakes would take most of the time.
    up: u8,
    /// True if both gateways are members of racks.
    in_racks: bool,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Raw bytes.
    Raw(Bytes),
    /// A well-formed repair. Its packet numbers are near those of other steps, or arbitrary if
    /// `far`.
    Repair { first: u32, far: bool, stride: u16, count: u16, kind: Kind, part: u8, body: Body },
    /// Names of packets, whose numbers are near those of other steps.
    Names { first: u16, names: Vec<Named>, times: Option<(u32, Vec<u8>)>, apart: u16 },
    /// Claims of slices, each with its age in milliseconds and its number of packets.
    Claims(Vec<(Packet, u32, u16)>),
    /// The name of a packet, and then a repair that covers only this packet, as an honest peer
    /// sends them.
    Single { first: u16, packet: Packet, fields: (u8, u8) },
    /// A request for repairs or names.
    Need { first: u64, packets: u16, repairs: u8 },
    /// A loss report with arbitrary numbers; the peer's next packet is near those of other steps,
    /// or arbitrary if `far`.
    Report {
        far: Option<u64>,
        next: u16,
        numbers: [u32; 3],
        echo: Option<(u32, u32)>,
        path: [u64; 4],
        full: bool,
    },
    /// A host of the gateway's site sends a packet.
    Leaves(Packet),
    /// A packet arrives from the peer's site.
    Arrives(Packet),
    /// Time passes, in milliseconds.
    Wait { millis: u16 },
    /// The tap missed packets.
    Missed,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    Xor(u8),
    ReedSolomon(u8),
    Window { seed: u16, dense: u16, density: u8 },
}

#[derive(Arbitrary, Debug)]
enum Named {
    Packet(Packet),
    Nothing(u16),
}

#[derive(Arbitrary, Debug)]
enum Body {
    /// The name of a packet (its keyed hash), its mutable fields, and the packet itself.
    Packet(Packet, u8, u8),
    Bytes {
        len_code: [u8; 2],
        bytes: Bytes,
    },
}

/// Packet from a small set, so that names often match bodies.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Packet {
    inwards: bool,
    v6: bool,
    len: u8,
    filler: bool,
}

impl Packet {
    fn normal(self) -> Vec<u8> {
        let fields = MutableFields::default();
        let mut packet =
            packet(self.inwards.into(), self.v6, self.len.into(), self.filler.into(), fields);
        ip::normalise(&mut packet);
        packet
    }
}

fuzz_target!(|input: Input| {
    let coding = || Coding::Auto(Limits { max_overhead: 0.3, max_rate: None }.into());
    let rack = || if input.in_racks { rack() } else { RackConfig::default() };
    let mut gateway = member(0, coding(), rack());
    let mut now = Instant::ZERO;
    if input.up.is_multiple_of(8) {
        [gateway, _] = greet([gateway, member(1, coding(), rack())]);
        now += Duration::from_millis(200);
    }
    // Until the first report, all packets of the peer may be from before the start.
    gateway.handle_opened(now, &report(&Report { next: 1, ..Report::default() }));
    for step in &input.steps.0 {
        match step {
            Step::Raw(bytes) => gateway.handle_opened(now, &bytes.0),
            Step::Arrives(packet) => gateway.handle_incoming(now, now, &mut packet.normal()),
            Step::Leaves(packet) => gateway.handle_outgoing(now, now, &mut packet.normal()),
            Step::Missed => gateway.miss_incoming(now),
            Step::Wait { millis } => {
                now += Duration::from_millis((*millis).into());
            }
            step => gateway.handle_opened(now, &message(&gateway, step)),
        }
        gateway.handle_timeout(now);
        gateway.clear_transmits();
        check(&mut gateway);
    }
});

fn report(report: &Report) -> Vec<u8> {
    let mut out = Vec::new();
    section::emit(REPORT, &mut out, |body| report.emit(body));
    out
}

fn message(gateway: &Plane, step: &Step) -> Vec<u8> {
    let mut out = Vec::new();
    match step {
        Step::Single { first, packet, fields: (ttl, tos) } => {
            let first = u64::from(first % 2048).max(1);
            names(&mut out, first, &[tag(gateway, &packet.normal())], Some((7, &[])), None);
            let body = symbol(gateway, &packet.normal(), *ttl, *tos);
            let len_code = (body.len() as u16).to_be_bytes();
            let cover = Cover { first, stride: 1, count: 1 };
            let repair = Repair { cover, row: Row::Xor { layer: 0 }, len_code, body: &body };
            section::emit_repair(&repair, Part::Whole, &mut out);
        }
        Step::Names { first, names: of, times, apart } => {
            let of = of.iter().take(128).map(|of| match of {
                Named::Packet(packet) => tag(gateway, &packet.normal()),
                Named::Nothing(tag) => *tag,
            });
            let times = times.as_ref().map(|(sent, gaps)| (*sent, gaps.as_slice()));
            let (tags, apart) = (of.collect::<Vec<_>>(), NonZeroU16::new(apart % 256));
            names(&mut out, u64::from(first % 2048), &tags, times, apart);
        }
        Step::Repair { first, far, stride, count, kind, part, body } => {
            let cover = match far {
                true => Cover { first: u64::from(*first), stride: *stride, count: *count },
                false => Cover {
                    first: u64::from(*first % 2048),
                    stride: 1 + *stride % 8,
                    count: 1 + *count % 64,
                },
            };
            let row = match *kind {
                Kind::Xor(layer) => Row::Xor { layer },
                Kind::ReedSolomon(row) => Row::ReedSolomon { row },
                Kind::Window { seed, dense, density } => Row::Window(Draw { seed, dense, density }),
            };
            let part = [Part::Whole, Part::Whole, Part::Head, Part::Tail][usize::from(part % 4)];
            let (len_code, body) = match body {
                Body::Packet(packet, ttl, tos) => {
                    let symbol = symbol(gateway, &packet.normal(), *ttl, *tos);
                    ((symbol.len() as u16).to_be_bytes(), symbol)
                }
                Body::Bytes { len_code, bytes } => (*len_code, bytes.0.clone()),
            };
            section::emit_repair(&Repair { cover, row, len_code, body: &body }, part, &mut out);
        }
        Step::Claims(claims) => {
            const CLAIMS: u8 = 11;
            section::emit(CLAIMS, &mut out, |body| {
                for (of, age, packets) in claims {
                    let site = u8::from(!of.inwards);
                    let (family, address) = match of.v6 {
                        false => (4, vec![10, site, 0, of.len]),
                        true => (6, [&[0xfd, 0, 0, site][..], &[0; 12]].concat()),
                    };
                    body.push(family);
                    body.extend(age.to_be_bytes());
                    body.extend(packets.to_be_bytes());
                    body.extend(address);
                }
            });
        }
        Step::Need { first, packets, repairs } => {
            let need = Need { first: *first, packets: *packets, repairs: *repairs };
            section::emit_need(need, &mut out);
        }
        Step::Report { far, next, numbers: [stamp, wait, each], echo, path, full } => {
            let next = far.map_or(u64::from(*next % 4096), |far| far >> 8);
            let mut report = Report { next, stamp: *stamp, ..Report::default() };
            (report.echo, report.wait) = (*echo, *wait);
            let [packets, congested, visible, bursts] = path.map(|count| count >> 8);
            report.path.random.packets = packets;
            report.path.random.bursts[*each as usize % 16] = bursts;
            (report.path.congested, report.path.visible) = (congested, visible);
            report.path.queue_full = *full;
            section::emit(REPORT, &mut out, |body| report.emit(body));
        }
        Step::Raw(_) | Step::Arrives(_) | Step::Leaves(_) | Step::Wait { .. } | Step::Missed => {}
    }
    out
}

fn tag(gateway: &Plane, normal: &[u8]) -> u16 {
    gateway.name(normal).unwrap_or_default().tag()
}

/// Body of a repair: name, mutable fields with their check, and packet.
fn symbol(gateway: &Plane, normal: &[u8], ttl: u8, tos: u8) -> Vec<u8> {
    gateway.symbol(normal, MutableFields { ttl, tos }).unwrap_or_default()
}

/// Appends a section of names. `times`: send time of the first packet, and the gaps after it;
/// without them, the names are a repetition, or combined with those of packets earlier by `apart`.
fn names(
    out: &mut Vec<u8>,
    first: u64,
    tags: &[u16],
    times: Option<(u32, &[u8])>,
    apart: Option<NonZeroU16>,
) {
    let (mut sent, gaps) = times.unwrap_or_default();
    let mut gaps = gaps.iter().copied().chain(std::iter::repeat(1));
    let name = |&tag: &u16| {
        let at = sent;
        sent = sent.wrapping_add(8 * u32::from(gaps.next().unwrap_or_default()));
        Name { tag, sent: at, ttl: 64, tos: 0, is_bare: tag % 16 == 0 }
    };
    let all: Vec<Name> = tags.iter().map(name).collect();
    let form = match (times, apart) {
        (Some(_), _) => Form::Timed,
        (None, Some(apart)) => Form::Combined(apart),
        (None, None) => Form::Again,
    };
    emit_names(first, &all, form, Manner::default(), out);
}

fn check(gateway: &mut Plane) {
    for packet in gateway.injections().iter() {
        let header = Header::parse(packet).expect("an injected packet has a header");
        assert_eq!(header.total_len, packet.len());
        assert!(peer(0, None).sites.arrives(&header), "{header:?}");
        if packet[0] >> 4 == 4 {
            assert_eq!(ip::internet_checksum(&packet[..header.header_len]), 0);
        }
    }
    gateway.injections().clear();
    assert!(gateway.memory() < MEMORY + (1 << 20), "{} bytes", gateway.memory());
}
