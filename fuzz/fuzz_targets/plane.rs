//! Two gateways under any sequence of operations, whose link loses, delays, repeats and alters
//! messages: every injected packet was sent by the other side's hosts, byte for byte except for the
//! fields that routers change, and memory stays bounded.
#![no_main]

use std::collections::HashSet;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{
    Bytes, MEMORY, MTU, Steps, drain, endpoint, first_code, packet, pair, peer, plane,
};
use viaduct_proto::fec::{Code, layered, reed_solomon, window};
use viaduct_proto::repair::control::Limits;
use viaduct_proto::repair::{Coding, Plane};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::ip::{self, Header, MutableFields};

#[derive(Arbitrary, Debug)]
struct Input {
    /// True if the handshake is already done.
    up: bool,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// A host sends a packet; equal fields make byte-identical packets.
    Send { from: bool, v6: bool, len: u16, filler: u8, ttl: u8, tos: u8, fate: Fate },
    /// A host of `from` sends many packets, and some of them are lost.
    Stream { from: bool, count: u8, lost: u64 },
    /// A packet that was held back arrives.
    Late { index: u8 },
    /// A gateway's tap delivers bytes that need not be a packet.
    Seen { by: bool, leaves: bool, bytes: Bytes },
    /// A datagram between the gateways arrives.
    Datagram { index: u8, stays: bool, change: Change },
    /// All datagrams between the gateways arrive.
    Datagrams,
    /// Arbitrary bytes arrive at a gateway.
    Hostile { to: bool, bytes: Bytes },
    /// Time passes, in units of a tenth of a millisecond; at most 0.4 s at once.
    Wait { units: u16 },
    /// A gateway changes its code.
    Recode { at: bool, coding: Option<Parameters> },
    /// A gateway restarts. This is rare, because handshakes would take most of a run's time.
    Restart { at: bool, sure: u8 },
    /// A gateway's tap missed packets.
    Missed { at: bool, count: u8 },
}

#[derive(Arbitrary, Debug)]
enum Fate {
    Arrives,
    Lost,
    Held,
}

#[derive(Arbitrary, Debug)]
enum Change {
    None,
    Flip { at: u16, bit: u8 },
    Cut { len: u16 },
    Overwrite { at: u16, bytes: Bytes },
}

#[derive(Arbitrary, Debug)]
enum Parameters {
    Layered { r: u8, interleaves: [u8; 3], delay_xors: bool },
    ReedSolomon { r: u8, c: u8, interleave: u8 },
    Window { window: u8, repairs: u8, packets: u8 },
    Auto,
    Observe,
}

impl Parameters {
    /// Returns the coding. A gateway may refuse it, and must then change nothing.
    fn coding(&self) -> Coding {
        Coding::Fixed(match *self {
            Parameters::Auto => {
                return Coding::Auto(Limits { max_overhead: 0.3, max_rate: None }.into());
            }
            Parameters::Observe => return Coding::Observe,
            Parameters::Layered { r, interleaves, delay_xors } => {
                let interleaves = interleaves.map(|i| u16::from(i % 64)).to_vec();
                Code::Layered(layered::Parameters { r: r % 16, interleaves, delay_xors })
            }
            Parameters::ReedSolomon { r, c, interleave } => {
                let (r, c, interleave) = (r % 64, c % 8, u16::from(interleave % 8));
                Code::ReedSolomon(reed_solomon::Parameters { r, c, interleave })
            }
            Parameters::Window { window, repairs, packets } => {
                let (window, packets) = (u16::from(window) * 9, packets.into());
                Code::Window(window::Parameters {
                    window,
                    repairs: u16::from(repairs % 8),
                    packets,
                })
            }
        })
    }
}

struct World {
    now: Instant,
    planes: [Plane; 2],
    /// Packets that each side's hosts sent.
    sent: [HashSet<Vec<u8>>; 2],
    held: Vec<(usize, Vec<u8>)>,
    datagrams: Vec<(usize, Vec<u8>)>,
    next: u32,
}

/// Maximum number of datagrams in flight; beyond it, the oldest are lost.
const MAX_DATAGRAMS: usize = 256;

fuzz_target!(|input: Input| {
    let code = first_code();
    let planes =
        if input.up { pair(&code) } else { [plane(0, code.clone()), plane(1, code.clone())] };
    let mut world = World {
        now: Instant::ZERO + Duration::from_secs(3),
        planes,
        sent: Default::default(),
        held: vec![],
        datagrams: vec![],
        next: 0,
    };
    for step in &input.steps.0 {
        world.step(step);
        world.check();
    }
});

impl World {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { from, v6, len, filler, ttl, tos, ref fate } => {
                let len = usize::from(len) % (MTU + 100);
                let packet = packet(from.into(), v6, len, filler, MutableFields { ttl, tos });
                self.send(from.into(), packet, fate);
            }
            Step::Stream { from, count, lost } => self.stream(from.into(), count, lost),
            Step::Late { index } => {
                if let Some(index) = usize::from(index).checked_rem(self.held.len()) {
                    let (from, mut packet) = self.held.swap_remove(index);
                    self.planes[1 - from].handle_incoming(self.now, self.now, &mut packet);
                }
            }
            Step::Seen { by, leaves, ref bytes } => self.seen(by.into(), leaves, &bytes.0),
            Step::Datagram { index, stays, ref change } => self.datagram(index, stays, change),
            Step::Datagrams => {
                for (from, mut datagram) in std::mem::take(&mut self.datagrams) {
                    self.arrive(from, &mut datagram);
                }
            }
            Step::Hostile { to, ref bytes } => {
                self.arrive(1 - usize::from(to), &mut bytes.0.clone())
            }
            Step::Wait { units } => self.wait(Duration::from_micros(u64::from(units % 4096) * 100)),
            Step::Recode { at, ref coding } => {
                let peer = peer(at.into(), coding.as_ref().map(Parameters::coding));
                let _ = self.planes[usize::from(at)].change(vec![peer], self.now);
            }
            Step::Restart { at, sure } if sure % 16 == 0 => {
                self.planes[usize::from(at)] = plane(at.into(), first_code());
            }
            Step::Restart { .. } => {}
            Step::Missed { at, count } => {
                let plane = &mut self.planes[usize::from(at)];
                plane.miss_outgoing(count.into());
                plane.miss_incoming(self.now);
            }
        }
    }

    fn send(&mut self, from: usize, packet: Vec<u8>, fate: &Fate) {
        self.planes[from].handle_outgoing(self.now, self.now, &mut packet.clone());
        match fate {
            Fate::Arrives => {
                self.planes[1 - from].handle_incoming(self.now, self.now, &mut packet.clone());
            }
            Fate::Lost => {}
            Fate::Held => self.held.push((from, packet.clone())),
        }
        self.sent[from].insert(normal(&packet));
    }

    /// Sends unique packets, a tenth of a millisecond apart.
    fn stream(&mut self, from: usize, count: u8, lost: u64) {
        for i in 0..count % 32 {
            self.next += 1;
            let mut packet = packet(from, false, 40, 0, MutableFields { ttl: 60, tos: 0 });
            packet[28..32].copy_from_slice(&self.next.to_be_bytes());
            let fate = if lost >> i & 1 == 1 { Fate::Lost } else { Fate::Arrives };
            self.send(from, packet, &fate);
            self.wait(Duration::from_micros(100));
        }
    }

    fn seen(&mut self, by: usize, leaves: bool, bytes: &[u8]) {
        if !leaves {
            self.planes[by].handle_incoming(self.now, self.now, &mut bytes.to_vec());
            return;
        }
        self.planes[by].handle_outgoing(self.now, self.now, &mut bytes.to_vec());
        if let Ok(header) = Header::parse(bytes) {
            self.sent[by].insert(normal(&bytes[..header.total_len]));
        }
    }

    fn datagram(&mut self, index: u8, stays: bool, change: &Change) {
        let Some(index) = usize::from(index).checked_rem(self.datagrams.len()) else { return };
        let (from, mut datagram) = self.datagrams[index].clone();
        if !stays {
            self.datagrams.remove(index);
        }
        let len = datagram.len();
        match *change {
            Change::None => {}
            Change::Flip { at, bit } => datagram[usize::from(at) % len] ^= 1 << (bit % 8),
            Change::Cut { len: left } => datagram.truncate(usize::from(left) % (len + 1)),
            Change::Overwrite { at, ref bytes } => {
                let into = datagram[usize::from(at) % len..].iter_mut();
                into.zip(&bytes.0).for_each(|(to, from)| *to = *from);
            }
        }
        self.arrive(from, &mut datagram);
    }

    fn arrive(&mut self, from: usize, datagram: &mut [u8]) {
        self.planes[1 - from].handle_datagram(self.now, endpoint(from), datagram);
        self.collect();
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..1_000 {
            let next = self.planes.iter().filter_map(Plane::poll_timeout).min();
            let Some(next) = next.filter(|&next| next <= end) else { break };
            self.now = self.now.max(next);
            self.planes.iter_mut().for_each(|plane| plane.handle_timeout(self.now));
            self.collect();
        }
        self.now = end;
        self.collect();
    }

    fn collect(&mut self) {
        for from in 0..2 {
            let fresh = drain(&mut self.planes[from]);
            self.datagrams.extend(fresh.into_iter().map(|datagram| (from, datagram)));
        }
        let surplus = self.datagrams.len().saturating_sub(MAX_DATAGRAMS);
        self.datagrams.drain(..surplus);
    }

    fn check(&mut self) {
        self.collect();
        for (side, plane) in self.planes.iter_mut().enumerate() {
            for packet in plane.injections().iter() {
                assert!(self.sent[1 - side].contains(&normal(packet)), "never sent: {packet:02x?}");
            }
            plane.injections().clear();
            // In addition to the receiver's memory: the bins and names of the largest code here.
            assert!(plane.memory() < MEMORY + (1 << 20), "{} bytes", plane.memory());
        }
    }
}

/// Packet without the fields that routers change: TTL, TOS and checksum.
fn normal(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    ip::normalise(&mut packet);
    packet
}
