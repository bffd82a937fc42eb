//! One capture: what TCP shows of what was lost before it or behind it.
//!
//! Data that skips numbers which come later shows a loss on the way to where it was captured; data
//! that comes twice shows one on the way from there.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use viaduct_proto::repair::shadow::Fate;
use viaduct_proto::time::Instant;

use super::finding::Path;
use super::packet::{Data, Ends, Packet};

/// Numbers that come later by less were out of order, and not lost.
const REORDERED: Duration = Duration::from_millis(8);
/// Ways between two hosts that are told of, those with most packets.
const MAX_PATHS: usize = 8;

/// What is known of the data of one direction of a connection.
#[derive(Default)]
struct Flow {
    /// Number after the last byte seen, counted from the first byte.
    next: u64,
    first: u32,
    /// Largest segment.
    size: u64,
    /// Begin of each piece of data, and which event it is.
    seen: BTreeMap<u64, usize>,
    /// Begin of data that was skipped: its end, when, and its first event.
    holes: BTreeMap<u64, (u64, Duration, usize)>,
}

/// A packet, or one that was skipped.
type Event = (Duration, Fate);

/// The ways that there are, and the round-trip time if it shows.
pub fn paths(packets: &[Packet]) -> (Vec<Path>, Option<Duration>) {
    let mut flows: HashMap<Ends, Flow> = HashMap::new();
    let mut paths: HashMap<(IpAddr, IpAddr), Vec<Event>> = HashMap::new();
    for packet in packets {
        let Some(data) = packet.data else { continue };
        let path = paths.entry((packet.ends.source.0, packet.ends.destination.0)).or_default();
        flows.entry(packet.ends).or_default().take(packet.at, data, path);
    }
    let mut all: Vec<_> = paths.into_iter().collect();
    all.sort_by_key(|(ends, events)| (std::cmp::Reverse(events.len()), *ends));
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
        // The number that is nearest to the next one.
        let distance = data.sequence.wrapping_sub(self.first).wrapping_sub(self.next as u32);
        let Some(begin) = self.next.checked_add_signed(distance.cast_signed().into()) else {
            return;
        };
        if begin < self.next {
            return self.again(at, begin, length, events);
        }
        if begin > self.next {
            let many = (begin - self.next).div_ceil(self.size);
            self.holes.insert(self.next, (begin, at, events.len()));
            for n in 0..many {
                self.seen.insert(self.next + n * self.size, events.len());
                events.push((at, Fate::Lost));
            }
        }
        self.seen.insert(begin, events.len());
        events.push((at, Fate::Arrived));
        self.next = begin + length;
    }

    /// Data below what was seen: it fills a hole, or was seen before.
    fn again(&mut self, at: Duration, begin: u64, length: u64, events: &mut [Event]) {
        let hole = self.holes.range(..=begin).next_back().map(|(from, hole)| (*from, *hole));
        if let Some((from, (end, since, first))) = hole
            && begin < end
        {
            if at.saturating_sub(since) < REORDERED {
                let n = ((begin - from) / self.size) as usize;
                if let Some((_, fate)) = events.get_mut(first + n) {
                    *fate = Fate::Arrived;
                }
            }
            if begin + length >= end {
                self.holes.remove(&from);
            }
            return;
        }
        // It left twice: the first one was lost further on.
        for (_, event) in self.seen.range(begin..begin + length) {
            if let Some((_, fate)) = events.get_mut(*event) {
                *fate = Fate::Lost;
            }
        }
    }
}

/// The round trip between SYN and the answer, or between that and its answer, whichever is longer:
/// one of the two hosts may be near.
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
        // Out of order by 2 ms; sent again after a round trip.
        packets.insert(13, of(14, 12));
        packets.extend([of(100, 5), of(101, 6)]);
        assert_eq!(lost(&packets), [5, 6]);
    }

    #[test]
    fn data_that_comes_twice_was_lost_behind_the_capture() {
        let of = |millis, n: u32| segment(millis, false, 7 + 1_000 * n, 1_000, 64);
        let mut packets: Vec<_> = (0..20).map(|n| of(n.into(), n)).collect();
        packets.push(of(110, 3));
        assert_eq!(lost(&packets), [3]);
    }
}
