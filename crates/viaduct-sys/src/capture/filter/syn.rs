//! Filter for incoming SYNs.

use std::net::IpAddr;

use libc::{ETH_P_IP, ETH_P_IPV6, IPPROTO_TCP, PACKET_OUTGOING, SKF_AD_PKTTYPE, SKF_AD_PROTOCOL};

use super::asm::{Asm, Label, Test};
use super::prefix::PrefixSet;
use super::share::Share;
use super::{BpfInsn, FilterError, MAX_INSNS};

/// Length of the IPv6 header. SYNs are assumed to have no extension headers.
pub(super) const IPV6_HEAD: u32 = 40;
/// Offsets of the flags and the destination port in a TCP header, 16 bits each.
const FLAGS: u32 = 12;
const PORT: u32 = 2;
const SYN: u32 = 0x02;
const SYN_ACK_RST_FIN: u32 = 0x17;
/// Offsets of the source and destination addresses in each IP header, in bytes.
const FROM_TO_V4: [u32; 2] = [12, 16];
const FROM_TO_V6: [u32; 2] = [8, 24];
/// Scratch cell for the offset of an address.
const AT: u32 = 0;

/// Filter for SYNs (without ACK) to some addresses and ports, on a socket whose packets begin at
/// the network header.
#[derive(Clone, Copy, Debug)]
pub struct SynFilter<'a> {
    /// Source prefixes; empty means all.
    pub sources: &'a [(IpAddr, u8)],
    /// Destination prefixes; empty means all.
    pub destinations: &'a [(IpAddr, u8)],
    /// Destination ports; empty means all.
    pub ports: &'a [u16],
    /// Restricts the SYNs to the share of one event loop.
    pub share: Option<Share>,
}

impl SynFilter<'_> {
    /// Builds the program for the kernel. Errors: a prefix length is out of range, or there are
    /// more prefixes than fit into a program.
    pub fn build(&self) -> Result<Vec<BpfInsn>, FilterError> {
        let sets = [PrefixSet::new(self.sources)?, PrefixSet::new(self.destinations)?];
        let program = self.assemble(&sets);
        let (insns, prefixes) = (program.len(), self.sources.len() + self.destinations.len());
        if insns > MAX_INSNS {
            let fit = prefixes * MAX_INSNS / insns;
            return Err(FilterError::TooLong { prefixes, insns, fit });
        }
        Ok(program)
    }

    /// Builds the program from the sets of sources and destinations.
    fn assemble(&self, sets: &[PrefixSet; 2]) -> Vec<BpfInsn> {
        let mut asm = Asm::default();
        let [v4, v6, yes, no] = [(); 4].map(|()| asm.label());
        asm.load_meta(SKF_AD_PKTTYPE);
        asm.jump_if(Test::Equal(PACKET_OUTGOING.into()), no);
        asm.load_meta(SKF_AD_PROTOCOL);
        asm.jump_if(Test::Equal(ETH_P_IP as u32), v4);
        asm.branch(Test::Equal(ETH_P_IPV6 as u32), v6, no);

        let any = [self.sources.is_empty(), self.destinations.is_empty()];
        asm.place(v4);
        for ((set, at), _) in sets.iter().zip(FROM_TO_V4).zip(any).filter(|(_, any)| !any) {
            let wanted = asm.label();
            asm.store(AT, at);
            asm.x_from(AT);
            set.test_v4(&mut asm, wanted, no);
            asm.place(wanted);
        }
        asm.load_byte(9);
        asm.jump_unless(Test::Equal(IPPROTO_TCP as u32), no);
        asm.load_half(6);
        // Only the first fragment has a TCP header.
        asm.jump_if(Test::AnyBit(0x1fff), no);
        asm.x_from_ipv4_header_length(0);
        asm.load_half_at_x(FLAGS);
        is_syn(&mut asm, no);
        if let Some(share) = self.share {
            asm.load_half_at_x(0);
            share.test(&mut asm, no);
        }
        asm.load_half_at_x(PORT);
        self.test_port(&mut asm, yes, no);

        asm.place(v6);
        for ((set, at), _) in sets.iter().zip(FROM_TO_V6).zip(any).filter(|(_, any)| !any) {
            let wanted = asm.label();
            asm.store(AT, at);
            asm.x_from(AT);
            set.test_v6(&mut asm, wanted, no);
            asm.place(wanted);
        }
        asm.load_byte(6);
        asm.jump_unless(Test::Equal(IPPROTO_TCP as u32), no);
        asm.load_half(IPV6_HEAD + FLAGS);
        is_syn(&mut asm, no);
        if let Some(share) = self.share {
            asm.load_half(IPV6_HEAD);
            share.test(&mut asm, no);
        }
        asm.load_half(IPV6_HEAD + PORT);
        self.test_port(&mut asm, yes, no);

        asm.place(yes);
        asm.keep(u32::MAX);
        asm.place(no);
        asm.keep(0);
        asm.finish()
    }

    fn test_port(&self, asm: &mut Asm, yes: Label, no: Label) {
        for &port in self.ports {
            asm.jump_if(Test::Equal(port.into()), yes);
        }
        asm.goto(if self.ports.is_empty() { yes } else { no });
    }
}

fn is_syn(asm: &mut Asm, no: Label) {
    asm.and(SYN_ACK_RST_FIN);
    asm.jump_unless(Test::Equal(SYN), no);
}

/// Builds the program that drops SYNs to a TCP socket. A listener with this filter accepts no new
/// connections, but handshakes in progress still complete. On a TCP socket, packets begin at the
/// TCP header.
pub fn no_syns() -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    let other = asm.label();
    asm.load_half(FLAGS);
    is_syn(&mut asm, other);
    asm.keep(0);
    asm.place(other);
    asm.keep(u32::MAX);
    asm.finish()
}
