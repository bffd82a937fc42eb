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
use super::ports::{self, LocalEnd, Ports};
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Helper, Insn, Label, R0, R1, R2, R3, R6, R7, Width};
use crate::bpf::kernel::{Hook, Link, Map, SocketMap};
use crate::bpf::sock_ops;

/// Max connections from us that programs have not accepted yet.
const INSIDE: u32 = 8192;

// Fields of `struct bpf_sk_lookup`.
const LOCAL_END: LocalEnd = LocalEnd { family: 8, ip4: 40, ip6: 44, port: 60 };
const LOOKUP_PROTOCOL: i16 = 12;
const REMOTE_PORT: i16 = 36;
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

/// Bit in the key of a connection from us over IPv6.
const V6: u64 = 1 << 16;

// On the stack, below the space of `programs`.
const KEY: i16 = -88;
/// Copy of two endpoints.
const COPY: i16 = -160;
/// Index of the listener: 0 for IPv4, 1 for IPv6.
const WHICH: i16 = -104;

/// Clients on whose behalf we connect to wrapped programs, by our source port and its family.
#[derive(Clone, Debug)]
pub struct InboundConns(Arc<Map<ENDS>>);

impl InboundConns {
    /// Sets the addresses that the program sees for the connection from our source port `port`:
    /// `client` as the peer, and `own`, the address to which the client connected, as the program's
    /// own. Must be called before the connection is opened. Errors: the kernel is out of memory.
    pub fn note(&self, port: u16, client: SocketAddr, own: SocketAddr) -> std::io::Result<()> {
        self.0.set(key(port, own), &endpoints::pair(client, own))
    }

    /// Forgets what [`InboundConns::note`] has set, unless the program has accepted the connection.
    /// Must be called after the connection has ended: otherwise a local client that gets the same
    /// port would be mistaken for us, and bypass the chain.
    pub fn forget(&self, port: u16, client: SocketAddr, own: SocketAddr) {
        // Another connection may have the port by now.
        if self.0.get(key(port, own)) == Some(endpoints::pair(client, own)) {
            self.0.clear(key(port, own));
        }
    }
}

/// Key of our connection from source port `port` to a program at `own`.
fn key(port: u16, own: SocketAddr) -> u64 {
    u64::from(port) | if own.is_ipv4() { 0 } else { V6 }
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
        self.ports.count(asm, &sock_ops::LOCAL_END, 1);
    }

    /// Emits the handling of a socket's state change: a socket that was listening is no longer
    /// counted.
    pub(super) fn on_state_change(&self, asm: &mut Asm, done: Label) {
        asm.load(Width::Word, R2, R6, sock_ops::FIRST_ARGUMENT);
        asm.if_different(R2, LISTENING, done);
        self.ports.count(asm, &sock_ops::LOCAL_END, -1);
    }

    /// Emits the handling of an accepted connection. If this process has opened the connection,
    /// copies the addresses of [`InboundConns::note`] to `names`, under the cookie that is at
    /// `cookie` on the stack; otherwise jumps to `done`.
    pub(super) fn on_accept(&self, asm: &mut Asm, names: &Map<ENDS>, cookie: i16, done: Label) {
        let stored = asm.label();
        // A listener for both families has a socket of family IPv6 for an IPv4 client.
        ports::store_key(asm, &sock_ops::LOCAL_END);
        asm.set(R3, V6 as i32);
        ports::if_v6(asm, stored);
        asm.set(R3, 0);
        asm.place(stored);
        asm.load(Width::Word, R2, R6, OPS_REMOTE_PORT);
        asm.network_order_word(R2);
        asm.or_register(R2, R3);
        asm.store(Width::Double, FP, KEY, R2);
        asm.look_up(&*self.inside.0, KEY, done);
        asm.copy_memory((FP, COPY), (R0, 0), ENDS as i16);
        asm.keep(names, cookie, COPY);
        // A client may use the same port later. If its connection were mistaken for ours, it would
        // bypass the chain.
        asm.forget(&*self.inside.0, KEY);
    }
}

/// Builds the sk_lookup program, which chooses the socket for a SYN.
fn look_up(ports: &Ports, inside: &Map<ENDS>, sockets: &SocketMap) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [from_v6, from_here, from_us] = [(); 3].map(|()| asm.label());
    let [elsewhere, gone, done] = [(); 3].map(|()| asm.label());
    asm.copy(R6, R1);
    asm.load(Width::Word, R2, R6, LOOKUP_PROTOCOL);
    asm.if_different(R2, TCP, done);
    ports.find(&mut asm, &LOCAL_END, done);
    // Tests the source address, not the interface: a packet that a host sends to one of its own
    // addresses seems to arrive on the interface with that address.
    asm.set(R3, 0);
    asm.store(Width::Word, FP, WHICH, R3);
    asm.load(Width::Word, R2, R6, LOCAL_END.family);
    asm.if_different(R2, libc::AF_INET as u32, from_v6);
    asm.load(Width::Word, R2, R6, REMOTE_IP4);
    asm.if_different(R2, LOOPBACK4, elsewhere);
    asm.goto(from_us);
    asm.place(from_v6);
    asm.set(R3, 1);
    asm.store(Width::Word, FP, WHICH, R3);
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
    asm.load(Width::Word, R2, R6, LOCAL_END.ip6);
    asm.and(R2, bits);
    asm.if_different(R2, first, elsewhere);
    for at in [0, 4, 8, 12] {
        asm.load(Width::Word, R2, R6, LOCAL_END.ip6 + at);
        asm.load(Width::Word, R3, R6, REMOTE_IP6 + at);
        asm.if_registers_differ(R2, R3, elsewhere);
    }
    asm.place(from_us);
    asm.load(Width::Half, R2, R6, REMOTE_PORT);
    asm.network_order(R2);
    asm.load(Width::Word, R3, FP, WHICH);
    asm.shift_left(R3, V6.trailing_zeros() as i32);
    asm.or_register(R2, R3);
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
