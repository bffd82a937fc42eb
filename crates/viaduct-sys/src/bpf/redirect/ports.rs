//! Addresses and ports on which wrapped programs listen.
//!
//! ```text
//!   key     ├ address: 16 bytes, IPv4 is mapped ┤ port: 4, host order ┤ 0: 4 ┤
//!   value   number of listeners
//! ```
//!
//! A listener at `::` accepts IPv4 clients too, unless it is limited to IPv6, which the programs
//! cannot see.

use std::sync::Arc;

use super::endpoints::MAPPED;
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Label, R0, R2, R6, Width};
use crate::bpf::kernel::Map;

/// Max pairs of address and port on which programs have listened. Entries are never removed, and an
/// FTP server, for example, listens on many ports one after another.
const PORTS: u32 = 1 << 18;

/// Bytes of a key, and of its address.
const KEY_BYTES: usize = 24;
const ADDRESS_BYTES: i16 = 16;

// On the stack, below the space of `programs` and `listeners`.
const KEY: i16 = -184;
const ONE: i16 = -192;

/// Offsets of the local endpoint in a program's context.
pub(in crate::bpf) struct LocalEnd {
    /// Address family.
    pub(in crate::bpf) family: i16,
    /// IPv4 address, one word.
    pub(in crate::bpf) ip4: i16,
    /// IPv6 address, four words.
    pub(in crate::bpf) ip6: i16,
    /// Port in host order.
    pub(in crate::bpf) port: i16,
}

/// Number of listeners of wrapped programs, by address and port.
#[derive(Clone, Debug)]
pub struct Ports(Arc<Map<8, KEY_BYTES>>);

impl Ports {
    /// Creates an empty table. Errors: a privilege is missing.
    pub fn new() -> Result<Ports, BpfError> {
        Ok(Ports(Arc::new(Map::growing(PORTS)?)))
    }

    /// Emits a jump to `none` unless a program listens at the local endpoint of the context in R6,
    /// or on its port at a wildcard address that includes the endpoint's.
    pub(in crate::bpf) fn find(&self, asm: &mut Asm, end: &LocalEnd, none: Label) {
        let [found, all_of_v4, all] = [(); 3].map(|()| asm.label());
        store_key(asm, end);
        self.probe(asm, found, all_of_v4);
        asm.place(all_of_v4);
        if_v6(asm, all);
        asm.set(R2, 0);
        asm.store(Width::Word, FP, KEY + 12, R2);
        self.probe(asm, found, all);
        asm.place(all);
        asm.clear(KEY, ADDRESS_BYTES);
        self.probe(asm, found, none);
        asm.place(found);
    }

    /// Emits a jump to `found` if there is a listener at the key, and to `none` otherwise.
    fn probe(&self, asm: &mut Asm, found: Label, none: Label) {
        asm.look_up(&*self.0, KEY, none);
        asm.load(Width::Double, R2, R0, 0);
        asm.if_something(R2, found);
        asm.goto(none);
    }

    /// Emits the addition of `change` to the count of listeners at the local endpoint of the
    /// context in R6.
    pub(super) fn count(&self, asm: &mut Asm, end: &LocalEnd, change: i32) {
        let [unknown, done] = [(); 2].map(|()| asm.label());
        store_key(asm, end);
        asm.look_up(&*self.0, KEY, unknown);
        asm.set(R2, change);
        asm.add_to_memory(R0, 0, R2);
        asm.goto(done);
        asm.place(unknown);
        if change > 0 {
            asm.set(R2, change);
            asm.store(Width::Double, FP, ONE, R2);
            asm.keep(&*self.0, KEY, ONE);
        }
        asm.place(done);
    }
}

/// Emits a store of the key for the local endpoint of the context in R6. Clobbers R2.
pub(super) fn store_key(asm: &mut Asm, end: &LocalEnd) {
    let [v6, stored] = [(); 2].map(|()| asm.label());
    asm.clear(KEY, KEY_BYTES as i16);
    asm.load(Width::Word, R2, R6, end.port);
    asm.store(Width::Word, FP, KEY + ADDRESS_BYTES, R2);
    asm.load(Width::Word, R2, R6, end.family);
    asm.if_different(R2, libc::AF_INET as u32, v6);
    asm.load(Width::Word, R2, R6, end.ip4);
    asm.store(Width::Word, FP, KEY + 12, R2);
    asm.set(R2, MAPPED.cast_signed());
    asm.store(Width::Word, FP, KEY + 8, R2);
    asm.goto(stored);
    asm.place(v6);
    for at in [0, 4, 8, 12] {
        asm.load(Width::Word, R2, R6, end.ip6 + at);
        asm.store(Width::Word, FP, KEY + at, R2);
    }
    asm.place(stored);
}

/// Emits a jump to `v6` unless the address of the stored key is an IPv4 address. Clobbers R2.
pub(super) fn if_v6(asm: &mut Asm, v6: Label) {
    for (at, word) in [(0, 0), (4, 0), (8, MAPPED)] {
        asm.load(Width::Word, R2, FP, KEY + at);
        asm.if_different(R2, word, v6);
    }
}
