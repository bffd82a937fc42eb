//! Lengths of TCP segments on the link: interfaces split large segments (TSO), and merge small ones
//! (GRO).

use std::collections::HashMap;

use anyhow::{Result, ensure};

use super::capture::MAX_PACKETS;
use super::packet::{Data, Ends, Packet};
use crate::status::numbers::thousands;

/// Maximum number of packets of a capture after its TCP segments are split, and of the segments
/// that the capture contains or skips. Lengths and sequence numbers of a forged capture may be
/// false.
pub const MAX_SEGMENTS: usize = 2 * MAX_PACKETS;
/// Possible MTUs of flows whose SYNs were not captured: Ethernet, jumbo frames, PPPoE, IP in IP,
/// WireGuard, other tunnels, and the minimum of IPv6.
const MTUS: [u32; 7] = [1_500, 9_000, 1_492, 1_480, 1_420, 1_400, 1_280];
/// Minimum of an announced MSS, as in Linux: a forged, lower MSS would split a segment into
/// thousands.
const MIN_MSS: u32 = 48;
/// Length of the timestamp option, with padding, in each segment of a flow that uses timestamps.
const TIMESTAMPS_LEN: u32 = 12;

/// Maximum number of bytes of data per segment of each flow on the link, at least one.
pub struct Sizes(HashMap<Ends, u32>);

/// Captured segments of a flow.
struct Segments {
    /// Minimum over the captures of the length of the longest segment.
    lowest: u32,
    /// Length of the longest segment in all captures.
    highest: u32,
    has_timestamps: bool,
}

impl Sizes {
    /// Determines the sizes from all packets of the captures.
    pub fn new(captures: &[&[Packet]]) -> Sizes {
        let mut announced = HashMap::<Ends, u32>::new();
        let mut flows = HashMap::<Ends, Segments>::new();
        for packets in captures {
            let mut longest = HashMap::<Ends, Data>::new();
            for packet in *packets {
                if let Some(mss) = packet.mss {
                    // Both ends of a connection use the lower MSS.
                    for ends in [packet.ends, packet.ends.back()] {
                        let of = announced.entry(ends).or_insert(u32::MAX);
                        *of = u32::from(mss).min(*of);
                    }
                }
                if let Some(data) = packet.data {
                    let of = longest.entry(packet.ends).or_insert(data);
                    of.length = of.length.max(data.length);
                    of.has_timestamps |= data.has_timestamps;
                }
            }
            for (ends, Data { length, has_timestamps, .. }) in longest {
                let first = Segments { lowest: length, highest: length, has_timestamps };
                let of = flows.entry(ends).or_insert(first);
                of.lowest = of.lowest.min(length);
                of.highest = of.highest.max(length);
                of.has_timestamps |= has_timestamps;
            }
        }
        let size = |(ends, segments): (Ends, Segments)| {
            (ends, segments.size(ends, announced.get(&ends).copied()))
        };
        Sizes(flows.into_iter().map(size).collect())
    }

    /// Maximum number of bytes of data per segment of the packet's flow.
    pub fn of(&self, packet: &Packet) -> u32 {
        self.0.get(&packet.ends).copied().unwrap_or(u32::MAX)
    }

    /// Checks that the packets of a capture are split into at most [`MAX_SEGMENTS`].
    pub fn check(&self, packets: &[Packet]) -> Result<()> {
        let pieces = |packet: &Packet| {
            packet.data.map_or(1, |data| data.length.div_ceil(self.of(packet)) as usize)
        };
        ensure!(
            packets.iter().map(pieces).sum::<usize>() <= MAX_SEGMENTS,
            "a capture has more than {} packets after its TCP segments are split: shorter captures \
             are required",
            thousands(MAX_SEGMENTS as u64)
        );
        Ok(())
    }
}

impl Segments {
    /// Maximum number of bytes of data per segment of this flow, whose SYNs announced `mss`.
    fn size(&self, ends: Ends, mss: Option<u32>) -> u32 {
        let options = if self.has_timestamps { TIMESTAMPS_LEN } else { 0 };
        let headers = if ends.source.0.is_ipv6() { 60 } else { 40 };
        let full = |mtu: u32| mtu - headers - options;
        let limit = match mss {
            Some(mss) => mss.max(MIN_MSS) - options,
            // The longest segment is a full segment, or several merged full segments.
            None => {
                let divides = |size: &u32| self.lowest.is_multiple_of(*size);
                MTUS.into_iter().map(full).find(divides).unwrap_or(full(MTUS[0]))
            }
        };
        // If one capture has merged segments, the other capture may show the size of full segments.
        // If the segments of the other capture are much shorter, none of them is full.
        if self.highest > limit && self.lowest > limit / 2 { limit.min(self.lowest) } else { limit }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::packet::tests::segment;
    use super::*;

    /// Returns the size that results from one segment with timestamps in each capture.
    fn size(source: &str, captured: &[usize]) -> u32 {
        let source: IpAddr = source.parse().unwrap();
        let packet = |length: &usize| {
            let packet = segment(0, false, 1_000, *length, 64);
            Packet { ends: Ends { source: (source, 9), ..packet.ends }, ..packet }
        };
        let packets: Vec<Packet> = captured.iter().map(packet).collect();
        let captures: Vec<&[Packet]> = packets.iter().map(std::slice::from_ref).collect();
        Sizes::new(&captures).of(&packets[0])
    }

    #[test]
    fn without_a_syn_the_size_is_that_of_a_common_mtu() {
        assert_eq!(size("10.1.0.1", &[1_448]), 1_448);
        assert_eq!(size("10.1.0.1", &[14_480 + 312]), 1_448);
        assert_eq!(size("10.1.0.1", &[10 * 1_368]), 1_368, "WireGuard");
        assert_eq!(size("10.1.0.1", &[8_948]), 8_948, "jumbo frames");
        assert_eq!(size("10.1.0.1", &[7 * 8_948]), 8_948, "merged jumbo frames");
        assert_eq!(size("fd00::1", &[14_280]), 1_428);
        assert_eq!(size("fd00::1", &[14_280 + 312]), 1_428);
    }

    #[test]
    fn the_capture_without_merged_segments_shows_the_size() {
        assert_eq!(size("10.1.0.1", &[14_000, 1_400]), 1_400);
        assert_eq!(size("10.1.0.1", &[8_948, 62_636]), 8_948);
        assert_eq!(size("10.1.0.1", &[14_480, 200]), 1_448, "no full segment arrived");
        assert_eq!(size("10.1.0.1", &[1_448, 1_000]), 1_448, "no merged segment");
    }
}
