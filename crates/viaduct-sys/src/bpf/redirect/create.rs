//! Refusal of sockets that would bypass the other BPF programs, or could not connect.

use super::options::Options;
use crate::bpf::asm::{Asm, Helper, Insn, Label, R1, R2, R6, R7, Width};

// Fields of `struct bpf_sock`.
const TYPE: i16 = 8;
const PROTOCOL: i16 = 12;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const IPPROTO_SMC: u32 = 256;
/// Protocols on top of TCP that cannot wait at a rendezvous. Programs fall back to TCP when the
/// kernel does not support these.
const OTHER_TCP: [u32; 2] = [libc::IPPROTO_MPTCP as u32, IPPROTO_SMC];

// On the stack.
const KEY: i16 = -8;

/// Builds the sock_create program, which accepts or refuses a new IP socket.
pub(super) fn program(strict: bool, options: &Options) -> Vec<Insn> {
    let mut asm = Asm::default();
    let [absent, refuse, done] = [(); 3].map(|()| asm.label());
    asm.copy(R6, R1);
    options.forget(&mut asm, R6, KEY);
    asm.load(Width::Word, R7, R6, PROTOCOL);
    for protocol in OTHER_TCP {
        asm.if_equal(R7, protocol, absent);
    }
    if strict {
        // Checked before the protocol, as a raw socket may have any protocol.
        asm.load(Width::Word, R2, R6, TYPE);
        asm.if_equal(R2, libc::SOCK_RAW.cast_unsigned(), refuse);
        for protocol in [TCP, UDP] {
            asm.if_equal(R7, protocol, done);
        }
        asm.goto(refuse);
    }
    asm.place(done);
    asm.exit(1);
    if strict {
        asm.place(refuse);
        asm.exit(0);
    }
    fail(&mut asm, absent, libc::EPROTONOSUPPORT);
    asm.finish().expect("short")
}

/// Places `label`, and emits code that makes the call fail with `errno`.
fn fail(asm: &mut Asm, label: Label, errno: i32) {
    asm.place(label);
    asm.set(R1, -errno);
    asm.call(Helper::SetReturn);
    asm.exit(0);
}
