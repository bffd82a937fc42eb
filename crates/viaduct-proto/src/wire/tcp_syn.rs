//! TCP SYNs: the connection that they open, and their MSS option. Routers on a path may lower
//! the MSS (MSS clamping), and so change the packet.

use super::tcp_option;
use super::transport::{self, TCP_MIN};

const SYN: u8 = 0x02;
/// Option kind: maximum segment size.
const MSS: u8 = 2;
/// Length of the option's value in bytes.
const MSS_BYTES: usize = 2;

/// Offsets within a packet that holds a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSyn {
    ipv6: bool,
    /// Offset of the TCP header.
    tcp: usize,
    /// Offset of the MSS option's value.
    mss: Option<usize>,
}

/// Key of a SYN that is independent of its options: addresses, ports, sequence number and flags.
pub type Coarse = [u8; 32 + 4 + 4 + 1];

impl TcpSyn {
    /// Parses a complete IP packet; `None` if it is neither a SYN nor a SYN-ACK, or is a fragment.
    pub fn parse(packet: &[u8]) -> Option<TcpSyn> {
        let (tcp, header) = transport::tcp_header(packet).filter(|(_, of)| of[13] & SYN != 0)?;
        let mss =
            tcp_option::find(&header[TCP_MIN..], MSS).filter(|value| value.len() == MSS_BYTES);
        let mss = mss.map(|value| tcp + TCP_MIN + value.start);
        Some(TcpSyn { ipv6: packet[0] >> 4 == 6, tcp, mss })
    }

    /// Returns whether the packet is IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Value of the MSS option.
    pub fn mss(&self, packet: &[u8]) -> Option<u16> {
        let at = self.mss?;
        Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]))
    }

    /// Key of the connection, see [`Coarse`].
    pub fn coarse(&self, packet: &[u8]) -> Coarse {
        let mut coarse = [0; size_of::<Coarse>()];
        let addresses = if self.ipv6 { &packet[8..40] } else { &packet[12..20] };
        coarse[..addresses.len()].copy_from_slice(addresses);
        coarse[32..40].copy_from_slice(&packet[self.tcp..self.tcp + 8]);
        coarse[40] = packet[self.tcp + 13];
        coarse
    }

    /// Lowers the MSS to `most` if it is greater, and updates the checksum.
    pub fn lower(&self, packet: &mut [u8], most: u16) {
        if self.mss(packet).is_some_and(|mss| mss > most) {
            self.set_mss(packet, most);
        }
    }

    /// Sets the MSS, if the option is present, and updates the checksum (RFC 1624).
    pub fn set_mss(&self, packet: &mut [u8], mss: u16) {
        let Some(at) = self.mss.filter(|at| at + 2 <= packet.len()) else { return };
        tcp_option::set(packet, self.tcp, at, &mss.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ip::internet_checksum;
    use crate::wire::transport::TCP;
    use proptest::prelude::*;

    fn syn(options: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 1, 2, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1];
        packet.extend([0x30, 0x39, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0, SYN, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(options);
        packet[32] = (((TCP_MIN + options.len()) / 4) as u8) << 4;
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        let sum = sum(&packet);
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Checksum of the TCP part including its checksum field, with the pseudo header; 0 if it is
    /// correct.
    fn sum(packet: &[u8]) -> u16 {
        let len = (packet.len() - 20) as u16;
        let pseudo = [&packet[12..20], &[0, 6], &len.to_be_bytes()].concat();
        internet_checksum(&[&pseudo, &packet[20..]].concat())
    }

    #[test]
    fn the_mss_is_found_and_lowered_wherever_it_stands() {
        for options in [
            &[2, 4, 5, 180][..],
            &[1, 2, 4, 5, 180, 1, 1, 0],
            &[1, 1, 4, 2, 1, 2, 4, 5, 180, 3, 3, 7],
        ] {
            let mut packet = syn(options);
            let found = TcpSyn::parse(&packet).unwrap();
            assert_eq!((found.mss(&packet), sum(&packet)), (Some(1460), 0));
            let before = packet.clone();
            found.lower(&mut packet, 2000);
            assert_eq!(packet, before, "never raised");
            found.lower(&mut packet, 1000);
            assert_eq!((found.mss(&packet), sum(&packet)), (Some(1000), 0), "{options:?}");
            assert_eq!(found.coarse(&packet), found.coarse(&before));
        }
    }

    #[test]
    fn packets_without_syn_and_those_without_mss_are_distinguished() {
        let mut packet = syn(&[1, 1, 1, 1]);
        assert_eq!(TcpSyn::parse(&packet).unwrap().mss(&packet), None);
        packet[33] = 0x10;
        assert_eq!(TcpSyn::parse(&packet), None, "not a SYN");
        packet[33] = SYN;
        packet[6] = 0x20;
        assert_eq!(TcpSyn::parse(&packet), None, "a fragment");
    }

    proptest! {
        #[test]
        fn parsing_never_panics(mut packet in prop::collection::vec(any::<u8>(), 0..90), v6: bool) {
            if packet.len() > 33 {
                packet[0] = if v6 { 0x60 } else { 0x45 };
                packet[if v6 { 6 } else { 9 }] = TCP;
            }
            if let Some(syn) = TcpSyn::parse(&packet) {
                syn.coarse(&packet);
                syn.lower(&mut packet, 500);
                prop_assert!(syn.mss(&packet).is_none_or(|mss| mss <= 500));
            }
        }
    }
}
