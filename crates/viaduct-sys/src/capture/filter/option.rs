//! Filter for packets with the option mark: TCP packets whose first option has the mark, and ICMP
//! errors about them.

use libc::{
    ETH_P_IP, ETH_P_IPV6, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, PACKET_OTHERHOST,
    PACKET_OUTGOING, SKF_AD_PKTTYPE, SKF_AD_PROTOCOL,
};

use super::asm::{Asm, Label, Test};
use super::syn::IPV6_HEAD;
use super::{BpfInsn, FilterError, MAX_INSNS, Share, WHOLE};

// Offsets of the ports, the flags and the first option in a TCP header.
const SOURCE: u32 = 0;
const DESTINATION: u32 = 2;
const FLAGS: u32 = 12;
const OPTION: u32 = 20;
const RST: u32 = 0x04;
const SYN_ACK: u32 = 0x12;
// ICMP type and code of "packet too big", in the high and the low byte.
const TOO_BIG_V4: u32 = 0x0304;
const TOO_BIG_V6: u32 = 0x0200;
// ICMP type of "destination unreachable".
const UNREACHABLE_V4: u32 = 3;
const UNREACHABLE_V6: u32 = 1;
/// Bytes of the ICMP header.
const ICMP_HEAD: u32 = 8;
/// Length of an IPv4 header without options, as quoted in an ICMP message.
const QUOTED_V4: u32 = 20;

/// Max ports that are tested one by one. A longer list is tested as one range.
const MAX_LISTED_PORTS: usize = 64;

/// Option mark: the first bytes of a TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OptionMark {
    /// Kind, length, and the two bytes of the ExID, in network byte order.
    pub word: u32,
    /// Byte after the ExID.
    pub byte: u8,
}

/// Filter for the tap of one end, on a socket whose packets begin at the network header.
///
/// ```text
///   outgoing, or for another host                                   -> no
///   unfragmented TCP to one of the ports, marked                    -> yes
///   the same without the mark: SYN-ACK or reset, if `plain`         -> yes
///   ICMP "too big" about TCP from one of the ports                  -> yes
///   ICMP "unreachable" about the same, if `plain`                   -> yes
///   any other packet                                                -> no
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OptionFilter<'a> {
    /// Mark of incoming packets.
    pub mark: OptionMark,
    /// This end's ports; if empty, nothing is accepted. If there are more than 64, all ports from
    /// the lowest to the highest are accepted, including ports that are not listed, as a BPF
    /// program has no room for thousands of ports.
    pub ports: &'a [u16],
    /// True if unmarked SYN-ACKs and resets, which come from kernels that do not know the mark,
    /// pass too.
    pub plain: bool,
    /// Share of this tap, if several taps have the same port: each tap receives only packets of the
    /// clients in its share. ICMP errors are delivered to all taps.
    pub share: Option<Share>,
}

impl OptionFilter<'_> {
    /// Builds the program for the kernel. Errors: the program is longer than the kernel accepts.
    pub fn build(&self) -> Result<Vec<BpfInsn>, FilterError> {
        let program = self.assemble();
        let (insns, prefixes) = (program.len(), self.ports.len());
        if insns > MAX_INSNS {
            return Err(FilterError::TooLong {
                prefixes,
                insns,
                fit: prefixes * MAX_INSNS / insns,
            });
        }
        Ok(program)
    }

    fn assemble(&self) -> Vec<BpfInsn> {
        let mut asm = Asm::default();
        let [v4, v6, tcp_v4, tcp_v6, yes, no] = [(); 6].map(|()| asm.label());
        asm.load_meta(SKF_AD_PKTTYPE);
        asm.jump_if(Test::Equal(PACKET_OUTGOING.into()), no);
        asm.jump_if(Test::Equal(PACKET_OTHERHOST.into()), no);
        asm.load_meta(SKF_AD_PROTOCOL);
        asm.jump_if(Test::Equal(ETH_P_IP as u32), v4);
        asm.branch(Test::Equal(ETH_P_IPV6 as u32), v6, no);

        asm.place(v4);
        asm.load_half(6);
        // Refuses all fragments: even the first fragment is not a complete message.
        asm.jump_if(Test::AnyBit(0x3fff), no);
        asm.x_from_ipv4_header_length(0);
        asm.load_byte(9);
        asm.jump_if(Test::Equal(IPPROTO_TCP as u32), tcp_v4);
        asm.jump_unless(Test::Equal(IPPROTO_ICMP as u32), no);
        asm.load_half_at_x(0);
        self.test_icmp(&mut asm, TOO_BIG_V4, UNREACHABLE_V4, no);
        asm.load_half_at_x(ICMP_HEAD + QUOTED_V4 + SOURCE);
        self.test_port(&mut asm, yes, no);
        asm.place(tcp_v4);
        self.test_tcp(&mut asm, Asm::load_half_at_x, Asm::load_word_at_x, 0, [yes, no]);

        asm.place(v6);
        asm.load_byte(6);
        asm.jump_if(Test::Equal(IPPROTO_TCP as u32), tcp_v6);
        asm.jump_unless(Test::Equal(IPPROTO_ICMPV6 as u32), no);
        asm.load_half(IPV6_HEAD);
        self.test_icmp(&mut asm, TOO_BIG_V6, UNREACHABLE_V6, no);
        asm.load_half(IPV6_HEAD + ICMP_HEAD + IPV6_HEAD + SOURCE);
        self.test_port(&mut asm, yes, no);
        asm.place(tcp_v6);
        self.test_tcp(&mut asm, Asm::load_half, Asm::load_word, IPV6_HEAD, [yes, no]);

        asm.place(yes);
        asm.keep(WHOLE);
        asm.place(no);
        asm.keep(0);
        asm.finish()
    }

    /// Emits a jump to `no` unless the type and code in A belong to an error that is to pass.
    fn test_icmp(&self, asm: &mut Asm, too_big: u32, unreachable: u32, no: Label) {
        if !self.plain {
            return asm.jump_unless(Test::Equal(too_big), no);
        }
        let known = asm.label();
        asm.jump_if(Test::Equal(too_big), known);
        asm.shift_right(8);
        asm.jump_unless(Test::Equal(unreachable), no);
        asm.place(known);
    }

    /// Emits the test of the TCP header at `base`; a load beyond the packet's end rejects
    /// the packet.
    fn test_tcp(
        &self,
        asm: &mut Asm,
        half: fn(&mut Asm, u32),
        word: fn(&mut Asm, u32),
        base: u32,
        [yes, no]: [Label; 2],
    ) {
        let [to_us, marked, plain] = [(); 3].map(|()| asm.label());
        if let Some(share) = self.share {
            half(asm, base + SOURCE);
            share.test(asm, no);
        }
        half(asm, base + DESTINATION);
        self.test_port(asm, to_us, no);
        asm.place(to_us);
        if self.plain {
            // Tested before the option, which may be missing.
            half(asm, base + FLAGS);
            asm.jump_if(Test::AnyBit(RST), yes);
            // The option is loaded only if the TCP header has at least 32 bytes: a load beyond the
            // packet's end would reject the packet.
            asm.and(0xff00 | SYN_ACK);
            asm.branch(Test::AtLeast(0x8000), marked, plain);
            asm.place(plain);
            asm.and(SYN_ACK);
            asm.branch(Test::Equal(SYN_ACK), yes, no);
        }
        asm.place(marked);
        let other = asm.label();
        word(asm, base + OPTION);
        asm.jump_unless(Test::Equal(self.mark.word), other);
        half(asm, base + OPTION + 4);
        asm.shift_right(8);
        asm.branch(Test::Equal(self.mark.byte.into()), yes, no);
        asm.place(other);
        if self.plain {
            half(asm, base + FLAGS);
            asm.and(SYN_ACK);
            asm.branch(Test::Equal(SYN_ACK), yes, no);
        }
        asm.goto(no);
    }

    fn test_port(&self, asm: &mut Asm, yes: Label, no: Label) {
        let (least, greatest) = (self.ports.iter().min(), self.ports.iter().max());
        if let (Some(&least), Some(&greatest)) = (least, greatest)
            && self.ports.len() > MAX_LISTED_PORTS
        {
            asm.jump_unless(Test::AtLeast(least.into()), no);
            return asm.branch(Test::Above(greatest.into()), no, yes);
        }
        for &port in self.ports {
            asm.jump_if(Test::Equal(port.into()), yes);
        }
        asm.goto(no);
    }
}
