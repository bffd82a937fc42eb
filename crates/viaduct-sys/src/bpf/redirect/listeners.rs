//! Inbound connections to wrapped programs: they are redirected to this process, which connects to
//! the programs.
//!
//! ```text
//!   listen(2) ─▶ sock_ops: the listener is counted    close ─▶ it is no longer counted
//!   SYN to such a port  ─▶ sk_lookup ─┬─ from a client  ─▶ this process's listener ─▶ handlers ─┐
//!                                     └─ from us ─▶ the program's listener ◀────────────────────┘
//!   accept(2), getpeername(2) ─▶ the client that InboundConns::note has set for our source port
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::endpoints::{self, ENDS};
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R6, R7, R8, Reg, Width};
use crate::bpf::kernel::{Hook, Link, Map, SocketMap};
use crate::bpf::sock_ops;

/// Max pairs of address and port on which programs have listened. Entries are never removed, and an
/// FTP server, for example, listens on many ports one after another.
const PORTS: u32 = 1 << 18;
/// Max connections from us that programs have not accepted yet.
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
/// `127.0.0.1` in memory order. The kernel drops packets from other hosts whose source is this
/// address or `::1`.
const LOOPBACK4: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
/// Words of `::1` in memory order.
const LOOPBACK6: [u32; 4] = [0, 0, 0, u32::from_ne_bytes([0, 0, 0, 1])];
/// First word of `fe80::/10`, and its mask.
const LINK_LOCAL: [u32; 2] =
    [u32::from_ne_bytes([0xfe, 0x80, 0, 0]), u32::from_ne_bytes([0xff, 0xc0, 0, 0])];
const TCP: u32 = libc::IPPROTO_TCP as u32;

/// Offset in `struct bpf_sock_ops`.
const OPS_REMOTE_PORT: i16 = 64;
const LISTENING: u32 = 10;

// On the stack, below the space of `programs`.
const KEY: i16 = -88;
const ONE: i16 = -96;
/// Copy of two endpoints.
const COPY: i16 = -160;
/// Index of the listener: 0 for IPv4, 1 for IPv6.
const WHICH: i16 = -104;

/// Clients on whose behalf we connect to wrapped programs, by our source port.
#[derive(Clone, Debug)]
pub struct InboundConns(Arc<Map<ENDS>>);

impl InboundConns {
    /// Sets the addresses that the program sees for the connection from our source port `port`:
    /// `client` as the peer, and `own`, the address to which the client connected, as the program's
    /// own. Must be called before the connection is opened. Errors: the kernel is out of memory.
    pub fn note(&self, port: u16, client: SocketAddr, own: SocketAddr) -> std::io::Result<()> {
        self.0.set(port.into(), &endpoints::pair(client, own))
    }
}

/// Number of listeners of wrapped programs, by address and port.
#[derive(Clone, Debug)]
pub struct Ports(Arc<Map<8>>);

impl Ports {
    /// Creates an empty table. Errors: a privilege is missing.
    pub fn new() -> Result<Ports, BpfError> {
        Ok(Ports(Arc::new(Map::growing(PORTS)?)))
    }

    /// Emits a jump to `none` unless a program listens on the port in R8, at the address whose last
    /// word is in R7 or at the wildcard address.
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

/// The sk_lookup program that redirects connections to wrapped programs to this process.
#[derive(Debug)]
pub(super) struct ListenerRedirect {
    ports: Ports,
    pub(super) inside: InboundConns,
    _listeners: SocketMap,
    pub(super) link: Link,
}

impl ListenerRedirect {
    /// Attaches the program, which redirects inbound connections to our `listeners`. Returns `None`
    /// if there are no listeners.
    pub(super) fn new(
        listeners: [Option<BorrowedFd<'_>>; 2],
        ports: &Ports,
    ) -> Result<Option<ListenerRedirect>, BpfError> {
        if let [None, None] = listeners {
            return Ok(None);
        }
        let (ports, inside) = (ports.clone(), InboundConns(Arc::new(Map::new(INSIDE)?)));
        let sockets = SocketMap::of(listeners)?;
        let network = std::fs::File::open("/proc/self/ns/net").map_err(BpfError::Socket)?;
        let program = look_up(&ports, &inside.0, &sockets);
        let link = Link::new(Hook::SocketLookup, &program, network.as_fd())?;
        Ok(Some(ListenerRedirect { ports, inside, _listeners: sockets, link }))
    }

    /// Emits the handling of a new listener, in a sock_ops program with its context in R6.
    pub(super) fn on_listen(&self, asm: &mut Asm) {
        self.count(asm, 1);
    }

    /// Emits the handling of a socket's state change: a socket that was listening is no longer
    /// counted.
    pub(super) fn on_state_change(&self, asm: &mut Asm, done: Label) {
        asm.load(Width::Word, R2, R6, sock_ops::FIRST_ARGUMENT);
        asm.if_different(R2, LISTENING, done);
        self.count(asm, -1);
    }

    /// Emits the handling of an accepted connection. If this process has opened the connection,
    /// copies the addresses of [`InboundConns::note`] to `names`, under the cookie that is at
    /// `cookie` on the stack; otherwise jumps to `done`.
    pub(super) fn on_accept(&self, asm: &mut Asm, names: &Map<ENDS>, cookie: i16, done: Label) {
        asm.load(Width::Word, R2, R6, OPS_REMOTE_PORT);
        asm.network_order_word(R2);
        asm.store(Width::Double, FP, KEY, R2);
        asm.look_up(&*self.inside.0, KEY, done);
        asm.copy_memory((FP, COPY), (R0, 0), ENDS as i16);
        asm.keep(names, cookie, COPY);
        // A client may use the same port later. If its connection were mistaken for ours, it would
        // bypass the chain.
        asm.forget(&*self.inside.0, KEY);
    }

    /// Emits the addition of `change` to the count of listeners at the context's local address.
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

/// Emits a store of the map key for a port and an address whose last word is in `ip`.
fn key(asm: &mut Asm, ip: Reg, port: Reg) {
    asm.copy(R2, ip);
    asm.shift_left(R2, 16);
    asm.or_register(R2, port);
    asm.store(Width::Double, FP, KEY, R2);
}

/// Emits loads of the last word of the local address into R7 and of the port into R8, and a store
/// of the listener's index on the stack.
fn local_end(asm: &mut Asm) {
    let [v6, named] = [(); 2].map(|()| asm.label());
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
}

/// Builds the sk_lookup program, which chooses the socket for a SYN.
fn look_up(ports: &Ports, inside: &Map<ENDS>, sockets: &SocketMap) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [from_v6, from_here, from_us] = [(); 3].map(|()| asm.label());
    let [elsewhere, gone, done] = [(); 3].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, LOOKUP_PROTOCOL);
    asm.if_different(R2, TCP, done);
    local_end(&mut asm);
    ports.find(&mut asm, done);
    // Tests the source address, not the interface: a packet that a host sends to one of its own
    // addresses seems to arrive on the interface with that address.
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
    // We connect to a link-local address from that same address, so that the program learns the
    // interface. Another host that spoofs the address and guesses the port does not receive the
    // replies.
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
    // If the map has no listener, the listener's process has ended while another process still
    // holds the link. The SYN is dropped, so that it does not bypass the chain.
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
