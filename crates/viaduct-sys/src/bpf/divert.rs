//! Programs that are wrapped: their connects wait at a meeting ([`crate::meeting`]), and this process
//! hears where they were meant to go.
//!
//! ```text
//!   connect(2) ─▶ connect: notes where to, by cookie; another address ─▶ SYN ─▶ sock_ops: an Event
//!   getpeername(2) ─▶ what was meant            getsockname(2) ─▶ what Divert::set_own has said
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::BpfError;
use super::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R4, R6, R7, R8, Width};
use super::events::Events;
use super::kernel::{Hook, Link, Map};
use super::serve::{Inside, Serve};

/// Connections that are remembered, so that programs are told whom they meant.
const SOCKETS: u32 = 65_536;
/// Bytes of events that wait to be read; one that finds no room comes again with its SYN.
const RING: usize = 256 << 10;
/// Prefixes and port ranges, together, that a program tests.
const MOST: usize = 256;

// Fields of `struct bpf_sock_addr`.
const IP4: i16 = 4;
const IP6: i16 = 8;
const PORT: i16 = 24;
const PROTOCOL: i16 = 36;
// Fields of `struct bpf_sock_ops`.
const OP: i16 = 0;
const FAMILY: i16 = 20;
const LOCAL_IP4: i16 = 28;
const LOCAL_IP6: i16 = 48;
const LOCAL_PORT: i16 = 68;
const FLAGS: i16 = 84;
const STATE: i16 = 88;
const SENT: i16 = 108;
// What it is called for.
const CONNECT: u32 = 3;
const ESTABLISHED: u32 = 4;
const ACCEPTED: u32 = 5;
const STATE_CHANGED: u32 = 10;
const LISTENS: u32 = 11;
const LENGTH: u32 = 14;
/// Asks to be called for options: of a SYN we want no option, but its number.
const WANTS_OPTIONS: u32 = 1 << 6;
/// Asks to be called when the state changes.
const WANTS_STATES: u32 = 1 << 2;
const SYN_SENT: u32 = 2;
const TCP: u32 = libc::IPPROTO_TCP as u32;

// A value of the map, and the first part of an event: two ends, each an IPv6 address (IPv4 ones among
// them) and a port in network order.
const END: i16 = 24;
pub(super) const ENDS: usize = 2 * END as usize;
// An event: the cookie, where to, then the program's end and the SYN's number.
const EVENT: usize = 64;

// On the stack.
const COOKIE: i16 = -8;
const NOTE: i16 = COOKIE - ENDS as i16;
const SAID: i16 = -(EVENT as i16);

/// An IPv4 address among IPv6 ones: the word before it.
const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// What becomes of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is ours.
    Divert,
    /// It goes where it was meant to, by itself.
    Leave,
    /// The program is told that it may not.
    Refuse,
}

/// The connects that it fits; what is empty fits all.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Destinations.
    pub to: Vec<(IpAddr, u8)>,
    /// Their ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// What becomes of them.
    pub fate: Fate,
}

/// Which connects are ours, and where they wait.
#[derive(Clone, Debug)]
pub struct Diversion<'a> {
    /// The first that fits decides; TCP only.
    pub rules: Vec<Rule>,
    /// What becomes of the others.
    pub otherwise: Fate,
    /// Whether datagrams may go where they are meant to, by themselves.
    pub datagrams: bool,
    /// Where connects wait, by IPv4.
    pub v4: SocketAddr,
    /// The same by IPv6; without it those are refused.
    pub v6: Option<SocketAddr>,
    /// The listener that takes connections to programs, for both families; without it they go there by
    /// themselves.
    pub listener: Option<BorrowedFd<'a>>,
}

/// A connect that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The socket's name among all of this kernel's.
    pub cookie: u64,
    /// Where it is meant to go.
    pub to: SocketAddr,
    /// The program's end of it.
    pub program: SocketAddr,
    /// The SYN's sequence number.
    pub syn: u32,
}

/// What wrapped programs are told of the ends of their connections.
#[derive(Clone, Debug)]
pub struct Names(Arc<Map<ENDS>>);

/// The programs at work.
#[derive(Debug)]
pub struct Divert {
    map: Arc<Map<ENDS>>,
    events: Events<EVENT>,
    serve: Option<Serve>,
    _links: Vec<Link>,
}

impl Divert {
    /// For what runs in the cgroup `directory`.
    ///
    /// # Errors
    /// A right is missing, the kernel is too old, or there are too many rules.
    pub fn attach(
        diversion: &Diversion<'_>,
        directory: BorrowedFd<'_>,
    ) -> Result<Divert, BpfError> {
        let given = diversion.rules.iter().map(|rule| rule.to.len() + rule.ports.len()).sum();
        if given > MOST {
            return Err(BpfError::TooMany { given, most: MOST });
        }
        let (map, events) = (Arc::new(Map::new(SOCKETS)?), Events::new(RING)?);
        let serve = diversion.listener.map(Serve::new).transpose()?;
        // Names first, and those who tell us: nobody may be sent away without them.
        let programs = [
            (Hook::SockOps, tell(&map, &events, serve.as_ref())),
            (Hook::PeerName4, name(&map, 0, true)),
            (Hook::PeerName6, name(&map, 0, false)),
            (Hook::SocketName4, name(&map, END, true)),
            (Hook::SocketName6, name(&map, END, false)),
            (Hook::Message4, message(diversion)),
            (Hook::Message6, message(diversion)),
            (Hook::Connect4, connect(&map, diversion, true)),
            (Hook::Connect6, connect(&map, diversion, false)),
        ];
        let link = |(hook, program): &(Hook, Vec<Insn>)| Link::new(*hook, program, directory);
        let links = programs.iter().map(link).collect::<Result<_, _>>()?;
        Ok(Divert { map, events, serve, _links: links })
    }

    /// The next connect that waits; one may be told of more than once.
    pub fn poll(&mut self) -> Option<Waiting> {
        let event = self.events.poll()?;
        let word = |at: usize| u32::from_ne_bytes(event[at..at + 4].try_into().expect("four"));
        let cookie = u64::from_ne_bytes(event[..8].try_into().expect("eight"));
        let port = u16::from_be_bytes([event[24], event[25]]);
        let own = word(52) as u16;
        let syn = word(56);
        Some(Waiting {
            cookie,
            to: end(&event[8..24], port),
            program: end(&event[32..48], own),
            syn,
        })
    }

    /// What programs are told.
    pub fn names(&self) -> Names {
        Names(self.map.clone())
    }

    /// What is said of connections to programs, if they come here.
    pub fn inside(&self) -> Option<Inside> {
        self.serve.as_ref().map(|serve| serve.inside.clone())
    }
}

impl Names {
    /// What the program is told of its own end of the socket `cookie`, from now on.
    pub fn set_own(&self, cookie: u64, own: SocketAddr) {
        let Some(mut value) = self.0.get(cookie) else { return };
        value[END as usize..].copy_from_slice(&end_of(own));
        // It may have been forgotten since: then it is told the truth.
        let _ = self.0.set(cookie, &value);
    }
}

impl AsFd for Divert {
    /// Readable when a connect waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// Two ends as a map holds them.
pub(super) fn ends(peer: SocketAddr, own: SocketAddr) -> [u8; ENDS] {
    let mut ends = [0; ENDS];
    ends[..END as usize].copy_from_slice(&end_of(peer));
    ends[END as usize..].copy_from_slice(&end_of(own));
    ends
}

fn end_of(at: SocketAddr) -> [u8; END as usize] {
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut end = [0; END as usize];
    end[..16].copy_from_slice(&ip.octets());
    end[16..18].copy_from_slice(&at.port().to_be_bytes());
    end
}

fn end(ip: &[u8], port: u16) -> SocketAddr {
    let ip: [u8; 16] = ip.try_into().expect("sixteen");
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port)
}

/// Sends a connect to the meeting, and notes where it was meant to go.
fn connect(map: &Map<ENDS>, diversion: &Diversion<'_>, v4: bool) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [datagrams, leave, refuse, divert, native, done] = [(); 6].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, PROTOCOL);
    asm.if_different(R2, TCP, datagrams);
    asm.call(Helper::SocketCookie);
    asm.store(Width::Double, FP, COOKIE, R0);
    note(&mut asm, v4);
    for rule in &diversion.rules {
        let other = asm.label();
        fits(&mut asm, rule, other);
        asm.goto(of(rule.fate, [divert, leave, refuse]));
        asm.place(other);
    }
    asm.goto(of(diversion.otherwise, [divert, leave, refuse]));

    // The kernel takes no instruction that nothing leads to.
    let is_used =
        |fate| diversion.otherwise == fate || diversion.rules.iter().any(|rule| rule.fate == fate);
    if is_used(Fate::Divert) {
        asm.place(divert);
        if !v4 {
            is_mapped(&mut asm, native);
        }
        // Without a note of where to, nobody would know.
        remember(&mut asm, map, refuse);
        go(&mut asm, diversion.v4, v4);
        asm.goto(done);
        if !v4 {
            asm.place(native);
            send_native(&mut asm, map, diversion.v6, refuse);
            asm.goto(done);
        }
    }
    if is_used(Fate::Leave) {
        asm.place(leave);
        // The same socket may have been sent to the meeting before.
        super::option::forget(&mut asm, map);
        asm.goto(done);
    }
    asm.place(datagrams);
    if !diversion.datagrams {
        asm.if_equal(R2, libc::IPPROTO_UDP as u32, refuse);
    }
    asm.place(done);
    asm.exit(1);
    asm.place(refuse);
    asm.exit(0);
    asm.finish().expect("no more rules than jumps reach over")
}

/// Sends a connect of IPv6 to the meeting at `at`, or has it refused where there is none.
fn send_native(asm: &mut Asm, map: &Map<ENDS>, at: Option<SocketAddr>, refuse: Label) {
    // A jump that may not be taken: what follows is reached in any case.
    remember(asm, map, refuse);
    match at {
        Some(at) => go(asm, at, false),
        None => asm.if_equal(R0, 0, refuse),
    }
}

/// Lets datagrams pass that no connect has gone before, or refuses them.
fn message(diversion: &Diversion<'_>) -> Vec<Insn> {
    let mut asm = Asm::default();
    asm.exit(i32::from(diversion.datagrams));
    asm.finish().expect("short")
}

fn of(fate: Fate, [divert, leave, refuse]: [Label; 3]) -> Label {
    match fate {
        Fate::Divert => divert,
        Fate::Leave => leave,
        Fate::Refuse => refuse,
    }
}

/// Writes where the connect goes to the stack.
fn note(asm: &mut Asm, v4: bool) {
    asm.set(R2, 0);
    for at in (0..ENDS as i16).step_by(8) {
        asm.store(Width::Double, FP, NOTE + at, R2);
    }
    if v4 {
        asm.set(R2, MAPPED.cast_signed());
        asm.store(Width::Word, FP, NOTE + 8, R2);
        asm.load(Width::Word, R2, R6, IP4);
        asm.store(Width::Word, FP, NOTE + 12, R2);
    } else {
        for at in [0, 4, 8, 12] {
            asm.load(Width::Word, R2, R6, IP6 + at);
            asm.store(Width::Word, FP, NOTE + at, R2);
        }
    }
    asm.load(Width::Word, R2, R6, PORT);
    asm.store(Width::Half, FP, NOTE + 16, R2);
}

/// Goes to `other` unless what is noted fits `rule`.
fn fits(asm: &mut Asm, rule: &Rule, other: Label) {
    if !rule.to.is_empty() {
        let inside = asm.label();
        for &(ip, length) in &rule.to {
            let next = asm.label();
            is_in(asm, ip, length, next);
            asm.goto(inside);
            asm.place(next);
        }
        asm.goto(other);
        asm.place(inside);
    }
    if !rule.ports.is_empty() {
        let inside = asm.label();
        asm.load(Width::Half, R2, FP, NOTE + 16);
        asm.network_order(R2);
        for range in &rule.ports {
            let next = asm.label();
            asm.if_below(R2, (*range.start()).into(), next);
            asm.if_above(R2, (*range.end()).into(), next);
            asm.goto(inside);
            asm.place(next);
        }
        asm.goto(other);
        asm.place(inside);
    }
}

/// Goes to `other` unless the address that is noted has this prefix.
fn is_in(asm: &mut Asm, ip: IpAddr, length: u8, other: Label) {
    let (ip, length) = match ip {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + u32::from(length)),
        IpAddr::V6(ip) => (ip, u32::from(length)),
    };
    for (at, word) in (0..).step_by(4).zip(ip.octets().as_chunks::<4>().0) {
        let bits = length.saturating_sub(8 * at as u32).min(32);
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        if bits > 0 {
            asm.load(Width::Word, R2, FP, NOTE + at);
            asm.and(R2, u32::from_ne_bytes(mask.to_be_bytes()));
            let word = u32::from_be_bytes(*word) & mask;
            asm.if_different(R2, u32::from_ne_bytes(word.to_be_bytes()), other);
        }
    }
}

/// Goes to `other` unless the address that is noted is one of IPv4.
fn is_mapped(asm: &mut Asm, other: Label) {
    for (at, word) in [(0, 0), (4, 0), (8, MAPPED)] {
        asm.load(Width::Word, R2, FP, NOTE + at);
        asm.if_different(R2, word, other);
    }
}

/// Keeps what is noted for the socket, or goes to `full`.
fn remember(asm: &mut Asm, map: &Map<ENDS>, full: Label) {
    asm.set_map(R1, map);
    asm.copy(R2, FP);
    asm.add(R2, COOKIE.into());
    asm.copy(R3, FP);
    asm.add(R3, NOTE.into());
    asm.set(R4, 0);
    asm.call(Helper::MapUpdate);
    asm.if_different(R0, 0, full);
}

/// Has the connect lead to `at`.
fn go(asm: &mut Asm, at: SocketAddr, v4: bool) {
    let put = |asm: &mut Asm, field: i16, word: [u8; 4]| {
        asm.set(R2, i32::from_ne_bytes(word));
        asm.store(Width::Word, R6, field, R2);
    };
    match at.ip() {
        IpAddr::V4(ip) => put(asm, if v4 { IP4 } else { IP6 + 12 }, ip.octets()),
        IpAddr::V6(ip) => {
            for (at, word) in (0..).step_by(4).zip(ip.octets().as_chunks::<4>().0) {
                put(asm, IP6 + at, *word);
            }
        }
    }
    asm.set(R2, at.port().to_be().into());
    asm.store(Width::Word, R6, PORT, R2);
}

/// Tells this process of each SYN of a connect that was sent to the meeting, and notes who listens.
fn tell(map: &Map<ENDS>, events: &Events<EVENT>, serve: Option<&Serve>) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [wanted, known, begun, over, length, v6, named, done] = [(); 8].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R7, R6, OP);
    for op in [CONNECT, LENGTH, ESTABLISHED, ACCEPTED] {
        asm.if_equal(R7, op, wanted);
    }
    if let Some(serve) = serve {
        let changes = asm.label();
        asm.if_equal(R7, STATE_CHANGED, changes);
        asm.if_different(R7, LISTENS, done);
        super::option::set_flags(&mut asm, FLAGS, |asm| asm.or(R2, WANTS_STATES));
        serve.listens(&mut asm);
        asm.goto(done);
        asm.place(changes);
        serve.changes(&mut asm, done);
    }
    asm.goto(done);
    asm.place(wanted);
    asm.copy(R1, R6);
    asm.call(Helper::SocketCookie);
    asm.store(Width::Double, FP, SAID, R0);
    asm.set_map(R1, map);
    asm.copy(R2, FP);
    asm.add(R2, SAID.into());
    asm.call(Helper::MapLookup);
    asm.if_something(R0, known);
    if let Some(serve) = serve {
        asm.if_different(R7, ACCEPTED, done);
        serve.accepts(&mut asm, map, SAID, done);
        asm.goto(over);
    } else {
        asm.goto(done);
    }
    asm.place(known);
    asm.copy(R8, R0);
    asm.if_equal(R7, CONNECT, begun);
    asm.if_equal(R7, LENGTH, length);
    asm.goto(over);

    asm.place(begun);
    super::option::set_flags(&mut asm, FLAGS, |asm| asm.or(R2, WANTS_OPTIONS));
    asm.goto(done);
    asm.place(over);
    super::option::set_flags(&mut asm, FLAGS, |asm| asm.and(R2, !(WANTS_OPTIONS | WANTS_STATES)));
    asm.goto(done);

    asm.place(length);
    asm.load(Width::Word, R2, R6, STATE);
    asm.if_different(R2, SYN_SENT, done);
    for at in (0..END).step_by(8) {
        asm.load(Width::Double, R2, R8, at);
        asm.store(Width::Double, FP, SAID + 8 + at, R2);
    }
    asm.load(Width::Word, R2, R6, FAMILY);
    asm.if_different(R2, libc::AF_INET as u32, v6);
    asm.set(R2, 0);
    asm.store(Width::Double, FP, SAID + 32, R2);
    asm.set(R2, MAPPED.cast_signed());
    asm.store(Width::Word, FP, SAID + 40, R2);
    asm.load(Width::Word, R2, R6, LOCAL_IP4);
    asm.store(Width::Word, FP, SAID + 44, R2);
    asm.goto(named);
    asm.place(v6);
    for at in [0, 4, 8, 12] {
        asm.load(Width::Word, R2, R6, LOCAL_IP6 + at);
        asm.store(Width::Word, FP, SAID + 32 + at, R2);
    }
    asm.place(named);
    asm.set(R2, 0);
    asm.store(Width::Word, FP, SAID + 48, R2);
    asm.store(Width::Word, FP, SAID + 60, R2);
    asm.load(Width::Word, R2, R6, LOCAL_PORT);
    asm.store(Width::Word, FP, SAID + 52, R2);
    asm.load(Width::Word, R2, R6, SENT);
    asm.store(Width::Word, FP, SAID + 56, R2);
    asm.set_map(R1, events);
    asm.copy(R2, FP);
    asm.add(R2, SAID.into());
    asm.set(R3, EVENT as i32);
    asm.set(R4, 0);
    asm.call(Helper::RingOutput);

    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short")
}

/// Tells a program the end of its connection that stands at `which` in the note.
fn name(map: &Map<ENDS>, which: i16, v4: bool) -> Vec<Insn> {
    let mut asm = Asm::default();
    let done = asm.label();
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, PROTOCOL);
    asm.if_different(R2, TCP, done);
    asm.call(Helper::SocketCookie);
    asm.store(Width::Double, FP, COOKIE, R0);
    asm.set_map(R1, map);
    asm.copy(R2, FP);
    asm.add(R2, COOKIE.into());
    asm.call(Helper::MapLookup);
    asm.if_nothing(R0, done);
    asm.copy(R8, R0);
    asm.load(Width::Half, R7, R8, which + 16);
    asm.if_equal(R7, 0, done);
    asm.store(Width::Word, R6, PORT, R7);
    let words: &[(i16, i16)] = match v4 {
        true => &[(12, IP4)],
        false => &[(0, IP6), (4, IP6 + 4), (8, IP6 + 8), (12, IP6 + 12)],
    };
    for &(at, field) in words {
        asm.load(Width::Word, R2, R8, which + at);
        asm.store(Width::Word, R6, field, R2);
    }
    asm.place(done);
    asm.exit(1);
    asm.finish().expect("short")
}
