//! Wrapped programs that listen: whoever connects to them is led to this process, which connects to
//! them in turn.
//!
//! ```text
//!   listen(2) ─▶ sock_ops: the port is noted          close ─▶ it is forgotten
//!   SYN to a noted port ─▶ sk_lookup ─┬─ from elsewhere ─▶ this process's listener ─▶ handlers ─┐
//!                                     └─ from us, "inside" ─▶ the program's listener ◀──────────┘
//!   accept(2), getpeername(2) ─▶ whom Inside::note has named for the port that we come from
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::ends::{self, ENDS};
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R6, R7, R8, Reg, Width};
use crate::bpf::kernel::{Hook, Link, Map, SocketMap};
use crate::bpf::sock_ops;

/// Addresses and ports that programs have listened at. One is kept for good: who passes files by FTP
/// listens at many, one after the other.
const PORTS: u32 = 1 << 18;
/// Connections to programs that are not yet there.
const INSIDE: u32 = 8192;

// Fields of `struct bpf_sk_lookup`.
const LOOKUP_PROTOCOL: i16 = 12;
const LOOKUP_FAMILY: i16 = 8;
const REMOTE_PORT: i16 = 36;
const LOCAL_IP4: i16 = 40;
const LOCAL_IP6: i16 = 44;
const LOCAL_PORT: i16 = 60;
const REMOTE_IP4: i16 = 16;
const REMOTE_IP6: i16 = 20;
/// `127.0.0.1`, and the words of `::1`, as they stand in memory: the kernel drops what claims to come from there and
/// comes from elsewhere.
const LOOPBACK4: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
const LOOPBACK6: [u32; 4] = [0, 0, 0, u32::from_ne_bytes([0, 0, 0, 1])];
/// `fe80::/10`: its first word, and the bits of that.
const LINK_LOCAL: [u32; 2] =
    [u32::from_ne_bytes([0xfe, 0x80, 0, 0]), u32::from_ne_bytes([0xff, 0xc0, 0, 0])];
const TCP: u32 = libc::IPPROTO_TCP as u32;

/// A field of `struct bpf_sock_ops`.
const OPS_REMOTE_PORT: i16 = 64;
const LISTENING: u32 = 10;

// On the stack.
// (below what `divert` keeps there)
const KEY: i16 = -88;
const ONE: i16 = -96;
/// Where a copy of two ends may stand.
const COPY: i16 = -160;
/// Which listener: 0 of IPv4, 1 of IPv6.
const WHICH: i16 = -104;

/// Connections of ours to wrapped programs: by the port that we come from, whose they are.
#[derive(Clone, Debug)]
pub struct Inside(Arc<Map<ENDS>>);

impl Inside {
    /// The connection that comes from our loopback `port` is `client`'s, who asked for `own`. Say so
    /// before it connects.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn note(&self, port: u16, client: SocketAddr, own: SocketAddr) -> std::io::Result<()> {
        self.0.set(port.into(), &ends::pair(client, own))
    }
}

/// Where wrapped programs listen: how many do, by address and port.
#[derive(Clone, Debug)]
pub struct Ports(Arc<Map<8>>);

impl Ports {
    /// None yet.
    ///
    /// # Errors
    /// A right is missing.
    pub fn new() -> Result<Ports, BpfError> {
        Ok(Ports(Arc::new(Map::growing(PORTS)?)))
    }

    /// Goes to `none` unless somebody listens at the address whose last word is in R7, or at all
    /// addresses, and at the port in R8.
    pub(in crate::bpf) fn find(&self, asm: &mut Asm, none: Label) {
        let found = asm.label();
        for last in [false, true] {
            let next = if last { none } else { asm.label() };
            key(asm, R7, R8);
            asm.look_up(&*self.0, KEY, next);
            asm.load(Width::Double, R2, R0, 0);
            asm.if_different(R2, 0, found);
            asm.goto(next);
            if !last {
                asm.place(next);
                asm.set(R7, 0);
            }
        }
        asm.place(found);
    }
}

/// What leads connections to wrapped programs here.
#[derive(Debug)]
pub(super) struct Serve {
    ports: Ports,
    pub(super) inside: Inside,
    _listeners: SocketMap,
    pub(super) link: Link,
}

impl Serve {
    /// To `listeners`, of this network namespace; `None` if there are none.
    pub(super) fn new(
        listeners: [Option<BorrowedFd<'_>>; 2],
        ports: &Ports,
    ) -> Result<Option<Serve>, BpfError> {
        if let [None, None] = listeners {
            return Ok(None);
        }
        let (ports, inside) = (ports.clone(), Inside(Arc::new(Map::new(INSIDE)?)));
        let sockets = SocketMap::of(listeners)?;
        let network = std::fs::File::open("/proc/self/ns/net").map_err(BpfError::Socket)?;
        let program = look_up(&ports, &inside.0, &sockets);
        let link = Link::new(Hook::SocketLookup, &program, network.as_fd())?;
        Ok(Some(Serve { ports, inside, _listeners: sockets, link }))
    }

    /// In a program of sock_ops whose context is in R6: a socket listens.
    pub(super) fn listens(&self, asm: &mut Asm) {
        self.count(asm, 1);
    }

    /// A socket's state changes: one that listened may have stopped.
    pub(super) fn changes(&self, asm: &mut Asm, done: Label) {
        asm.load(Width::Word, R2, R6, sock_ops::FIRST_ARGUMENT);
        asm.if_different(R2, LISTENING, done);
        self.count(asm, -1);
    }

    /// A program's socket was connected to, maybe by us: then `names` says whose it is, by its cookie,
    /// which is at `cookie` on the stack.
    pub(super) fn accepts(&self, asm: &mut Asm, names: &Map<ENDS>, cookie: i16, done: Label) {
        asm.load(Width::Word, R2, R6, OPS_REMOTE_PORT);
        asm.network_order_word(R2);
        asm.store(Width::Double, FP, KEY, R2);
        asm.look_up(&*self.inside.0, KEY, done);
        asm.copy_memory((FP, COPY), (R0, 0), ENDS as i16);
        asm.keep(names, cookie, COPY);
        // The port may be somebody else's next: he must not be taken for us, and go around the chain.
        asm.forget(&*self.inside.0, KEY);
    }

    /// Adds to the number of those who listen where the context says.
    fn count(&self, asm: &mut Asm, change: i32) {
        let [unknown, done] = [(); 2].map(|()| asm.label());
        sock_ops::local_end(asm);
        key(asm, R7, R8);
        asm.look_up(&*self.ports.0, KEY, unknown);
        asm.set(R2, change);
        asm.add_to_memory(R0, 0, R2);
        asm.goto(done);
        asm.place(unknown);
        if change > 0 {
            asm.set(R2, change);
            asm.store(Width::Double, FP, ONE, R2);
            asm.keep(&*self.ports.0, KEY, ONE);
        }
        asm.place(done);
    }
}

/// The key of an address, its last word in `ip`, and a port, on the stack.
fn key(asm: &mut Asm, ip: Reg, port: Reg) {
    asm.copy(R2, ip);
    asm.shift_left(R2, 16);
    asm.or_register(R2, port);
    asm.store(Width::Double, FP, KEY, R2);
}

/// Chooses the socket that a SYN goes to.
fn look_up(ports: &Ports, inside: &Map<ENDS>, sockets: &SocketMap) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [v6, named, from_v6, from_here, from_us] = [(); 5].map(|()| asm.label());
    let [elsewhere, gone, done] = [(); 3].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, LOOKUP_PROTOCOL);
    asm.if_different(R2, TCP, done);
    asm.load(Width::Word, R8, R6, LOCAL_PORT);
    asm.load(Width::Word, R2, R6, LOOKUP_FAMILY);
    asm.if_different(R2, libc::AF_INET as u32, v6);
    asm.load(Width::Word, R7, R6, LOCAL_IP4);
    asm.set(R2, 0);
    asm.goto(named);
    asm.place(v6);
    asm.load(Width::Word, R7, R6, LOCAL_IP6 + 12);
    asm.set(R2, 1);
    asm.place(named);
    asm.store(Width::Word, FP, WHICH, R2);
    ports.find(&mut asm, done);
    // Not by the interface: for the kernel, what a machine sends to an address of its own comes in by
    // the interface that has it.
    asm.load(Width::Word, R2, FP, WHICH);
    asm.if_different(R2, 0, from_v6);
    asm.load(Width::Word, R2, R6, REMOTE_IP4);
    asm.if_different(R2, LOOPBACK4, elsewhere);
    asm.goto(from_us);
    asm.place(from_v6);
    for (n, word) in LOOPBACK6.into_iter().enumerate() {
        asm.load(Width::Word, R2, R6, REMOTE_IP6 + 4 * n as i16);
        asm.if_different(R2, word, from_here);
    }
    asm.goto(from_us);
    // A link-local address is reached from itself: the program is told of the interface that way. Others who claim
    // to be there, and guess the port, do not hear what they are answered.
    asm.place(from_here);
    let [first, bits] = LINK_LOCAL;
    asm.load(Width::Word, R2, R6, LOCAL_IP6);
    asm.and(R2, bits);
    asm.if_different(R2, first, elsewhere);
    for at in [0, 4, 8, 12] {
        asm.load(Width::Word, R2, R6, LOCAL_IP6 + at);
        asm.load(Width::Word, R3, R6, REMOTE_IP6 + at);
        asm.if_registers_differ(R2, R3, elsewhere);
    }
    asm.place(from_us);
    asm.load(Width::Half, R2, R6, REMOTE_PORT);
    asm.network_order(R2);
    asm.store(Width::Double, FP, KEY, R2);
    asm.look_for(inside, KEY, done);
    asm.place(elsewhere);
    // Its process has ended, and somebody holds the link: nobody goes around the chain.
    asm.look_up(sockets, WHICH, gone);
    asm.copy(R7, R0);
    asm.copy(R1, R6);
    asm.copy(R2, R7);
    asm.set(R3, 0);
    asm.call(Helper::AssignSocket);
    asm.copy(R1, R7);
    asm.call(Helper::ReleaseSocket);
    asm.place(done);
    asm.exit(1);
    asm.place(gone);
    asm.exit(0);
    asm.finish().expect("short")
}
