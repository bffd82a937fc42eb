//! A small assembler for classic BPF: labels instead of offsets, and jumps of any distance.
//!
//! A conditional jump of classic BPF reaches 255 instructions. A longer jump is encoded as three
//! instructions: the test, and an unconditional jump (32 bits) for either outcome.

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ,
    BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_MEM, BPF_MISC, BPF_MOD,
    BPF_MSH, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST, BPF_TAX, BPF_W, BPF_X, BPF_XOR,
};

use super::BpfInsn;

/// Target of jumps, whose position may still be unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(usize);

/// Comparison with the accumulator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Test {
    Equal(u32),
    AtLeast(u32),
    Above(u32),
    AnyBit(u32),
}

#[derive(Debug)]
enum Op {
    Plain(BpfInsn),
    Branch { test: Test, yes: Label, no: Label },
    Goto(Label),
    Place(Label),
}

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Asm {
    ops: Vec<Op>,
    labels: usize,
}

impl Asm {
    /// Creates a label, to be placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Places the label at the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.ops.push(Op::Place(label));
    }

    /// A = metadata of the packet (`SKF_AD_...`).
    pub(crate) fn load_meta(&mut self, which: libc::c_int) {
        self.load_word((libc::SKF_AD_OFF + which).cast_unsigned());
    }

    /// Scratch cell = a constant. Changes A.
    pub(crate) fn store(&mut self, cell: u32, value: u32) {
        self.plain(BPF_LD | BPF_IMM, value);
        self.plain(BPF_ST, cell);
    }

    /// Jumps to `yes` if the test holds, otherwise to `no`.
    pub(crate) fn branch(&mut self, test: Test, yes: Label, no: Label) {
        self.ops.push(Op::Branch { test, yes, no });
    }

    /// Jumps to `yes` if the test holds; otherwise continues at the next instruction.
    pub(crate) fn jump_if(&mut self, test: Test, yes: Label) {
        let on = self.label();
        self.branch(test, yes, on);
        self.place(on);
    }

    /// Jumps to `no` if the test does not hold; otherwise continues at the next instruction.
    pub(crate) fn jump_unless(&mut self, test: Test, no: Label) {
        let on = self.label();
        self.branch(test, on, no);
        self.place(on);
    }

    /// Jumps to `label`.
    pub(crate) fn goto(&mut self, label: Label) {
        self.ops.push(Op::Goto(label));
    }

    /// Resolves all labels and returns the program. Every label in use must have been placed after
    /// the jumps to it, as classic BPF only jumps forward.
    pub(crate) fn finish(self) -> Vec<BpfInsn> {
        let mut wide = vec![false; self.ops.len()];
        loop {
            let at = self.positions(&wide);
            let far = self.ops.iter().zip(&at.ops).map(|(op, &position)| match op {
                Op::Branch { yes, no, .. } => {
                    let reach = |label: &Label| at.labels[label.0].saturating_sub(position + 1);
                    reach(yes).max(reach(no)) > 255
                }
                _ => false,
            });
            // A wide jump stays wide, so the program only grows, and the loop ends.
            let grown: Vec<bool> = wide.iter().zip(far).map(|(&was, is)| was || is).collect();
            if grown == wide {
                return self.encode(&at, &wide);
            }
            wide = grown;
        }
    }

    fn plain(&mut self, code: u32, k: u32) {
        self.ops.push(Op::Plain(insn(code, 0, 0, k)));
    }

    fn positions(&self, wide: &[bool]) -> Positions {
        let mut positions = Positions { ops: Vec::new(), labels: vec![0; self.labels] };
        let mut position = 0;
        for (op, &wide) in self.ops.iter().zip(wide) {
            positions.ops.push(position);
            match op {
                Op::Place(label) => positions.labels[label.0] = position,
                Op::Branch { .. } if wide => position += 3,
                _ => position += 1,
            }
        }
        positions
    }

    fn encode(&self, at: &Positions, wide: &[bool]) -> Vec<BpfInsn> {
        let mut program = Vec::new();
        for (op, &wide) in self.ops.iter().zip(wide) {
            let here = program.len();
            let skip = |label: &Label, from: usize| at.labels[label.0] - (from + 1);
            let ja = |label: &Label, from| insn(BPF_JMP | BPF_JA, 0, 0, skip(label, from) as u32);
            match op {
                Op::Plain(insn) => program.push(*insn),
                Op::Goto(label) => program.push(ja(label, here)),
                Op::Place(_) => {}
                Op::Branch { test, yes, no } if wide => {
                    program.push(test.insn(0, 1));
                    program.push(ja(yes, here + 1));
                    program.push(ja(no, here + 2));
                }
                Op::Branch { test, yes, no } => {
                    program.push(test.insn(skip(yes, here) as u8, skip(no, here) as u8));
                }
            }
        }
        program
    }
}

/// Defines a method for each instruction, from its argument and the two arguments
/// of [`Asm::plain`].
macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident)?) => $code:expr, $k:expr;)*) => {
        impl Asm {
            $($(#[$doc])*
            pub(crate) fn $name(&mut self $(, $arg: u32)?) {
                self.plain($code, $k);
            })*
        }
    };
}

instructions! {
    /// A = the 32 bits at `offset`.
    load_word(offset) => BPF_LD | BPF_W | BPF_ABS, offset;
    /// A = the 16 bits at `offset`.
    load_half(offset) => BPF_LD | BPF_H | BPF_ABS, offset;
    /// A = the byte at `offset`.
    load_byte(offset) => BPF_LD | BPF_B | BPF_ABS, offset;
    /// A = the 32 bits at X + `offset`.
    load_word_at_x(offset) => BPF_LD | BPF_W | BPF_IND, offset;
    /// A = the 16 bits at X + `offset`.
    load_half_at_x(offset) => BPF_LD | BPF_H | BPF_IND, offset;
    /// A = the byte at X + `offset`.
    load_byte_at_x(offset) => BPF_LD | BPF_B | BPF_IND, offset;
    /// Scratch cell = A.
    keep_in(cell) => BPF_ST, cell;
    /// X = A.
    x_from_a() => BPF_MISC | BPF_TAX, 0;
    /// A = A + X, modulo 2^32.
    add_x() => BPF_ALU | BPF_ADD | BPF_X, 0;
    /// A = A xor X.
    xor_x() => BPF_ALU | BPF_XOR | BPF_X, 0;
    /// X = length of the IPv4 header at `at`.
    x_from_ipv4_header_length(at) => BPF_LDX | BPF_B | BPF_MSH, at;
    /// X = scratch cell.
    x_from(cell) => BPF_LDX | BPF_MEM, cell;
    /// A = A and `mask`.
    and(mask) => BPF_ALU | BPF_AND | BPF_K, mask;
    /// A = A times `by`, modulo 2^32.
    multiply(by) => BPF_ALU | BPF_MUL | BPF_K, by;
    /// A = A shifted to the right by `bits`.
    shift_right(bits) => BPF_ALU | BPF_RSH | BPF_K, bits;
    /// A = A modulo `by`.
    remainder(by) => BPF_ALU | BPF_MOD | BPF_K, by;
    /// Ends the program with the result A.
    answer() => BPF_RET | BPF_A, 0;
    /// Ends the program with the number of bytes to keep of the packet; 0 drops the packet.
    keep(bytes) => BPF_RET | BPF_K, bytes;
}

#[derive(Debug)]
struct Positions {
    ops: Vec<usize>,
    labels: Vec<usize>,
}

impl Test {
    fn insn(self, jt: u8, jf: u8) -> BpfInsn {
        let (code, k) = match self {
            Test::Equal(k) => (BPF_JEQ, k),
            Test::AtLeast(k) => (BPF_JGE, k),
            Test::Above(k) => (BPF_JGT, k),
            Test::AnyBit(k) => (BPF_JSET, k),
        };
        insn(BPF_JMP | code | BPF_K, jt, jf, k)
    }
}

fn insn(code: u32, jt: u8, jf: u8, k: u32) -> BpfInsn {
    BpfInsn { code: code as u16, jt, jf, k }
}
