//! Steering: connections of this machine's programs are redirected to a hop (a proxy). Their SYN
//! carries the intended destination.

use std::net::{IpAddr, SocketAddrV4};
use std::os::fd::AsFd as _;
use std::path::Path;

use super::BpfError;
use super::asm::{Asm, FP, Insn, Label, R0, R1, R2, R6, R7, R8, Width};
use super::cgroup::Cgroup;
use super::kernel::{Hook, Link, Map};
use super::option::{self, COOKIE, OPTION, VALUE, look_up};
use crate::netns;

/// Max connections whose intended destination is remembered for getpeername(2).
const SOCKETS: u32 = 65_536;
/// Max number of prefixes and ports together that a BPF program tests.
const MAX_TESTS: usize = 1000;
const TCP: u32 = libc::IPPROTO_TCP as u32;
/// Third word of an IPv4-mapped IPv6 address.
const MAPPED: [u8; 4] = [0, 0, 0xff, 0xff];

// Fields of `struct bpf_sock_addr`.
const IP4: i16 = 4;
const IP6: i16 = 8;
const PORT: i16 = 24;
const PROTOCOL: i16 = 36;

/// An option of 16 bytes, and the offsets of the addresses and ports in it.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// The option, with zeros for its addresses and ports.
    pub bytes: [u8; OPTION],
    /// Offset of the source address (4 bytes); a multiple of 4.
    pub source: i16,
    /// Offset of the destination address; a multiple of 4.
    pub destination: i16,
    /// Offset of the source port (2 bytes); a multiple of 2.
    pub source_port: i16,
    /// Offset of the destination port; a multiple of 2.
    pub destination_port: i16,
}

/// Connections to steer, and the hop.
#[derive(Clone, Debug)]
pub struct Steering {
    /// The hop.
    pub hop: SocketAddrV4,
    /// Destination prefixes; IPv6 ones are ignored.
    pub destinations: Vec<(IpAddr, u8)>,
    /// Destination ports; empty means all.
    pub ports: Vec<u16>,
    /// Option that tells the hop the destination.
    pub template: Template,
}

/// The attached programs, for the calling thread's network namespace only.
#[derive(Debug)]
pub struct Steer {
    _links: Vec<Link>,
}

impl Steer {
    /// Attaches the programs to the sockets of `cgroup`, or to all sockets if it is `None`. Errors:
    /// a privilege is missing, the kernel is too old, there are too many prefixes, or there is no
    /// such cgroup.
    pub fn attach(steering: &Steering, cgroup: Option<&Path>) -> Result<Steer, BpfError> {
        let given = steering.destinations.len() + steering.ports.len();
        if given > MAX_TESTS {
            return Err(BpfError::TooMany { given, most: MAX_TESTS });
        }
        let cgroup = cgroup.map_or_else(Cgroup::root, Cgroup::at)?;
        let map = Map::new(SOCKETS)?;
        let netns = netns::cookie().map_err(BpfError::Socket)?;
        let template = Some(&steering.template);
        // The program that adds the option is attached first: no connection may be steered to the
        // hop without the option.
        let programs = [
            (Hook::SockOps, option::program(&map, template)),
            (Hook::PeerName4, peer_name(&map, &steering.template, Family::V4)),
            (Hook::PeerName6, peer_name(&map, &steering.template, Family::Mapped)),
            (Hook::Connect4, connect(&map, steering, netns, Family::V4)),
            (Hook::Connect6, connect(&map, steering, netns, Family::Mapped)),
        ];
        let links = programs
            .iter()
            .map(|(hook, program)| Link::new(*hook, program, cgroup.as_fd()))
            .collect::<Result<_, _>>()?;
        Ok(Steer { _links: links })
    }
}

/// Form of an IPv4 address in a socket: native or IPv4-mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    Mapped,
}

impl Family {
    /// Returns the offset of the address in the context.
    fn ip(self) -> i16 {
        if self == Family::V4 { IP4 } else { IP6 + 12 }
    }

    /// Emits a jump to `other` unless the destination has this form.
    fn test(self, asm: &mut Asm, other: Label) {
        if self == Family::V4 {
            return;
        }
        for (at, part) in [(0, [0; 4]), (4, [0; 4]), (8, MAPPED)] {
            asm.load(Width::Word, R2, R6, IP6 + at);
            asm.if_different(R2, u32::from_ne_bytes(part), other);
        }
    }
}

/// Builds the connect program, which redirects a connection to the hop and notes its destination.
fn connect(map: &Map<OPTION>, steering: &Steering, netns: u64, family: Family) -> Vec<Insn> {
    let Steering { hop, template, .. } = steering;
    let (hop_ip, hop_port) = (u32::from_ne_bytes(hop.ip().octets()), u32::from(hop.port().to_be()));
    let mut asm = Asm::default();
    let [steer, leave, done] = [(); 3].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, PROTOCOL);
    asm.if_different(R2, TCP, done);
    asm.if_in_other_namespace(R6, netns, done);
    asm.store_cookie(R6, COOKIE);
    family.test(&mut asm, leave);
    asm.load(Width::Word, R7, R6, family.ip());
    asm.load(Width::Word, R8, R6, PORT);
    is_meant(&mut asm, steering, leave);
    // A connection to the hop itself is not changed.
    asm.if_different(R7, hop_ip, steer);
    asm.if_equal(R8, hop_port, leave);

    asm.place(steer);
    for (at, part) in (0..).step_by(8).zip(template.bytes.as_chunks::<8>().0) {
        asm.set_double(R2, u64::from_ne_bytes(*part));
        asm.store(Width::Double, FP, VALUE + at, R2);
    }
    asm.store(Width::Word, FP, VALUE + template.destination, R7);
    asm.store(Width::Half, FP, VALUE + template.destination_port, R8);
    asm.keep(map, COOKIE, VALUE);
    // If the destination cannot be noted, the connection is not redirected.
    asm.if_different(R0, 0, done);
    asm.set(R2, hop_ip.cast_signed());
    asm.store(Width::Word, R6, family.ip(), R2);
    asm.set(R2, hop_port.cast_signed());
    asm.store(Width::Word, R6, PORT, R2);
    asm.goto(done);

    asm.place(leave);
    // The same socket may have been steered before.
    asm.forget(map, COOKIE);
    asm.place(done);
    asm.exit(1);
    asm.finish().expect("MAX_TESTS keeps every jump within reach")
}

/// Emits a jump to `leave` unless connections to address R7 and port R8 are to be steered.
fn is_meant(asm: &mut Asm, steering: &Steering, leave: Label) {
    if !steering.ports.is_empty() {
        let known = asm.label();
        for port in &steering.ports {
            asm.if_equal(R8, port.to_be().into(), known);
        }
        asm.goto(leave);
        asm.place(known);
    }
    let inside = asm.label();
    for &(net, length) in &steering.destinations {
        let IpAddr::V4(net) = net else { continue };
        let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
        asm.copy(R2, R7);
        asm.and(R2, u32::from_ne_bytes(mask.to_be_bytes()));
        let net = net.to_bits() & mask;
        asm.if_equal(R2, u32::from_ne_bytes(net.to_be_bytes()), inside);
    }
    asm.goto(leave);
    asm.place(inside);
}

/// Builds the getpeername program, which returns the intended destination.
fn peer_name(map: &Map<OPTION>, template: &Template, family: Family) -> Vec<Insn> {
    let mut asm = Asm::default();
    let done = asm.label();
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, PROTOCOL);
    asm.if_different(R2, TCP, done);
    look_up(&mut asm, map, done);
    asm.load(Width::Word, R2, R8, template.destination);
    asm.store(Width::Word, R6, family.ip(), R2);
    asm.load(Width::Half, R2, R8, template.destination_port);
    asm.store(Width::Word, R6, PORT, R2);
    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short")
}
