//! Socket options that programs set. They are also applied to the connections that replace the
//! programs' connections ([`crate::socket::tcp::Mirrored`]).
//!
//! A connected socket is identified by its endpoints, and any other socket by its address in the
//! kernel, as the setsockopt hook has no cookie. The hook runs before the kernel checks the option,
//! so options that the kernel refuses are reported too; the kernel refuses them again when they are
//! applied. From us, however, the kernel would accept a mark or a priority that the program may not
//! set. These two are therefore read from the program's socket when it connects.

use std::sync::Arc;

use super::endpoints::MAPPED;
use super::programs::send_event;
use super::{EVENT, EventKind, VALUE};
use crate::bpf::BpfError;
use crate::bpf::asm::{Asm, FP, Insn, Label, R0, R1, R2, R3, R4, R6, R7, R8, Reg, Width};
use crate::bpf::events::Events;
use crate::bpf::kernel::Map;
use crate::socket::tcp::{MIRRORED, MIRRORED_OPTIONS, Mirrored};

/// Bytes of a socket's options: their values, and a bit mask of the options that are set.
const VALUES: usize = 4 * (MIRRORED + 1);
const SET: i16 = 4 * MIRRORED as i16;
/// Max sockets whose options are stored.
const SOCKETS: u32 = 16_384;

// Fields of `struct bpf_sockopt`.
const SOCKET: i16 = 0;
const OPTVAL: i16 = 8;
const OPTVAL_END: i16 = 16;
const LEVEL: i16 = 24;
const NAME: i16 = 28;
const LENGTH: i16 = 32;
// Fields of `struct bpf_sock`.
const FAMILY: i16 = 4;
const PROTOCOL: i16 = 12;
const SRC_IP4: i16 = 24;
const SRC_IP6: i16 = 28;
const SRC_PORT: i16 = 44;
const DST_PORT: i16 = 48;
const STATE: i16 = 72;
const CLOSED: u32 = 7;
const TCP: u32 = libc::IPPROTO_TCP as u32;

// On the stack: an event, a key, values.
const EVENT_AT: i16 = -(EVENT as i16);
const KEY: i16 = EVENT_AT - 8;
const FRESH: i16 = KEY - VALUES as i16;

/// Options of sockets that are not connected, by the sockets' kernel addresses.
#[derive(Clone, Debug)]
pub(super) struct Options(Arc<Map<VALUES>>);

impl Options {
    pub(super) fn new() -> Result<Options, BpfError> {
        Ok(Options(Arc::new(Map::new(SOCKETS)?)))
    }

    /// Returns the stored options of the socket at the kernel address `socket`, with the given mark
    /// and priority.
    pub(super) fn get(&self, socket: u64, [mark, priority]: [u32; 2]) -> Mirrored {
        let mut mirrored = Mirrored::default();
        if let Some(values) = self.0.get(socket) {
            let words = values.as_chunks::<4>().0;
            let set = u32::from_ne_bytes(words[MIRRORED]);
            for (n, word) in words[..MIRRORED].iter().enumerate() {
                mirrored.0[n] = (set >> n & 1 == 1).then(|| i32::from_ne_bytes(*word));
            }
        }
        mirrored.set_privileged([mark, priority]);
        mirrored
    }

    /// Emits the removal of the options of an earlier socket that had the kernel address
    /// in `socket`.
    pub(super) fn forget(&self, asm: &mut Asm, socket: Reg, key: i16) {
        asm.store(Width::Double, FP, key, socket);
        asm.forget(&*self.0, key);
    }

    /// Builds the setsockopt program, which stores and reports the options that programs set.
    pub(super) fn program(&self, events: &Events<EVENT>) -> Vec<Insn> {
        let mut asm = Asm::default();
        let [found, connected, known, report, done] = [(); 5].map(|()| asm.label());
        asm.copy(R6, R1);
        asm.load(Width::Double, R7, R6, SOCKET);
        asm.if_nothing(R7, done);
        asm.load(Width::Word, R2, R7, PROTOCOL);
        asm.if_different(R2, TCP, done);
        option_number(&mut asm, found);
        asm.goto(done);

        asm.place(found);
        asm.load(Width::Double, R2, R6, OPTVAL);
        asm.load(Width::Double, R3, R6, OPTVAL_END);
        asm.copy(R4, R2);
        asm.add(R4, 4);
        asm.if_register_above(R4, R3, done);
        asm.load(Width::Word, R4, R2, 0);
        asm.clear(EVENT_AT, EVENT as i16);
        asm.store(Width::Word, FP, EVENT_AT + VALUE, R4);
        asm.store(Width::Word, FP, EVENT_AT + VALUE + 4, R8);
        asm.load(Width::Word, R2, R7, STATE);
        asm.if_different(R2, CLOSED, connected);

        asm.store(Width::Double, FP, KEY, R7);
        asm.look_for(&*self.0, KEY, known);
        asm.clear(FRESH, VALUES as i16);
        asm.keep(&*self.0, KEY, FRESH);
        let full = asm.label();
        asm.look_up(&*self.0, KEY, full);
        asm.place(known);
        for n in 0..MIRRORED {
            let other = asm.label();
            asm.if_different(R8, n as u32, other);
            asm.load(Width::Word, R2, FP, EVENT_AT + VALUE);
            asm.store(Width::Word, R0, 4 * n as i16, R2);
            asm.load(Width::Word, R2, R0, SET);
            asm.or(R2, 1 << n);
            asm.store(Width::Word, R0, SET, R2);
            asm.goto(report);
            asm.place(other);
        }
        asm.place(full);
        asm.goto(report);

        asm.place(connected);
        local_end(&mut asm);
        asm.place(report);
        send_event(&mut asm, events, EVENT_AT, EventKind::Option);
        asm.place(done);
        // A length of 0 makes the kernel read the value from the program's own buffer.
        asm.set(R2, 0);
        asm.store(Width::Word, R6, LENGTH, R2);
        asm.exit(1);
        asm.finish().expect("short")
    }
}

/// Emits the search for the option that is being set: puts its number into R8 and jumps to `found`.
fn option_number(asm: &mut Asm, found: Label) {
    for (n, (level, name)) in MIRRORED_OPTIONS.into_iter().enumerate() {
        if Mirrored::is_privileged(level, name) {
            continue;
        }
        let other = asm.label();
        for (field, wanted) in [(LEVEL, level), (NAME, name)] {
            asm.load(Width::Word, R2, R6, field);
            asm.if_different(R2, wanted.cast_unsigned(), other);
        }
        asm.set(R8, n as i32);
        asm.goto(found);
        asm.place(other);
    }
}

/// Emits stores into the event: both ports and the local address of the socket at R7.
fn local_end(asm: &mut Asm) {
    let [v6, named] = [(); 2].map(|()| asm.label());
    asm.load(Width::Word, R2, R7, FAMILY);
    asm.if_different(R2, libc::AF_INET as u32, v6);
    asm.set(R2, MAPPED.cast_signed());
    asm.store(Width::Word, FP, EVENT_AT + 40, R2);
    asm.load(Width::Word, R2, R7, SRC_IP4);
    asm.store(Width::Word, FP, EVENT_AT + 44, R2);
    asm.goto(named);
    asm.place(v6);
    for at in [0, 4, 8, 12] {
        asm.load(Width::Word, R2, R7, SRC_IP6 + at);
        asm.store(Width::Word, FP, EVENT_AT + 32 + at, R2);
    }
    asm.place(named);
    asm.load(Width::Word, R2, R7, SRC_PORT);
    asm.store(Width::Word, FP, EVENT_AT + 52, R2);
    asm.load(Width::Half, R2, R7, DST_PORT);
    asm.store(Width::Half, FP, EVENT_AT + 8 + 16, R2);
}
