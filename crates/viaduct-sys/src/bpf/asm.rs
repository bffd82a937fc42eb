//! A small assembler for extended BPF: registers, labels instead of offsets, calls by name.
//!
//! `R0` holds the result of a call or of the program. `R1` to `R5` are the arguments of a call,
//! which clobbers them; `R6` to `R9` are preserved. `FP` points to the end of the stack, which has
//! 512 bytes.

use super::kernel::MapFd;

/// An instruction, in the kernel's encoding.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Insn {
    code: u8,
    /// Destination register in the low half, source register in the high half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg(u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R4: Reg = Reg(4);
pub(super) const R5: Reg = Reg(5);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const FP: Reg = Reg(10);

/// Width of a load or store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Helper functions of the kernel (`BPF_FUNC_...`).
#[derive(Clone, Copy, Debug)]
pub(super) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    SocketCookie = 46,
    SetOption = 49,
    SockOpsFlags = 59,
    ReleaseSocket = 86,
    NetnsCookie = 122,
    AssignSocket = 124,
    RingOutput = 130,
    LoadOption = 142,
    StoreOption = 143,
    ReserveOption = 144,
    SetReturn = 187,
}

/// Target of jumps, whose position may still be unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// Class and mode of a load, without its width.
const LOAD: u8 = 0x61;
/// Class and mode of a store, without its width.
const STORE: u8 = 0x63;
/// Load of a 64-bit immediate; its source register is [`MAP`] if the immediate is a
/// map's descriptor.
const LOAD_DOUBLE: u8 = 0x18;
const MAP: Reg = Reg(1);

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Asm {
    insns: Vec<Insn>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<usize>,
}

impl Asm {
    /// Creates a label, to be placed later.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    /// Places the label at the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        self.labels[label.0] = self.insns.len();
    }

    /// to = a 64-bit constant.
    pub(super) fn set_double(&mut self, to: Reg, value: u64) {
        self.push(LOAD_DOUBLE, to, R0, 0, (value as u32).cast_signed());
        self.push(0, R0, R0, 0, ((value >> 32) as u32).cast_signed());
    }

    /// to = address of the map, for a call.
    pub(super) fn set_map(&mut self, to: Reg, map: &dyn MapFd) {
        self.push(LOAD_DOUBLE, to, MAP, 0, map.number());
        self.push(0, R0, R0, 0, 0);
    }

    /// Ends the program with `value`.
    pub(super) fn exit(&mut self, value: i32) {
        self.set(R0, value);
        self.push(0x95, R0, R0, 0, 0);
    }

    /// Returns the program; `None` if a jump is too far or goes backward. Every label in use must
    /// have been placed.
    pub(super) fn finish(mut self) -> Option<Vec<Insn>> {
        for &(at, label) in &self.jumps {
            let skip = self.labels[label.0].checked_sub(at + 1)?;
            self.insns[at].offset = i16::try_from(skip).ok()?;
        }
        Some(self.insns)
    }

    fn jump(&mut self, code: u8, a: Reg, b: Reg, immediate: i32, label: Label) {
        self.jumps.push((self.insns.len(), label));
        self.push(code, a, b, 0, immediate);
    }

    fn push(&mut self, code: u8, to: Reg, from: Reg, offset: i16, immediate: i32) {
        let registers =
            if cfg!(target_endian = "little") { to.0 | from.0 << 4 } else { to.0 << 4 | from.0 };
        self.insns.push(Insn { code, registers, offset, immediate });
    }
}

/// Defines a method for each instruction, from its arguments and its call of [`Asm::push`] or
/// [`Asm::jump`], whose first argument is the opcode.
macro_rules! instructions {
    ($(
        $(#[$doc:meta])*
        $name:ident($($arg:ident: $type:ty),*) => $emit:ident($($given:expr),*);
    )*) => {
        impl Asm {
            $($(#[$doc])*
            pub(super) fn $name(&mut self, $($arg: $type),*) {
                self.$emit($($given),*);
            })*
        }
    };
}

instructions! {
    /// to = a constant.
    set(to: Reg, value: i32) => push(0xb7, to, R0, 0, value);
    /// to = from.
    copy(to: Reg, from: Reg) => push(0xbf, to, from, 0, 0);
    /// to = memory at `base` + `offset`.
    load(width: Width, to: Reg, base: Reg, offset: i16) =>
        push(LOAD | width as u8, to, base, offset, 0);
    /// Memory at `base` + `offset` = from.
    store(width: Width, base: Reg, offset: i16, from: Reg) =>
        push(STORE | width as u8, base, from, offset, 0);
    /// to = to + a constant.
    add(to: Reg, value: i32) => push(0x07, to, R0, 0, value);
    /// to = to and `mask`, 32 bits.
    and(to: Reg, mask: u32) => push(0x54, to, R0, 0, mask.cast_signed());
    /// to = to or `bits`, 32 bits.
    or(to: Reg, bits: u32) => push(0x44, to, R0, 0, bits.cast_signed());
    /// to = its lowest 16 bits in network order.
    network_order(to: Reg) => push(0xdc, to, R0, 0, 16);
    /// to = its lowest 32 bits in network order.
    network_order_word(to: Reg) => push(0xdc, to, R0, 0, 32);
    /// to = to or from, 64 bits.
    or_register(to: Reg, from: Reg) => push(0x4f, to, from, 0, 0);
    /// to = to shifted to the left, 64 bits.
    shift_left(to: Reg, bits: i32) => push(0x67, to, R0, 0, bits);
    /// Atomically adds `from` to 64 bits of memory at `base` + `offset`.
    add_to_memory(base: Reg, offset: i16, from: Reg) => push(0xdb, base, from, offset, 0);
    /// Calls `helper`; R0 = its result.
    call(helper: Helper) => push(0x85, R0, R0, 0, helper as i32);
    /// Jumps to `label`. All jumps are forward.
    goto(label: Label) => jump(0x05, R0, R0, 0, label);
    /// Jumps to `label` if the low 32 bits of `reg` are `value`.
    if_equal(reg: Reg, value: u32, label: Label) => jump(0x16, reg, R0, value.cast_signed(), label);
    /// Jumps to `label` if the low 32 bits of `reg` are not `value`.
    if_different(reg: Reg, value: u32, label: Label) =>
        jump(0x56, reg, R0, value.cast_signed(), label);
    /// Jumps to `label` if the low 32 bits of `reg` are greater than `value`.
    if_above(reg: Reg, value: u32, label: Label) => jump(0x26, reg, R0, value.cast_signed(), label);
    /// Jumps to `label` if the low 32 bits of `reg` are less than `value`.
    if_below(reg: Reg, value: u32, label: Label) => jump(0xa6, reg, R0, value.cast_signed(), label);
    /// Jumps to `label` if the register is 0, such as the null pointer of a failed look-up.
    if_nothing(reg: Reg, label: Label) => jump(0x15, reg, R0, 0, label);
    /// Jumps to `label` if the register is not 0.
    if_something(reg: Reg, label: Label) => jump(0x55, reg, R0, 0, label);
    /// Jumps to `label` if `a` and `b` differ in any of their 64 bits.
    if_registers_differ(a: Reg, b: Reg, label: Label) => jump(0x5d, a, b, 0, label);
    /// Jumps to `label` if the 64 bits of `a` are greater than those of `b`.
    if_register_above(a: Reg, b: Reg, label: Label) => jump(0x2d, a, b, 0, label);
}
