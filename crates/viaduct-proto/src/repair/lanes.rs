//! Lanes: the packets between two sites, divided by their addresses.
//!
//! Each lane of a peer has its own session, packet numbers, window and reports, so that several
//! workers can each own some lanes and share no state. The two gateways agree on the number of
//! lanes: the larger of the two numbers that they want. A packet's lane follows from its addresses,
//! and both directions of a conversation have the same lane.
//!
//! ```text
//!   packet ─▶ symmetric hash of its two addresses ─▶ lane = hash mod number of lanes
//!
//!   this gateway wants 4 lanes, the peer 8:  8 are in force
//!     lane   0 1 2 3 4 5 6 7
//!     share  0 1 2 3 0 1 2 3   of this gateway's workers: lane mod 4
//! ```
//!
//! Between gateways with two paths ([`super::liveness`]) a packet's lane is instead the path that
//! it has taken, so that losses are measured for each path.
//!
//! A packet's share is its lane modulo the number of lanes that this gateway wants. Numbers of
//! lanes are powers of two, so the share does not depend on the peer. The kernel can therefore
//! distribute packets to workers before it is known which peer they belong to.

use std::net::IpAddr;

use crate::wire::ip::Header;

/// Maximum number of lanes between two gateways.
pub const MAX_LANES: usize = 64;

/// Odd multipliers of the hash. The first one is 2^32 divided by the golden ratio (Knuth, 6.4).
const OF_ADDRESS: u32 = 0x9e37_79b1;
const OF_SUM: u32 = 0x85eb_ca77;
/// Shift that mixes high bits of a product into its low bits.
const MIX: u32 = 15;
/// Bit of a handshake that is set if lanes are paths.
const BY_PATH: u8 = 0x80;
/// Bits of the product that are dropped: the hash has one of [`MAX_LANES`] values.
const DROPPED: u32 = 32 - MAX_LANES.trailing_zeros();

/// Number of lanes: a power of two, at most [`MAX_LANES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneCount(u8);

impl LaneCount {
    /// A single lane.
    pub const ONE: LaneCount = LaneCount(1);

    /// Lanes between two gateways with two paths.
    pub(super) const OF_PATHS: LaneCount = LaneCount(2);

    /// Creates a number of lanes; `None` unless `count` is a power of two, and at most
    /// [`MAX_LANES`].
    pub fn new(count: usize) -> Option<LaneCount> {
        let is_valid = count.is_power_of_two() && count <= MAX_LANES;
        u8::try_from(count).ok().filter(|_| is_valid).map(LaneCount)
    }

    /// Returns the number of lanes.
    pub fn get(self) -> usize {
        self.0.into()
    }

    /// Index of the last lane, as sent in handshakes.
    pub fn last(self) -> u8 {
        self.0 - 1
    }

    /// Number of lanes of which `last` is the last one.
    fn from_last(last: u8) -> Option<LaneCount> {
        LaneCount::new(usize::from(last) + 1)
    }

    /// Lane of the packets with this hash.
    pub fn lane(self, hash: u8) -> u8 {
        hash & self.last()
    }
}

/// Lane of a handshake, and the number of lanes that its sender wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOffer {
    /// Index of the lane.
    pub lane: u8,
    /// Number of lanes that the sender wants.
    pub wanted: LaneCount,
    /// True if lanes are paths: a packet's lane is the path that it has taken, not a hash of its
    /// addresses.
    pub by_path: bool,
}

impl LaneOffer {
    /// Offer of a gateway with a single lane.
    pub const SINGLE: LaneOffer = LaneOffer { lane: 0, wanted: LaneCount::ONE, by_path: false };

    /// Number of lanes and their kind, as sent in handshakes.
    pub(super) fn division(self) -> u8 {
        self.wanted.last() | if self.by_path { BY_PATH } else { 0 }
    }

    /// Offer with this number and kind of lanes; `None` if the number is invalid.
    pub(super) fn parse(lane: u8, division: u8) -> Option<LaneOffer> {
        let wanted = LaneCount::from_last(division & !BY_PATH)?;
        Some(LaneOffer { lane, wanted, by_path: division & BY_PATH != 0 })
    }
}

/// Set of shares, such as those whose lanes a worker owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares(u64);

impl Shares {
    /// All shares of a gateway that wants this number of lanes.
    pub fn all(count: LaneCount) -> Shares {
        Shares(u64::MAX >> (MAX_LANES - count.get()))
    }

    /// Adds a share, which is below [`MAX_LANES`].
    pub fn insert(&mut self, share: u8) {
        self.0 |= 1 << (share & LaneCount(MAX_LANES as u8).last());
    }

    /// Returns whether the set has this share.
    pub fn contains(self, share: u8) -> bool {
        self.0 >> (share & LaneCount(MAX_LANES as u8).last()) & 1 == 1
    }

    /// Number of shares in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<u8> for Shares {
    fn from_iter<I: IntoIterator<Item = u8>>(shares: I) -> Shares {
        let mut set = Shares::default();
        shares.into_iter().for_each(|share| set.insert(share));
        set
    }
}

/// Hash of a packet's two addresses, below [`MAX_LANES`]: the same in both directions. It uses only
/// operations that classic BPF has.
pub fn lane_hash(header: &Header) -> u8 {
    let sum = mixed(header.source).wrapping_add(mixed(header.destination));
    (sum.wrapping_mul(OF_SUM) >> DROPPED) as u8
}

/// Address, mixed into 32 bits: sums of plain addresses would often be equal.
fn mixed(address: IpAddr) -> u32 {
    let folded = match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let words = address.octets();
            let words = words.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word));
            words.fold(0, |folded, word| folded ^ word)
        }
    };
    let product = folded.wrapping_mul(OF_ADDRESS);
    product ^ product >> MIX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(source: &str, destination: &str) -> u8 {
        hash_of(source.parse().unwrap(), destination.parse().unwrap())
    }

    fn hash_of(source: IpAddr, destination: IpAddr) -> u8 {
        lane_hash(&Header { source, destination, protocol: 6, header_len: 20, total_len: 40 })
    }

    /// Test vectors, which `viaduct-sys` also checks against the kernel's BPF program.
    #[test]
    fn both_gateways_and_the_kernel_compute_the_same_hash() {
        for (source, destination, expected) in [
            ("10.1.0.1", "10.2.0.1", GOLDEN[0]),
            ("10.1.0.2", "10.2.0.1", GOLDEN[1]),
            ("192.0.2.7", "203.0.113.250", GOLDEN[2]),
            ("255.255.255.255", "0.0.0.0", GOLDEN[3]),
            ("fd00:1::5", "fd00:2::5", GOLDEN[4]),
            ("2001:db8::1", "2001:db8:ffff:1:2:3:4:5", GOLDEN[5]),
        ] {
            assert_eq!(hash(source, destination), expected, "{source} {destination}");
            assert_eq!(hash(destination, source), expected, "{source} {destination}");
        }
    }

    const GOLDEN: [u8; 6] = [35, 7, 49, 61, 54, 5];

    #[test]
    fn hosts_spread_over_the_lanes() {
        let v4 = |site: u8, host: u32| {
            IpAddr::from((0x0a00_0000 | u32::from(site) << 16 | host).to_be_bytes())
        };
        let v6 = |site: u8, host: u32| {
            IpAddr::from(
                (0xfd00_u128 << 112 | u128::from(site) << 80 | u128::from(host)).to_be_bytes(),
            )
        };
        let sixteen = LaneCount::new(16).unwrap();
        // Numbers of the hosts at both sites.
        type Pair = fn(u32) -> (u32, u32);
        let pairs: [(&str, Pair); 4] = [
            ("the same number", |n| (n, n)),
            ("one server", |n| (n, 1)),
            ("numbers of one sum", |n| (n, 2_000 - n)),
            ("a square", |n| (n % 32, n / 32)),
        ];
        for (what, pair) in pairs {
            for address in [&v4 as &dyn Fn(u8, u32) -> IpAddr, &v6] {
                let mut lanes = [0_u32; 16];
                for n in 1..=1_024 {
                    let (a, b) = pair(n);
                    let hash = hash_of(address(1, a), address(2, b));
                    lanes[usize::from(sixteen.lane(hash))] += 1;
                }
                let most = lanes.iter().max().unwrap();
                assert!(*most <= 2 * 1_024 / 16, "{what}: {lanes:?}");
            }
        }
    }

    #[test]
    fn numbers_of_lanes_are_powers_of_two() {
        let valid: Vec<_> = (0..300).filter(|count| LaneCount::new(*count).is_some()).collect();
        assert_eq!(valid, [1, 2, 4, 8, 16, 32, 64]);
        for count in valid.into_iter().filter_map(LaneCount::new) {
            assert_eq!(LaneCount::from_last(count.last()), Some(count));
            assert_eq!(Shares::all(count).len(), count.get());
        }
        assert_eq!(LaneCount::from_last(u8::MAX), None);
    }

    proptest! {
        #[test]
        fn a_packets_share_does_not_depend_on_the_number_of_lanes_in_force(
            source: u32, destination: u32, own in 0..7_u32, more in 0..7_u32,
        ) {
            let [source, destination] = [source, destination].map(u32::to_be_bytes);
            let hash = hash_of(source.into(), destination.into());
            let own = LaneCount::new(1 << own).unwrap();
            let in_force = own.max(LaneCount::new(1 << more).unwrap());
            prop_assert!(usize::from(hash) < MAX_LANES);
            prop_assert_eq!(own.lane(in_force.lane(hash)), own.lane(hash));
        }
    }
}
