//! Which of several loops a connection belongs to. Two programs say the same of it: the one of each loop's
//! tap, and the one by which the kernel chooses among listeners. So the loop that has seen a SYN is the one
//! that accepts it.

use libc::{ETH_P_IP, SKF_AD_PROTOCOL, SKF_NET_OFF};

use super::BpfInsn;
use super::asm::{Asm, Label, Test};
use super::syn::IPV6_HEAD;

/// Where the network header begins, whatever of the packet the program is shown.
const NETWORK: u32 = SKF_NET_OFF.cast_unsigned();
/// 2^32 divided by the golden ratio, which spreads neighbours evenly (Knuth, 6.4).
const GOLDEN: u32 = 0x9e37_79b1;

/// One of several loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which, from 0.
    pub number: u32,
    /// How many there are, at least one.
    pub of: u32,
}

impl Share {
    /// Goes on if the source port in A is of this loop, else to `no`.
    pub(super) fn test(self, asm: &mut Asm, no: Label) {
        loop_of(asm, self.of);
        asm.jump_unless(Test::Equal(self.number), no);
    }
}

/// The program that says which of so many listeners a SYN belongs to. It is shown TCP's payload.
pub fn listener_of(of: u32) -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    let [v6, known] = [(); 2].map(|()| asm.label());
    asm.load_meta(SKF_AD_PROTOCOL);
    asm.jump_unless(Test::Equal(ETH_P_IP as u32), v6);
    asm.x_from_ipv4_header_length(NETWORK);
    asm.load_half_at_x(NETWORK);
    asm.goto(known);
    asm.place(v6);
    asm.load_half(NETWORK + IPV6_HEAD);
    asm.place(known);
    loop_of(&mut asm, of);
    asm.answer();
    asm.finish()
}

/// A = the loop that the source port in A belongs to. Ports are not random: those that connect(2)
/// chooses are even as long as there are such.
fn loop_of(asm: &mut Asm, of: u32) {
    asm.multiply(GOLDEN);
    asm.shift_right(16);
    asm.remainder(of);
}
