//! Distribution of connections over several event loops. Two BPF programs do the same computation:
//! the filter of each loop's tap, and the program with which the kernel chooses a listener. The
//! loop that has seen a SYN therefore accepts the connection.

use libc::{ETH_P_IP, SKF_AD_PROTOCOL, SKF_NET_OFF};

use super::BpfInsn;
use super::asm::{Asm, Label, Test};
use super::syn::IPV6_HEAD;

/// Offset of the network header, independent of where the program's packets begin.
const NETWORK: u32 = SKF_NET_OFF.cast_unsigned();
/// 2^32 divided by the golden ratio: multiplication by it spreads consecutive numbers evenly
/// (Knuth, 6.4).
const GOLDEN: u32 = 0x9e37_79b1;

/// Share of the connections that belongs to one of several event loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the loop, from 0.
    pub number: u32,
    /// Number of loops, at least one.
    pub of: u32,
}

impl Share {
    /// Emits a jump to `no` unless the source port in A belongs to this loop.
    pub(super) fn test(self, asm: &mut Asm, no: Label) {
        loop_of(asm, self.of);
        asm.jump_unless(Test::Equal(self.number), no);
    }
}

/// Builds the program that chooses one of `of` listeners for a SYN, or one of `of` UDP sockets for
/// a datagram. The packets that the kernel passes to the program begin at the transport payload.
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

/// Emits A = index of the loop for the source port in A. The multiplication spreads ports that are
/// not random: connect(2) prefers even ports.
fn loop_of(asm: &mut Asm, of: u32) {
    asm.multiply(GOLDEN);
    asm.shift_right(16);
    asm.remainder(of);
}
