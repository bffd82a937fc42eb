//! Internet checksum (RFC 1071) of transport segments, eight bytes at a time.

use std::net::IpAddr;

/// Checksum of `segment`, whose checksum field is zero, between these addresses. If the field is
/// filled in, the result is 0 for a correct checksum.
pub(crate) fn transport(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let mut sum = u64::from(protocol) + segment.len() as u64;
    for ip in [source, destination] {
        sum += match ip {
            IpAddr::V4(ip) => folded(&ip.octets()),
            IpAddr::V6(ip) => folded(&ip.octets()),
        };
    }
    !fold(sum + folded(segment))
}

/// Sum of the pseudo header for `length` bytes; `addresses` are source and destination,
/// concatenated. A device that computes the rest of the checksum expects this sum in the checksum
/// field.
pub(crate) fn pseudo(addresses: &[u8], protocol: u8, length: usize) -> u16 {
    fold(u64::from(protocol) + length as u64 + folded(addresses))
}

/// Sum of the 16-bit words, folded to 16 bits so that several sums can be added.
fn folded(bytes: &[u8]) -> u64 {
    fold(words(bytes)).into()
}

/// Ones' complement sum of 64-bit words. Folded to 16 bits, it equals the sum of the 16-bit words,
/// as each carry is added at the low end.
fn words(bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    let mut sum = 0_u64;
    for chunk in &mut chunks {
        let word = u64::from_be_bytes(chunk.try_into().expect("chunks of eight"));
        let (more, over) = sum.overflowing_add(word);
        sum = more + u64::from(over);
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    let (more, over) = sum.overflowing_add(u64::from_be_bytes(last));
    more + u64::from(over)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::ip::internet_checksum;

    proptest! {
        #[test]
        fn the_checksum_equals_that_of_a_plain_sum(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            v6: bool,
        ) {
            let [from, to]: [IpAddr; 2] = match v6 {
                true => ["fd00::1", "fd00:ffff::2"].map(|ip| ip.parse().unwrap()),
                false => ["10.0.0.1", "255.255.1.2"].map(|ip| ip.parse().unwrap()),
            };
            let mut all = Vec::new();
            for ip in [from, to] {
                match ip {
                    IpAddr::V4(ip) => all.extend(ip.octets()),
                    IpAddr::V6(ip) => all.extend(ip.octets()),
                }
            }
            all.extend((bytes.len() as u32).to_be_bytes());
            all.extend([0, 0, 0, 6]);
            all.extend(&bytes);
            // The two algorithms may represent zero differently. This does not occur here, as the
            // pseudo header is not all zero.
            prop_assert_eq!(transport(from, to, 6, &bytes), internet_checksum(&all));
        }
    }
}
