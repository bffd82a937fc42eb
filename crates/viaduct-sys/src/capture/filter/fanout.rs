//! Distribution of packets over a group of taps. The packets between two addresses, in both
//! directions, belong to one share, and each share to one member of the group.

use std::net::{IpAddr, SocketAddr};

use libc::{ETH_P_IP, ETH_P_IPV6, IPPROTO_UDP, SKF_AD_PROTOCOL, SKF_NET_OFF};

use super::asm::{Asm, Label, Test};
use super::{BpfInsn, FilterError};

/// Max number of shares.
pub(super) const MAX_SHARES: usize = 64;

// Constants of the hash.
/// Odd multiplier of each address.
const OF_ADDRESS: u32 = 0x9e37_79b1;
/// Odd multiplier of the sum of the mixed addresses.
const OF_SUM: u32 = 0x85eb_ca77;
/// Shift in the mixing of an address.
const MIX: u32 = 15;
/// Number of low bits of the product that are not part of the share.
const DROPPED: u32 = 32 - MAX_SHARES.trailing_zeros();

/// Scratch cell for the mixed source address.
const SOURCE: u32 = 0;
/// Bytes of a UDP header.
const UDP_HEADER: u32 = 8;

/// Program that chooses the member of a group of taps for a packet.
///
/// The share of a packet is a symmetric hash of its two addresses, each folded to 32 bits:
///
/// ```text
///   mix(a) = p xor p >> 15, where p = a * 0x9e3779b1
///   share  = (mix(source) + mix(destination)) * 0x85ebca77 >> 26, modulo the number of shares
/// ```
#[derive(Clone, Debug, Default)]
pub struct FanoutProgram {
    /// Index of the member that gets each share. The number of shares is a power of two, at
    /// most 64.
    pub members: Vec<u8>,
    /// Local address and offset for UDP datagrams that carry the number of their share: the address
    /// to which they are sent, and the offset of the number (one byte) in the payload. The share of
    /// a fragment is the hash of its addresses. `0.0.0.0` means any IPv4 address, and `[::]` any
    /// address. If set, the program is for incoming packets only.
    pub datagrams: Option<(SocketAddr, u32)>,
}

impl FanoutProgram {
    /// Builds the program. Errors: the number of shares is not a power of two, or too large.
    pub fn build(&self) -> Result<Vec<BpfInsn>, FilterError> {
        let count = self.members.len();
        if !count.is_power_of_two() || count > MAX_SHARES {
            return Err(FilterError::Shares(count));
        }
        // Outgoing packets begin at their link header, so a program for both directions uses
        // offsets from the network header. These reach only the linear part of a packet. Incoming
        // packets begin at the network header, and plain offsets reach all of their bytes.
        let base = if self.datagrams.is_some() { 0 } else { SKF_NET_OFF.cast_unsigned() };
        let mut asm = Asm::default();
        let [v4, v6, none, hash, chosen] = [(); 5].map(|()| asm.label());
        asm.load_meta(SKF_AD_PROTOCOL);
        asm.jump_if(Test::Equal(ETH_P_IP as u32), v4);
        asm.branch(Test::Equal(ETH_P_IPV6 as u32), v6, none);

        asm.place(v4);
        self.test_datagram_v4(&mut asm, base, chosen);
        asm.load_word(base + 12);
        mix(&mut asm);
        asm.keep_in(SOURCE);
        asm.load_word(base + 16);
        asm.goto(hash);

        asm.place(v6);
        self.test_datagram_v6(&mut asm, base, chosen);
        fold(&mut asm, base + 8);
        mix(&mut asm);
        asm.keep_in(SOURCE);
        fold(&mut asm, base + 24);

        asm.place(hash);
        mix(&mut asm);
        asm.x_from(SOURCE);
        asm.add_x();
        asm.multiply(OF_SUM);
        asm.shift_right(DROPPED);

        asm.place(chosen);
        asm.and(count as u32 - 1);
        choose(&mut asm, &self.members, 0);
        asm.place(none);
        asm.keep(self.members[0].into());
        Ok(asm.finish())
    }

    /// Emits a jump to `chosen`, with A = the share in the payload, for datagrams
    /// to `self.datagrams`.
    fn test_datagram_v4(&self, asm: &mut Asm, base: u32, chosen: Label) {
        let Some((at, offset)) = self.datagrams else { return };
        let address = match at.ip() {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) if address.is_unspecified() => 0,
            IpAddr::V6(_) => return,
        };
        let other = asm.label();
        asm.load_byte(base + 9);
        asm.jump_unless(Test::Equal(IPPROTO_UDP.cast_unsigned()), other);
        asm.load_half(base + 6);
        asm.jump_if(Test::AnyBit(0x3fff), other);
        asm.x_from_ipv4_header_length(base);
        asm.load_half_at_x(base + 2);
        asm.jump_unless(Test::Equal(at.port().into()), other);
        if address != 0 {
            asm.load_word(base + 16);
            asm.jump_unless(Test::Equal(address), other);
        }
        asm.load_byte_at_x(base + UDP_HEADER + offset);
        asm.goto(chosen);
        asm.place(other);
    }

    /// Does the same as [`FanoutProgram::test_datagram_v4`], for IPv6 packets without
    /// extension headers.
    fn test_datagram_v6(&self, asm: &mut Asm, base: u32, chosen: Label) {
        let Some((at, offset)) = self.datagrams else { return };
        let IpAddr::V6(address) = at.ip() else { return };
        let other = asm.label();
        asm.load_byte(base + 6);
        asm.jump_unless(Test::Equal(IPPROTO_UDP.cast_unsigned()), other);
        asm.load_half(base + 42);
        asm.jump_unless(Test::Equal(at.port().into()), other);
        if !address.is_unspecified() {
            for word in 0..4 {
                asm.load_word(base + 24 + 4 * word);
                let part = (address.to_bits() >> (96 - 32 * word)) as u32;
                asm.jump_unless(Test::Equal(part), other);
            }
        }
        asm.load_byte(base + 40 + UDP_HEADER + offset);
        asm.goto(chosen);
        asm.place(other);
    }
}

/// Emits A = exclusive or of the four words of the IPv6 address at `offset`.
fn fold(asm: &mut Asm, offset: u32) {
    asm.load_word(offset);
    for word in 1..4 {
        asm.x_from_a();
        asm.load_word(offset + 4 * word);
        asm.xor_x();
    }
}

/// Emits A = mix(A).
fn mix(asm: &mut Asm) {
    asm.multiply(OF_ADDRESS);
    asm.x_from_a();
    asm.shift_right(MIX);
    asm.xor_x();
}

/// Emits a binary search for the member of the share in A, which the program returns. `members[0]`
/// is the member of share `first`.
fn choose(asm: &mut Asm, members: &[u8], first: u32) {
    if members.iter().all(|member| *member == members[0]) {
        asm.keep(members[0].into());
        return;
    }
    let (low, high) = members.split_at(members.len() / 2);
    let middle = first + low.len() as u32;
    let upper = asm.label();
    asm.jump_if(Test::AtLeast(middle), upper);
    choose(asm, low, first);
    asm.place(upper);
    choose(asm, high, middle);
}
