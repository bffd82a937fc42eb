//! Analysis of one capture: losses before and after the point of capture, as TCP shows them.
//!
//! A gap in the sequence numbers that is filled later shows a loss before the point of capture.
//! Data that is seen twice shows a loss after it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use viaduct_proto::repair::shadow::Fate;
use viaduct_proto::time::Instant;

use super::finding::Path;
use super::packet::{Data, Ends, Packet};

/// Time within which the data that fills a gap counts as reordered, and not as lost.
const REORDERED: Duration = Duration::from_millis(8);
/// Maximum number of reported paths; those with the most packets are reported.
const MAX_PATHS: usize = 8;

/// State of one direction of a connection.
#[derive(Default)]
struct Flow {
    /// Sequence number after the highest byte seen, relative to `first`.
    next: u64,
    /// Sequence number of the first byte seen.
    first: u32,
    /// Length of the longest segment of data so far.
    size: u64,
    /// Index of the event of each segment of data, by the start of the segment.
    seen: BTreeMap<u64, usize>,
    /// Gaps, or what is left of them, by their start.
    gaps: BTreeMap<u64, Gap>,
}

/// Rest of a gap in the sequence numbers.
#[derive(Clone, Copy)]
struct Gap {
    /// End of the rest.
    end: u64,
    /// Start of the whole gap.
    begin: u64,
    /// Time of the packet that followed the whole gap.
    since: Duration,
    /// Index of the event of its first segment.
    first: usize,
    /// Assumed length of its segments.
    size: u64,
}

/// Time and fate of a packet that was captured or skipped.
type Event = (Duration, Fate);

/// Paths in a capture, and the round-trip time if it can be measured.
pub fn paths(packets: &[Packet]) -> (Vec<Path>, Option<Duration>) {
    let mut flows: HashMap<Ends, Flow> = HashMap::new();
    let mut paths: HashMap<(IpAddr, IpAddr), Vec<Event>> = HashMap::new();
    for packet in packets {
        let Some(data) = packet.data else { continue };
        let path = paths.entry((packet.ends.source.0, packet.ends.destination.0)).or_default();
        flows.entry(packet.ends).or_default().take(packet.at, data, path);
    }
    let mut all: Vec<_> = paths.into_iter().collect();
    all.sort_unstable_by_key(|(ends, events)| (std::cmp::Reverse(events.len()), *ends));
    all.truncate(MAX_PATHS);
    let path = |((source, destination), events): ((IpAddr, IpAddr), Vec<Event>)| {
        let begun = events.first().map_or(Duration::ZERO, |(at, _)| *at);
        let at = |time: Duration| Instant::ZERO + time.saturating_sub(begun);
        let fates = events.into_iter().map(|(time, fate)| (at(time), fate)).collect();
        Path { name: format!("{source} to {destination}"), fates }
    };
    (all.into_iter().map(path).collect(), rtt(packets))
}

impl Flow {
    fn take(&mut self, at: Duration, data: Data, events: &mut Vec<Event>) {
        if self.size == 0 {
            self.first = data.sequence;
        }
        let length = u64::from(data.length);
        self.size = self.size.max(length);
        // Unwrapped sequence number: the one that is nearest to `next`.
        let distance = data.sequence.wrapping_sub(self.first).wrapping_sub(self.next as u32);
        let Some(begin) = self.next.checked_add_signed(distance.cast_signed().into()) else {
            return;
        };
        if begin < self.next {
            return self.retransmission(at, begin, length, events);
        }
        if begin > self.next {
            let many = (begin - self.next).div_ceil(self.size);
            let (first, size) = (events.len(), self.size);
            self.gaps
                .insert(self.next, Gap { end: begin, begin: self.next, since: at, first, size });
            for n in 0..many {
                self.seen.insert(self.next + n * self.size, events.len());
                events.push((at, Fate::Lost));
            }
        }
        self.seen.insert(begin, events.len());
        events.push((at, Fate::Arrived));
        self.next = begin + length;
    }

    /// Handles data below the highest sequence number: it fills a gap, or is seen a second time.
    fn retransmission(&mut self, at: Duration, begin: u64, length: u64, events: &mut [Event]) {
        let gap = self.gaps.range(..=begin).next_back().map(|(from, gap)| (*from, *gap));
        if let Some((from, gap)) = gap
            && begin < gap.end
        {
            if at.saturating_sub(gap.since) < REORDERED {
                let n = ((begin - gap.begin) / gap.size) as usize;
                if let Some((_, fate)) = events.get_mut(gap.first + n) {
                    *fate = Fate::Arrived;
                }
            }
            self.gaps.remove(&from);
            for rest in [from..begin, begin + length..gap.end] {
                if !rest.is_empty() {
                    self.gaps.insert(rest.start, Gap { end: rest.end, ..gap });
                }
            }
            return;
        }
        // The data was sent twice: the first packet was lost after the point of capture.
        for (_, event) in self.seen.range(begin..begin + length) {
            if let Some((_, fate)) = events.get_mut(*event) {
                *fate = Fate::Lost;
            }
        }
    }
}

/// Round-trip time: the shortest time between a SYN and its SYN-ACK, or the shortest time between a
/// SYN-ACK and its ACK, whichever is longer. One of the two hosts may be near the point of capture,
/// and the other one across the link.
fn rtt(packets: &[Packet]) -> Option<Duration> {
    let mut opened: HashMap<Ends, Duration> = HashMap::new();
    let mut trips = Vec::new();
    for packet in packets.iter().filter(|packet| packet.mss.is_some()) {
        if let Some(asked) = opened.get(&packet.ends.back()) {
            trips.push(packet.at.saturating_sub(*asked));
        }
        opened.entry(packet.ends).or_insert(packet.at);
    }
    let mut answered: HashMap<Ends, Duration> = HashMap::new();
    for packet in packets {
        if packet.mss.is_some() {
            continue;
        }
        if let Some(asked) = opened.get(&packet.ends.back())
            && !answered.contains_key(&packet.ends)
            && opened.contains_key(&packet.ends)
        {
            answered.insert(packet.ends, packet.at.saturating_sub(*asked));
        }
    }
    let near = trips.iter().min().copied();
    let far = answered.values().min().copied();
    near.max(far)
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::segment;
    use super::*;

    fn lost(packets: &[Packet]) -> Vec<usize> {
        let (paths, _) = paths(packets);
        let fates = paths[0].fates.iter().enumerate();
        fates.filter(|(_, (_, fate))| *fate == Fate::Lost).map(|(at, _)| at).collect()
    }

    #[test]
    fn skipped_numbers_that_come_late_were_lost_before_the_capture() {
        let of = |millis, n: u32| {
            segment(millis, false, (u32::MAX - 4_000).wrapping_add(1_000 * n), 1_000, 60)
        };
        let there = (0..20u32).filter(|n| ![5, 6, 12].contains(n));
        let mut packets: Vec<_> = there.map(|n| of(n.into(), n)).collect();
        // Two segments are out of order by 2 ms; two are sent again after a round trip.
        packets.insert(13, of(14, 12));
        packets.extend([of(100, 5), of(101, 6)]);
        assert_eq!(lost(&packets), [5, 6]);
    }

    #[test]
    fn segments_of_a_gap_that_come_in_reverse_order_are_not_lost() {
        let of = |millis, n: u32| segment(millis, false, 7 + 1_000 * n, 1_000, 64);
        let there = (0..20u32).filter(|n| ![5, 6, 7].contains(n));
        let mut packets: Vec<_> = there.map(|n| of(n.into(), n)).collect();
        packets.splice(6..6, [of(9, 7), of(10, 6), of(11, 5)]);
        assert_eq!(lost(&packets), Vec::<usize>::new());
        // A segment that was out of order is lost behind the capture if it comes again.
        packets.push(of(110, 6));
        assert_eq!(lost(&packets), [6]);
    }

    #[test]
    fn repeated_data_was_lost_behind_the_capture() {
        let of = |millis, n: u32| segment(millis, false, 7 + 1_000 * n, 1_000, 64);
        let mut packets: Vec<_> = (0..20).map(|n| of(n.into(), n)).collect();
        packets.push(of(110, 3));
        assert_eq!(lost(&packets), [3]);
    }
}
