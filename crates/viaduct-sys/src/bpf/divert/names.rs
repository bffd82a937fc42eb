//! Questions of DNS: they go to this process's resolver, whoever was to answer, and its answers come from
//! him.
//!
//! ```text
//!   connect(2), sendto(2) ─▶ port 53? notes whom, by cookie; another address ─▶ the resolver
//!   recvfrom(2) ◀─ from whom was asked ◀─ recvmsg: the resolver's, and the socket has asked
//! ```

use std::net::SocketAddr;

use super::ends::{END, MAPPED};
use super::judge::{IP4, IP6, PORT};
use super::programs::lead;
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Insn, R0, R1, R2, R6, R8, Width};
use crate::bpf::kernel::Map;

/// Sockets that have asked and are remembered.
const SOCKETS: u32 = 65_536;
const DNS: u16 = 53;
/// On the stack.
const COOKIE: i16 = -8;
const NOTED: usize = END as usize;
const LOOPBACK4: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
const LOOPBACK6: u32 = u32::from_ne_bytes([0, 0, 0, 1]);

/// Where this process answers questions of DNS: at one port of both loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolver {
    /// By IPv4.
    pub v4: SocketAddr,
    /// The same by IPv6; without it such questions are refused.
    pub v6: Option<SocketAddr>,
}

/// Who has asked whom.
#[derive(Debug)]
pub(super) struct Asked {
    map: Map<NOTED>,
    resolver: Resolver,
}

impl Asked {
    pub(super) fn new(resolver: Resolver) -> Result<Asked, BpfError> {
        Ok(Asked { map: Map::new(SOCKETS)?, resolver })
    }

    /// In a program whose context is in R6 and that has noted at `note` on the stack where a datagram
    /// goes: a question goes to the resolver, and ends the program. The cookie stands at `cookie` then.
    pub(super) fn ask(&self, asm: &mut Asm, note: i16, cookie: i16, v4: bool) {
        let [other, refuse] = [(); 2].map(|()| asm.label());
        asm.load(Width::Half, R2, FP, note + 16);
        asm.if_different(R2, DNS.to_be().into(), other);
        asm.store_cookie(R6, cookie);
        asm.keep(&self.map, cookie, note);
        asm.if_different(R0, 0, refuse);
        lead(asm, note, (self.resolver.v4, self.resolver.v6), v4, refuse);
        asm.exit(1);
        asm.place(refuse);
        asm.exit(0);
        asm.place(other);
    }

    /// The program that says whose an answer is.
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
            // A socket that has asked by IPv6 alone is none of IPv4.
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
