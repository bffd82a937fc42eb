//! Comparison of captures of both ends of a link: packets that were sent from one end, but did not
//! arrive at the other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use viaduct_proto::repair::align::Named;
use viaduct_proto::repair::control;
use viaduct_proto::repair::shadow::Fate;
use viaduct_proto::time::Instant;

use super::finding::Path;
use super::packet::Packet;
use super::sizes::Sizes;

/// Number of packets that are classified together, as in a manifest.
const CHUNK: usize = 64;
/// Time of the first packet on the computed clock. The margin above 0 is for differences between
/// the captures' clocks.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);

/// Comparison of two captures.
pub struct Pair {
    /// Packets as they cross the link: first those that the near end has captured, then the others.
    pieces: Vec<Piece>,
    /// Source addresses at the near end.
    from_near: HashSet<IpAddr>,
    /// True if it is known which addresses are at which end.
    ends_known: bool,
    /// Number of packets that are in both captures.
    pub matched: usize,
}

/// Packet as it crosses the link, with its times at the near end and at the far end; a time is
/// `None` if the packet was not captured there.
#[derive(Clone, Copy, Debug)]
struct Piece {
    source: IpAddr,
    near: Option<Duration>,
    far: Option<Duration>,
}

impl Pair {
    /// Compares two captures. `prefixes` are the addresses at the near end, required if hop limits
    /// do not show them. Errors: a capture has too many segments.
    pub fn new(near: &[Packet], far: &[Packet], prefixes: &[IpNet]) -> Result<Pair> {
        let sizes = Sizes::new(&[near, far]);
        sizes.check(near)?;
        sizes.check(far)?;
        let mut open: HashMap<u64, VecDeque<(Duration, u8)>> = HashMap::new();
        for packet in far {
            for key in packet.keys(sizes.of(packet)) {
                open.entry(key).or_default().push_back((packet.at, packet.ttl));
            }
        }
        let (mut pieces, mut votes) = (Vec::new(), HashMap::<IpAddr, i64>::new());
        let mut matched = 0;
        for packet in near {
            let source = packet.ends.source.0;
            for key in packet.keys(sizes.of(packet)) {
                let arrival = open.get_mut(&key).and_then(VecDeque::pop_front);
                if let Some((_, ttl)) = arrival {
                    matched += 1;
                    *votes.entry(source).or_default() += i64::from(packet.ttl) - i64::from(ttl);
                }
                let far = arrival.map(|(at, _)| at);
                pieces.push(Piece { source, near: Some(packet.at), far });
            }
        }
        // The remaining packets were sent from the far end, and were lost on their way to the near
        // end.
        for packet in far {
            for key in packet.keys(sizes.of(packet)) {
                let Some(left) = open.get_mut(&key) else { continue };
                if left.front().is_some_and(|(at, _)| *at == packet.at) {
                    left.pop_front();
                    let source = packet.ends.source.0;
                    pieces.push(Piece { source, near: None, far: Some(packet.at) });
                }
            }
        }
        let ends_known = !prefixes.is_empty() || votes.values().any(|vote| *vote != 0);
        let sources = pieces.iter().map(|piece| piece.source).collect::<HashSet<_>>();
        let from_near = sources.into_iter().filter(|ip| {
            if prefixes.is_empty() {
                votes.get(ip).is_some_and(|vote| *vote > 0)
            } else {
                prefixes.iter().any(|net| net.contains(ip))
            }
        });
        let from_near = from_near.collect();
        Ok(Pair { pieces, from_near, ends_known, matched })
    }

    /// Returns both paths, and the round-trip time of the link. Errors: the captures do not show
    /// from which end each packet was sent.
    pub fn paths(&self) -> Result<(Vec<Path>, Option<Duration>)> {
        ensure!(
            self.ends_known,
            "hop limits do not show which packets were sent from this end: give its addresses, \
             such as --near 10.1.0.0/16"
        );
        let (out, there) = self.path(true);
        let (back, here) = self.path(false);
        // Both delays include the offset of the clocks, with opposite signs.
        let rtt = there.zip(here).map(|(there, here)| there + here);
        let rtt = rtt.and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos);
        Ok((vec![out, back], rtt))
    }

    /// Returns the path in one direction, and its minimum delay in nanoseconds, which includes the
    /// offset of the clocks.
    fn path(&self, from_near: bool) -> (Path, Option<i128>) {
        let of = |piece: &Piece| {
            let (sent, came) =
                if from_near { (piece.near, piece.far) } else { (piece.far, piece.near) };
            (self.from_near.contains(&piece.source) == from_near).then_some((sent?, came))
        };
        let mut crossed: Vec<_> = self.pieces.iter().filter_map(of).collect();
        crossed.sort_by_key(|(sent, _)| *sent);
        // Packets before the first arrival and after the last one are ignored: the other capture
        // may not have been running at that time.
        let first = crossed.iter().position(|(_, came)| came.is_some()).unwrap_or(crossed.len());
        let last = crossed.iter().rposition(|(_, came)| came.is_some()).map_or(0, |at| at + 1);
        let crossed = crossed.get(first..last).unwrap_or_default();
        let delay = |(sent, came): &(Duration, Option<Duration>)| {
            came.map(|came| came.as_nanos().cast_signed() - sent.as_nanos().cast_signed())
        };
        let least = crossed.iter().filter_map(delay).min();
        let name = if from_near { "this end to the other" } else { "the other end to this one" };
        (Path { name: name.to_owned(), fates: fates(crossed) }, least)
    }
}

/// Returns the fates of packets. The queueing delay of neighbouring packets classifies the missing
/// ones.
fn fates(crossed: &[(Duration, Option<Duration>)]) -> Vec<(Instant, Fate)> {
    let Some(&(begun, _)) = crossed.first() else { return Vec::new() };
    let arrived = crossed.iter().filter_map(|(_, came)| *came).min().unwrap_or(begun);
    let at = |time: Duration, since: Duration| {
        Instant::ZERO + CLOCK_MARGIN + time.checked_sub(since).unwrap_or_default()
    };
    let (mut path, mut fates) = (control::path::Path::default(), Vec::new());
    for (first, chunk) in (1..).step_by(CHUNK).zip(crossed.chunks(CHUNK)) {
        let micros =
            |(sent, _): &(Duration, _)| at(*sent, begun).since(Instant::ZERO).as_micros() as u32;
        let sent: Vec<u32> = chunk.iter().map(micros).collect();
        let named: Vec<_> = (first..)
            .zip(chunk)
            .map(|(seq, (_, came))| match came {
                Some(_) => (seq, Named::Arrived(seq)),
                None => (seq, Named::Missing),
            })
            .collect();
        let came = |number: u64| {
            let index = usize::try_from(number - first).ok()?;
            Some(at(chunk.get(index)?.1?, arrived))
        };
        let mut congested = HashSet::new();
        let now = chunk.last().map_or(begun, |(sent, _)| *sent);
        path.named(at(now, begun), (first, &sent), &named, came, |seq, is_congested| {
            if is_congested {
                congested.insert(seq);
            }
        });
        fates.extend(named.iter().zip(chunk).map(|((seq, named), (sent, _))| {
            let fate = match named {
                Named::Arrived(_) => Fate::Arrived,
                Named::Missing if congested.contains(seq) => Fate::Congested,
                Named::Missing => Fate::Lost,
            };
            (at(*sent, begun), fate)
        }));
    }
    fates
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::{plain, segment, syn};
    use super::*;

    #[test]
    fn packets_that_were_sent_and_did_not_arrive_were_lost_in_both_directions() {
        let sent = |n: u64, back: bool| segment(10 * n, back, 1_000 * n as u32, 1_000, 64);
        let came = |n: u64, back: bool| Packet {
            // The other clock is an hour ahead, and the one-way delay is 50 ms.
            at: Duration::from_millis(10 * n + 50),
            ttl: 62,
            ..sent(n, back)
        };
        let hour = Duration::from_secs(3_600);
        let ahead = |packet: Packet| Packet { at: packet.at + hour, ..packet };
        let mut near: Vec<Packet> = (0..100).map(|n| sent(n, false)).collect();
        near.extend((0..100).filter(|n| n % 10 != 5).map(|n| came(n, true)));
        let mut far: Vec<Packet> = (0..100).map(|n| ahead(sent(n, true))).collect();
        far.extend((0..100).filter(|n| n % 20 != 7).map(|n| ahead(came(n, false))));
        let pair = Pair::new(&near, &far, &[]).unwrap();
        let (paths, rtt) = pair.paths().unwrap();
        let lost = |path: &Path| path.fates.iter().filter(|(_, of)| *of == Fate::Lost).count();
        assert_eq!((lost(&paths[0]), lost(&paths[1])), (5, 10));
        assert_eq!(rtt, Some(Duration::from_millis(100)));
    }

    #[test]
    fn with_equal_hop_limits_the_near_end_must_be_given() {
        let packets: Vec<Packet> = (0..9).map(|n| segment(n, false, n as u32, 9, 64)).collect();
        let pair = Pair::new(&packets, &packets, &[]).unwrap();
        assert!(pair.paths().unwrap_err().to_string().contains("--near"));
        let near = ["10.1.0.0/16".parse().unwrap()];
        let (paths, _) = Pair::new(&packets, &packets, &near).unwrap().paths().unwrap();
        assert_eq!((paths[0].fates.len(), paths[1].fates.len()), (9, 0));
    }

    #[test]
    fn segments_without_timestamps_have_the_full_mss() {
        let merged = (0..3).map(|n| plain(n, 1_000 + 2_920 * n as u32, 2_920, 64));
        let split = (0..6u64).map(|n| plain(50 + n, 1_000 + 1_460 * n as u32, 1_460, 62));
        let near: Vec<Packet> = std::iter::once(syn(0, 999, 64)).chain(merged).collect();
        let far: Vec<Packet> = std::iter::once(syn(50, 999, 62)).chain(split).collect();
        // The SYN is captured, or is missing.
        for (skipped, packets) in [(0, 7), (1, 6)] {
            let pair = Pair::new(&near[skipped..], &far[skipped..], &[]).unwrap();
            let (paths, _) = pair.paths().unwrap();
            let arrived = paths[0].fates.iter().filter(|(_, fate)| *fate == Fate::Arrived);
            assert_eq!(
                (pair.matched, paths[0].fates.len(), arrived.count()),
                (packets, packets, packets)
            );
        }
    }

    #[test]
    fn a_false_mss_and_false_lengths_do_not_fill_the_memory() {
        let syn = Packet { mss: Some(1), ..syn(0, 999, 64) };
        let long = vec![segment(1, false, 1_000, 65_000, 64); 23_000];
        let text = Pair::new(&[vec![syn], long].concat(), &[], &[]).err().unwrap().to_string();
        assert!(text.contains("more than 40,000,000 packets"), "{text}");
    }
}
