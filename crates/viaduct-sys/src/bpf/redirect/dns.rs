//! Redirection of DNS queries to this process's resolver, whichever server they are sent to. The
//! answers appear to come from that server. The BPF programs cannot read the ID of a query or an
//! answer. If a socket asks several servers, all answers therefore appear to come from the server
//! that it asked last.
//!
//! ```text
//!   connect(2), sendto(2) ─▶ port 53? note the server by cookie, rewrite address ─▶ resolver
//!   recvfrom(2) ◀─ source: that server ◀─ recvmsg: from the resolver, and a server is noted?
//! ```

use std::net::SocketAddr;

use super::endpoints::{END, MAPPED};
use super::programs::rewrite_destination;
use super::rules::{IP4, IP6, PORT};
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Insn, R0, R1, R2, R6, R8, Width};
use crate::bpf::kernel::Map;

/// Max sockets whose server is remembered.
const SOCKETS: u32 = 65_536;
const DNS: u16 = 53;
const COOKIE: i16 = -8;
const NOTED: usize = END as usize;
const LOOPBACK4: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
const LOOPBACK6: u32 = u32::from_ne_bytes([0, 0, 0, 1]);

/// Addresses of this process's resolver: the same port at both loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolver {
    /// Resolver address for IPv4 destinations.
    pub v4: SocketAddr,
    /// Resolver address for IPv6 destinations; queries to them are refused if `None`.
    pub v6: Option<SocketAddr>,
}

/// Servers to which sockets have sent queries, by the sockets' cookies.
#[derive(Debug)]
pub(super) struct DnsServers {
    map: Map<NOTED>,
    resolver: Resolver,
}

impl DnsServers {
    pub(super) fn new(resolver: Resolver) -> Result<DnsServers, BpfError> {
        Ok(DnsServers { map: Map::new(SOCKETS)?, resolver })
    }

    /// Emits the redirection of DNS queries. R6 must point to the program's context, and `note`
    /// must be the offset of the datagram's destination on the stack. For a query, the code writes
    /// the socket's cookie to the stack at `cookie`, notes the server under this cookie, rewrites
    /// the destination, and ends the program. For other datagrams the program continues after this
    /// code.
    pub(super) fn ask(&self, asm: &mut Asm, note: i16, cookie: i16, v4: bool) {
        let [other, refuse] = [(); 2].map(|()| asm.label());
        asm.load(Width::Half, R2, FP, note + 16);
        asm.if_different(R2, DNS.to_be().into(), other);
        asm.store_cookie(R6, cookie);
        asm.keep(&self.map, cookie, note);
        asm.if_different(R0, 0, refuse);
        rewrite_destination(asm, note, (self.resolver.v4, self.resolver.v6), v4, refuse);
        asm.exit(1);
        asm.place(refuse);
        asm.exit(0);
        asm.place(other);
    }

    /// Builds the recvmsg program, which replaces the source of an answer with the queried
    /// server's address.
    pub(super) fn answer(&self, v4: bool) -> Vec<Insn> {
        let mut asm = Asm::default();
        let [ours, done] = [(); 2].map(|()| asm.label());
        asm.copy(R6, R1);
        asm.load(Width::Word, R2, R6, PORT);
        asm.if_different(R2, self.resolver.v4.port().to_be().into(), done);
        match v4 {
            true => asm.load(Width::Word, R2, R6, IP4),
            false => asm.load(Width::Word, R2, R6, IP6 + 12),
        }
        asm.if_equal(R2, LOOPBACK4, ours);
        asm.if_different(R2, LOOPBACK6, done);
        asm.place(ours);
        asm.store_cookie(R6, COOKIE);
        asm.look_up(&self.map, COOKIE, done);
        asm.copy(R8, R0);
        let words: &[(i16, i16)] = match v4 {
            true => &[(12, IP4)],
            false => &[(0, IP6), (4, IP6 + 4), (8, IP6 + 8), (12, IP6 + 12)],
        };
        if v4 {
            // The noted server may be an IPv6 one.
            asm.load(Width::Word, R2, R8, 8);
            asm.if_different(R2, MAPPED, done);
        }
        for &(at, field) in words {
            asm.load(Width::Word, R2, R8, at);
            asm.store(Width::Word, R6, field, R2);
        }
        asm.load(Width::Half, R2, R8, 16);
        asm.store(Width::Word, R6, PORT, R2);
        asm.place(done);
        asm.exit(1);
        asm.finish().expect("short")
    }
}
