//! Prefixes of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the number of bits of an address.
pub(crate) fn full_length(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Returns the first address of the prefix of this length that contains `address`.
pub(crate) fn network(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & !host).into()
        }
        IpAddr::V6(v6) => {
            let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & !host).into()
        }
    }
}

/// Returns whether two addresses are of the same family and share their first `bits` bits.
pub(crate) fn share(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    network(one, bits) == network(other, bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bits_decide() {
        let same = |one: &str, other: &str, bits| {
            share(one.parse().unwrap(), other.parse().unwrap(), bits)
        };
        assert!(same("10.2.0.1", "10.3.0.1", 15) && !same("10.2.0.1", "10.3.0.1", 16));
        assert!(same("10.2.0.1", "99.0.0.1", 0) && !same("0.0.0.0", "::", 0));
        assert!(same("fd02::1", "fd02::1", 128) && !same("fd02::1", "fd02::2", 128));
    }
}
