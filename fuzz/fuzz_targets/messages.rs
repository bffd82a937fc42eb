//! A gateway whose peer has the right keys and bad intentions: repairs of any content, in any
//! order. Even then only packets between the two sites are injected, whole and with right headers,
//! and memory stays bounded.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, MEMORY, Steps, first_code, packet, peer, plane};
use viaduct_proto::fec::{Cover, Repair, Row};
use viaduct_proto::repair::Plane;
use viaduct_proto::repair::identity::Identity;
use viaduct_proto::repair::wire::{Announcement, emit_repair};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::ip::{self, Header, Hop};

#[derive(Arbitrary, Debug)]
enum Step {
    /// Bytes as they are.
    Raw(Bytes),
    /// A repair, well-formed; its numbers are near those of others, or `far`.
    Repair {
        first: u32,
        far: bool,
        stride: u16,
        count: u8,
        kind: Kind,
        names: Vec<Name>,
        body: Body,
    },
    /// A repair of one packet under its own name, as an honest peer sends it.
    Single { first: u16, packet: Packet, hop: (u8, u8) },
    /// A packet arrives.
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
    Window(u16),
}

#[derive(Arbitrary, Debug)]
struct Name {
    position: u8,
    of: Named,
    ttl: u8,
    tos: u8,
}

#[derive(Arbitrary, Debug)]
enum Named {
    Packet(Packet),
    Bytes(Bytes),
    Nothing(u64),
}

#[derive(Arbitrary, Debug)]
enum Body {
    Packet(Packet),
    Bytes { len_code: [u8; 2], bytes: Bytes },
}

/// Few different ones, so that names meet bodies.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Packet {
    inwards: bool,
    v6: bool,
    len: u8,
    filler: bool,
}

impl Packet {
    fn normal(self) -> Vec<u8> {
        let hop = Hop::default();
        let mut packet =
            packet(self.inwards.into(), self.v6, self.len.into(), self.filler.into(), hop);
        ip::normalise(&mut packet);
        packet
    }
}

fuzz_target!(|steps: Steps<Step>| {
    let mut gateway = plane(0, first_code());
    let mut now = Instant::ZERO;
    for step in &steps.0 {
        match step {
            Step::Raw(bytes) => gateway.handle_opened(now, &bytes.0),
            Step::Arrives(packet) => gateway.handle_incoming(now, &mut packet.normal()),
            Step::Missed => gateway.miss_incoming(),
            Step::Wait { millis } => {
                now += Duration::from_millis((*millis).into());
                gateway.handle_timeout(now);
                gateway.clear_transmits();
            }
            Step::Single { .. } | Step::Repair { .. } => {
                let message = message(&gateway, step);
                gateway.handle_opened(now, &message);
            }
        }
        check(&mut gateway);
    }
});

fn message(gateway: &Plane, step: &Step) -> Vec<u8> {
    let mut out = Vec::new();
    if let Step::Single { first, packet, hop: (ttl, tos) } = *step {
        let (body, hop) = (packet.normal(), Hop { ttl, tos });
        let cover = Cover { first: u64::from(first % 2048), stride: 1, count: 1 };
        let len_code = (body.len() as u16).to_be_bytes();
        let repair = Repair { cover, row: Row::Xor { layer: 0 }, len_code, body: &body };
        let identity = gateway.name(&body).unwrap_or_default();
        emit_repair(&repair, [Announcement { position: 0, identity, hop }].into_iter(), &mut out);
    }
    let Step::Repair { first, far, stride, count, kind, names, body } = step else { return out };
    let cover = match far {
        true => Cover { first: u64::from(*first) << 32, stride: *stride, count: *count },
        false => Cover {
            first: u64::from(*first % 2048),
            stride: 1 + *stride % 8,
            count: 1 + *count % 16,
        },
    };
    let row = match *kind {
        Kind::Xor(layer) => Row::Xor { layer },
        Kind::ReedSolomon(row) => Row::ReedSolomon { row },
        Kind::Window(seed) => Row::Window { seed },
    };
    let (len_code, body) = match body {
        Body::Packet(packet) => {
            let packet = packet.normal();
            ((packet.len() as u16).to_be_bytes(), packet)
        }
        Body::Bytes { len_code, bytes } => (*len_code, bytes.0.clone()),
    };
    let name = |normal: &[u8]| gateway.name(normal).unwrap_or_default();
    let announced = names.iter().take(255).map(|Name { position, of, ttl, tos }| Announcement {
        position: *position % cover.count.max(1),
        identity: match of {
            Named::Packet(packet) => name(&packet.normal()),
            Named::Bytes(bytes) => name(&bytes.0),
            Named::Nothing(number) => Identity(*number),
        },
        hop: Hop { ttl: *ttl, tos: *tos },
    });
    let repair = Repair { cover, row, len_code, body: &body };
    emit_repair(&repair, announced.collect::<Vec<_>>().into_iter(), &mut out);
    out
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
