//! Analysis of one capture: losses before and after the point of capture, according to TCP's
//! sequence numbers.
//!
//! A gap in the sequence numbers that is filled later shows a loss before the point of capture.
//! Data that is captured twice shows a loss after that point.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use viaduct_proto::repair::shadow::Fate;
use viaduct_proto::time::Instant;

use super::finding::Path;
use super::packet::{Data, Ends, Packet};
use super::sizes::{MAX_SEGMENTS, Sizes};
use crate::status::numbers::thousands;

/// Time within which data that fills a gap counts as reordered, not as lost.
const REORDERED: Duration = Duration::from_millis(8);
/// Time within which repeated data counts as captured twice, not as sent twice.
const CAPTURED_TWICE: Duration = Duration::from_millis(1);
/// Maximum distance from the highest sequence number, in segments: 47 MB of full-sized segments,
/// more than most windows. Data farther away belongs to another connection with the same ports.
const MAX_JUMP: u64 = 1 << 15;
/// Maximum number of reported paths; those with the most packets are reported.
const MAX_PATHS: usize = 8;

/// State of one direction of a connection.
#[derive(Default)]
struct Flow {
    /// Sequence number after the highest byte so far, relative to `first`.
    next: u64,
    /// Sequence number of the first byte.
    first: u32,
    /// Length of the longest segment so far.
    longest: u64,
    /// Index of the event of each segment of data, and the time at which the segment was last
    /// captured, by the start of the segment. For a segment in a gap, the time is that of the gap's
    /// detection.
    seen: BTreeMap<u64, (usize, Duration)>,
    /// End of each gap in the sequence numbers, or of the unfilled parts of a gap, by the start.
    gaps: BTreeMap<u64, u64>,
}

/// Time and fate of a packet that was captured, or skipped in a gap.
type Event = (Duration, Fate);

/// Returns the paths in a capture, and the round-trip time if it can be measured. Errors: the
/// capture has too many segments.
pub fn paths(packets: &[Packet]) -> Result<(Vec<Path>, Option<Duration>)> {
    let mut all: Vec<_> = events(packets, MAX_SEGMENTS)?.into_iter().collect();
    all.sort_unstable_by_key(|(hosts, events)| (std::cmp::Reverse(events.len()), *hosts));
    all.truncate(MAX_PATHS);
    let path = |((source, destination), events): ((IpAddr, IpAddr), Vec<Event>)| {
        let begun = events.first().map_or(Duration::ZERO, |(at, _)| *at);
        let at = |time: Duration| Instant::ZERO + time.saturating_sub(begun);
        let fates = events.into_iter().map(|(time, fate)| (at(time), fate)).collect();
        Path { name: format!("{source} to {destination}"), fates }
    };
    Ok((all.into_iter().map(path).collect(), rtt(packets)))
}

/// Returns the events between each two hosts. Errors: there are more than `max` events.
fn events(packets: &[Packet], max: usize) -> Result<HashMap<(IpAddr, IpAddr), Vec<Event>>> {
    let mut flows: HashMap<Ends, Flow> = HashMap::new();
    let mut paths: HashMap<(IpAddr, IpAddr), Vec<Event>> = HashMap::new();
    let sizes = Sizes::new(&[packets]);
    let mut total = 0;
    for packet in packets {
        let hosts = packet.ends.hosts();
        if packet.is_syn
            && let Some(flow) = flows.remove(&packet.ends)
            && let Some(path) = paths.get_mut(&hosts)
        {
            flow.close(path);
        }
        let Some(data) = packet.data else { continue };
        let path = paths.entry(hosts).or_default();
        let before = path.len();
        let new = || Flow { first: data.sequence, ..Flow::default() };
        let flow = flows.entry(packet.ends).or_insert_with(new);
        for piece in data.pieces(sizes.of(packet)) {
            flow.take(packet.at, piece, path);
        }
        total += path.len() - before;
        ensure!(
            total <= max,
            "the capture contains or skips more than {} TCP segments: a shorter one is required",
            thousands(max as u64)
        );
    }
    for (ends, flow) in &flows {
        if let Some(path) = paths.get_mut(&ends.hosts()) {
            flow.close(path);
        }
    }
    Ok(paths)
}

impl Flow {
    /// Handles the data of one segment.
    fn take(&mut self, at: Duration, data: Data, events: &mut Vec<Event>) {
        let length = u64::from(data.length);
        self.longest = self.longest.max(length);
        // The 32-bit sequence number is unwrapped to the value nearest to `next`.
        let distance = data.sequence.wrapping_sub(self.first).wrapping_sub(self.next as u32);
        let mut distance = i64::from(distance.cast_signed());
        if distance.unsigned_abs() > MAX_JUMP * self.longest {
            self.close(events);
            *self = Flow { first: data.sequence, longest: length, ..Flow::default() };
            distance = 0;
        }
        let Some(begin) = self.next.checked_add_signed(distance) else { return };
        let end = begin + length;
        if begin < self.next {
            self.retransmission(at, begin, end.min(self.next), events);
        }
        if end <= self.next {
            return;
        }
        if begin > self.next {
            self.gaps.insert(self.next, begin);
            for skipped in (self.next..begin).step_by(self.longest as usize) {
                self.seen.insert(skipped, (events.len(), at));
                events.push((at, Fate::Lost));
            }
        }
        self.seen.insert(begin.max(self.next), (events.len(), at));
        events.push((at, Fate::Arrived));
        self.next = end;
    }

    /// Handles data below the highest sequence number, which fills gaps or repeats earlier data.
    /// The fate of a segment depends on the data that contains its first byte.
    fn retransmission(&mut self, at: Duration, begin: u64, end: u64, events: &mut [Event]) {
        for (first, (event, seen)) in self.seen.range_mut(begin..end) {
            let age = at.saturating_sub(*seen);
            *seen = at;
            let Some((_, fate)) = events.get_mut(*event) else { continue };
            let gap = self.gaps.range(..=*first).next_back();
            if gap.is_some_and(|(_, end)| first < end) {
                if age < REORDERED {
                    *fate = Fate::Arrived;
                }
            } else if age >= CAPTURED_TWICE {
                // The data was sent twice: the first packet was lost after the point of capture.
                *fate = Fate::Lost;
            }
        }
        while let Some((&from, &until)) = self.gaps.range(..end).next_back()
            && until > begin
        {
            self.gaps.remove(&from);
            for (from, until) in [(from, begin), (end, until)] {
                if from < until {
                    self.gaps.insert(from, until);
                }
            }
        }
    }

    /// Ends the flow. Data that was never captured has taken another path, or is missing from the
    /// capture.
    fn close(&self, events: &mut [Event]) {
        for (begin, end) in &self.gaps {
            for (event, _) in self.seen.range(*begin..*end).map(|(_, seen)| *seen) {
                if let Some((_, fate)) = events.get_mut(event) {
                    *fate = Fate::Arrived;
                }
            }
        }
    }
}

/// Round-trip time: the shortest time between a SYN and its SYN-ACK, or the shortest time between a
/// SYN-ACK and its ACK, whichever is longer. One of the two hosts may be near the point of capture,
/// and the other host across the link.
fn rtt(packets: &[Packet]) -> Option<Duration> {
    let mut opened: HashMap<Ends, Duration> = HashMap::new();
    let mut answered = HashSet::new();
    let (mut near, mut far): (Vec<Duration>, Vec<Duration>) = Default::default();
    for packet in packets {
        let asked = opened.get(&packet.ends.back()).copied();
        let trip = asked.map(|asked| packet.at.saturating_sub(asked));
        if packet.is_syn {
            near.extend(trip);
            // The first SYN may have been lost: the answer belongs to the latest SYN.
            opened.insert(packet.ends, packet.at);
        } else if trip.is_some()
            && opened.contains_key(&packet.ends)
            && answered.insert(packet.ends)
        {
            far.extend(trip);
        }
    }
    near.into_iter().min().max(far.into_iter().min())
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::{segment, syn};
    use super::*;

    fn lost(packets: &[Packet]) -> Vec<usize> {
        lost_of(packets).1
    }

    /// Returns the number of fates, and the indexes of the losses.
    fn lost_of(packets: &[Packet]) -> (usize, Vec<usize>) {
        let (paths, _) = paths(packets).unwrap();
        let fates = paths[0].fates.iter().enumerate();
        let lost = fates.filter(|(_, (_, fate))| *fate == Fate::Lost).map(|(at, _)| at);
        (paths[0].fates.len(), lost.collect())
    }

    #[test]
    fn skipped_sequence_numbers_that_arrive_late_were_lost_before_the_capture() {
        let of = |millis, n: u32| {
            segment(millis, false, (u32::MAX - 4_000).wrapping_add(1_000 * n), 1_000, 60)
        };
        let there = (0..20u32).filter(|n| ![5, 6, 12].contains(n));
        let mut packets: Vec<_> = there.map(|n| of(n.into(), n)).collect();
        // One segment is reordered by 2 ms; two are retransmitted after a round trip.
        packets.insert(13, of(14, 12));
        packets.extend([of(100, 5), of(101, 6)]);
        assert_eq!(lost(&packets), [5, 6]);
    }

    #[test]
    fn segments_of_a_gap_that_arrive_in_reverse_order_are_not_lost() {
        let of = |millis, n: u32| segment(millis, false, 7 + 1_000 * n, 1_000, 64);
        let there = (0..20u32).filter(|n| ![5, 6, 7].contains(n));
        let mut packets: Vec<_> = there.map(|n| of(n.into(), n)).collect();
        packets.splice(6..6, [of(9, 7), of(10, 6), of(11, 5)]);
        assert_eq!(lost(&packets), Vec::<usize>::new());
        // If a reordered segment is retransmitted, it was lost after the point of capture.
        packets.push(of(110, 6));
        assert_eq!(lost(&packets), [6]);
    }

    #[test]
    fn repeated_data_was_lost_after_the_capture() {
        let of = |millis, n: u32| segment(millis, false, 7 + 1_000 * n, 1_000, 64);
        // On a short link the data is retransmitted after a few milliseconds.
        for (millis, n) in [(110, 3), (23, 19)] {
            let mut packets: Vec<_> = (0..20).map(|n| of(n.into(), n)).collect();
            packets.push(of(millis, n));
            assert_eq!(lost(&packets), [n as usize]);
        }
    }

    /// Returns ten segments of 1,000 bytes, starting at `sequence`.
    fn ten(sequence: u32) -> Vec<Packet> {
        (0..10u32).map(|n| segment(n.into(), false, sequence + 1_000 * n, 1_000, 64)).collect()
    }

    #[test]
    fn a_syn_or_a_far_sequence_number_begins_another_connection() {
        for (has_syn, second) in [(true, 1_500_000_000), (true, 90_000), (false, 1_500_000_000)] {
            let mut packets = ten(1_000);
            packets.extend(has_syn.then(|| syn(9, second - 1, 64)));
            packets.extend(ten(second));
            assert_eq!(lost_of(&packets), (20, Vec::new()), "SYN {has_syn}, {second}");
        }
        let mut packets = ten(1_000);
        packets.insert(5, segment(5, false, 1_600_000_000, 1_000, 64));
        assert_eq!(lost_of(&packets), (11, Vec::new()), "one false number");
    }

    #[test]
    fn merged_segments_are_split() {
        let merged = segment(0, false, 1_000, 14_480, 64);
        let again = segment(100, false, 1_000 + 2_896, 1_448, 64);
        assert_eq!(lost_of(&[syn(0, 999, 64), merged, again]), (10, vec![2]));
    }

    #[test]
    fn a_packet_that_is_captured_twice_is_not_lost() {
        let twice = |(millis, n): (u64, u32)| {
            let once = segment(millis, false, 7 + 1_000 * n, 1_000, 64);
            let mut again = once.clone();
            again.at += Duration::from_micros(50);
            [once, again]
        };
        // One packet is also reordered.
        let order = [(0, 0), (1, 2), (5, 1), (6, 3)];
        let packets: Vec<_> = order.into_iter().flat_map(twice).collect();
        assert_eq!(lost_of(&packets), (4, Vec::new()));
    }

    #[test]
    fn gaps_consist_of_segments_as_long_as_those_before_them() {
        let short = |millis, n: u32| segment(millis, false, 7 + 500 * n, 500, 64);
        let there = (0..10u32).filter(|n| ![5, 6, 7].contains(n));
        let begun: Vec<_> = there.map(|n| short(n.into(), n)).collect();
        for (millis, expected) in [(100, vec![5, 6, 7]), (10, vec![])] {
            let mut packets = begun.clone();
            packets.extend([5, 6, 7].map(|n| short(millis, n)));
            packets.push(segment(200, false, 7 + 5_000, 1_448, 64));
            assert_eq!(lost_of(&packets), (11, expected), "filled after {millis} ms");
        }
        // Short segments fill a gap that was counted in long segments.
        let mut packets = vec![segment(0, false, 7, 1_448, 64), segment(1, false, 2_955, 500, 64)];
        packets.extend([0, 1, 2].map(|n| segment(2, false, 1_455 + 500 * n, 500, 64)));
        assert_eq!(lost_of(&packets), (4, Vec::new()));
    }

    #[test]
    fn data_that_is_retransmitted_with_new_data_leaves_no_gap() {
        let mut packets = ten(1_000);
        packets.push(segment(10, false, 11_000, 500, 64));
        packets.push(segment(100, false, 11_000, 1_448, 64));
        packets.push(segment(101, false, 12_448, 1_000, 64));
        assert_eq!(lost_of(&packets), (13, vec![10]));
    }

    #[test]
    fn data_that_never_arrives_is_not_lost() {
        let mut packets = ten(1_000);
        packets.remove(5);
        assert_eq!(lost_of(&packets), (10, Vec::new()));
        packets.push(syn(11, 89_999, 64));
        packets.extend(ten(90_000));
        assert_eq!(lost_of(&packets), (20, Vec::new()), "another connection");
    }

    #[test]
    fn false_sequence_numbers_do_not_fill_the_memory() {
        let packets = [0, 20_000].map(|n| segment(n.into(), false, 1_000 * n, 1_000, 64));
        assert_eq!(events(&packets, 20_001).unwrap().len(), 1);
        let text = events(&packets, 20_000).unwrap_err().to_string();
        assert!(text.contains("more than 20,000 TCP segments"), "{text}");
    }

    #[test]
    fn the_round_trip_begins_with_the_latest_syn() {
        let answer = |packet: Packet| Packet { ends: packet.ends.back(), ..packet };
        let mut packets = vec![syn(0, 999, 64), syn(1_000, 999, 64), answer(syn(1_100, 4_999, 60))];
        packets.push(segment(1_101, false, 1_000, 0, 64));
        assert_eq!(rtt(&packets), Some(Duration::from_millis(100)));
        // Another connection with the same ports.
        packets.extend([syn(9_000, 7, 64), answer(syn(9_100, 9, 60))]);
        assert_eq!(rtt(&packets), Some(Duration::from_millis(100)));
    }
}
