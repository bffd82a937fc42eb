//! A small assembler for extended BPF: registers, labels instead of offsets, calls by name.
//!
//! `R0` holds the result of a call or of the program. `R1` to `R5` are the arguments of a call,
//! which clobbers them; `R6` to `R9` are preserved. `FP` is the end of the 512 bytes of stack.

use super::kernel::Numbered;

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

/// Number of bits moved between a register and memory.
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

// Classes and modes of instructions.
const LD_IMM_DOUBLE: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const AND_WORD: u8 = 0x54;
const OR_WORD: u8 = 0x44;
const OR_REGISTER: u8 = 0x4f;
const SHIFT_LEFT: u8 = 0x67;
const ATOMIC_DOUBLE: u8 = 0xdb;
const TO_BIG_ENDIAN: u8 = 0xdc;
const GOTO: u8 = 0x05;
const IF_EQUAL_WORD: u8 = 0x16;
const IF_DIFFERENT_WORD: u8 = 0x56;
const IF_ABOVE_WORD: u8 = 0x26;
const IF_BELOW_WORD: u8 = 0xa6;
const IF_EQUAL: u8 = 0x15;
const IF_DIFFERENT: u8 = 0x55;
const IF_DIFFERENT_REGISTER: u8 = 0x5d;
const IF_ABOVE_REGISTER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Value of the source register of a double load whose immediate is the descriptor of a map.
const MAP: u8 = 1;

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

    /// to = a constant.
    pub(super) fn set(&mut self, to: Reg, value: i32) {
        self.push(MOVE, to, R0, 0, value);
    }

    /// to = from.
    pub(super) fn copy(&mut self, to: Reg, from: Reg) {
        self.push(MOVE_REGISTER, to, from, 0, 0);
    }

    /// to = a 64-bit constant.
    pub(super) fn set_double(&mut self, to: Reg, value: u64) {
        self.push(LD_IMM_DOUBLE, to, R0, 0, (value as u32).cast_signed());
        self.push(0, R0, R0, 0, ((value >> 32) as u32).cast_signed());
    }

    /// to = address of the map, for a call.
    pub(super) fn set_map(&mut self, to: Reg, map: &dyn Numbered) {
        self.push(LD_IMM_DOUBLE, to, Reg(MAP), 0, map.number());
        self.push(0, R0, R0, 0, 0);
    }

    /// to = memory at `base` + `offset`.
    pub(super) fn load(&mut self, width: Width, to: Reg, base: Reg, offset: i16) {
        self.push(LOAD | width as u8, to, base, offset, 0);
    }

    /// Memory at `base` + `offset` = from.
    pub(super) fn store(&mut self, width: Width, base: Reg, offset: i16, from: Reg) {
        self.push(STORE | width as u8, base, from, offset, 0);
    }

    /// to = to + a constant.
    pub(super) fn add(&mut self, to: Reg, value: i32) {
        self.push(ADD, to, R0, 0, value);
    }

    /// to = to and `mask`, 32 bits.
    pub(super) fn and(&mut self, to: Reg, mask: u32) {
        self.push(AND_WORD, to, R0, 0, mask.cast_signed());
    }

    /// to = to or `bits`, 32 bits.
    pub(super) fn or(&mut self, to: Reg, bits: u32) {
        self.push(OR_WORD, to, R0, 0, bits.cast_signed());
    }

    /// to = its lowest 16 bits in network order.
    pub(super) fn network_order(&mut self, to: Reg) {
        self.push(TO_BIG_ENDIAN, to, R0, 0, 16);
    }

    /// to = its lowest 32 bits in network order.
    pub(super) fn network_order_word(&mut self, to: Reg) {
        self.push(TO_BIG_ENDIAN, to, R0, 0, 32);
    }

    /// to = to or from, 64 bits.
    pub(super) fn or_register(&mut self, to: Reg, from: Reg) {
        self.push(OR_REGISTER, to, from, 0, 0);
    }

    /// to = to shifted to the left, 64 bits.
    pub(super) fn shift_left(&mut self, to: Reg, bits: i32) {
        self.push(SHIFT_LEFT, to, R0, 0, bits);
    }

    /// Atomically adds `from` to 64 bits of memory at `base` + `offset`.
    pub(super) fn add_to_memory(&mut self, base: Reg, offset: i16, from: Reg) {
        self.push(ATOMIC_DOUBLE, base, from, offset, 0);
    }

    /// Jumps to `label`. All jumps are forward.
    pub(super) fn goto(&mut self, label: Label) {
        self.jump(GOTO, R0, R0, 0, label);
    }

    /// Jumps to `label` if the low 32 bits of `reg` are `value`.
    pub(super) fn if_equal(&mut self, reg: Reg, value: u32, label: Label) {
        self.jump(IF_EQUAL_WORD, reg, R0, value.cast_signed(), label);
    }

    /// Jumps to `label` if the low 32 bits of `reg` are not `value`.
    pub(super) fn if_different(&mut self, reg: Reg, value: u32, label: Label) {
        self.jump(IF_DIFFERENT_WORD, reg, R0, value.cast_signed(), label);
    }

    /// Jumps to `label` if the low 32 bits of `reg` are greater than `value`.
    pub(super) fn if_above(&mut self, reg: Reg, value: u32, label: Label) {
        self.jump(IF_ABOVE_WORD, reg, R0, value.cast_signed(), label);
    }

    /// Jumps to `label` if the low 32 bits of `reg` are less than `value`.
    pub(super) fn if_below(&mut self, reg: Reg, value: u32, label: Label) {
        self.jump(IF_BELOW_WORD, reg, R0, value.cast_signed(), label);
    }

    /// Jumps to `label` if the register is 0, such as the null pointer of a failed look-up.
    pub(super) fn if_nothing(&mut self, reg: Reg, label: Label) {
        self.jump(IF_EQUAL, reg, R0, 0, label);
    }

    /// Jumps to `label` if the register is not 0.
    pub(super) fn if_something(&mut self, reg: Reg, label: Label) {
        self.jump(IF_DIFFERENT, reg, R0, 0, label);
    }

    /// Jumps to `label` if `a` and `b` differ in any of their 64 bits.
    pub(super) fn if_registers_differ(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump(IF_DIFFERENT_REGISTER, a, b, 0, label);
    }

    /// Jumps to `label` if the 64 bits of `a` are greater than those of `b`.
    pub(super) fn if_register_above(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump(IF_ABOVE_REGISTER, a, b, 0, label);
    }

    /// Calls `helper`; R0 = its result.
    pub(super) fn call(&mut self, helper: Helper) {
        self.push(CALL, R0, R0, 0, helper as i32);
    }

    /// Ends the program with `value`.
    pub(super) fn exit(&mut self, value: i32) {
        self.set(R0, value);
        self.push(EXIT, R0, R0, 0, 0);
    }

    /// Returns the program; `None` if a jump is too far. Every label in use must have been placed.
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
