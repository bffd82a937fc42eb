//! Context of `sock_ops` programs: fields of `struct bpf_sock_ops`, and callback codes.

use super::asm::{Asm, R2, R6, R7, R8, Width};

// Fields.
pub(super) const OP: i16 = 0;
pub(super) const FIRST_ARGUMENT: i16 = 4;
pub(super) const FAMILY: i16 = 20;
pub(super) const LOCAL_IP4: i16 = 28;
pub(super) const LOCAL_IP6: i16 = 48;
pub(super) const LOCAL_PORT: i16 = 68;
pub(super) const FLAGS: i16 = 84;
pub(super) const SOCKET: i16 = 184;

// Callback codes.
pub(super) const CONNECT: u32 = 3;
pub(super) const ESTABLISHED: u32 = 4;
pub(super) const ACCEPTED: u32 = 5;
pub(super) const LISTENS: u32 = 11;
pub(super) const LENGTH: u32 = 14;
pub(super) const WRITE: u32 = 15;

/// Flag that enables option callbacks.
pub(super) const WANTS_OPTIONS: u32 = 1 << 6;

/// R7 = last word of the local address of the context in R6, R8 = local port. Clobbers R2.
pub(super) fn local_end(asm: &mut Asm) {
    let [v6, named] = [(); 2].map(|()| asm.label());
    asm.load(Width::Word, R8, R6, LOCAL_PORT);
    asm.load(Width::Word, R2, R6, FAMILY);
    asm.if_different(R2, libc::AF_INET as u32, v6);
    asm.load(Width::Word, R7, R6, LOCAL_IP4);
    asm.goto(named);
    asm.place(v6);
    asm.load(Width::Word, R7, R6, LOCAL_IP6 + 12);
    asm.place(named);
}
