//! Per-flow state, which determines how the packets of a flow are protected.

use std::collections::HashMap;

use super::flow::Flow;
use super::reaction::Reaction;
use crate::time::{Duration, Instant};
use crate::wire::tcp_sack::Acknowledged;
use crate::wire::transport::Segment;

/// Maximum number of remembered flows. Further flows count as bulk.
const MAX_FLOWS: usize = 4_096;
/// Time after which an idle flow may be forgotten.
const IDLE: Duration = Duration::from_secs(2);
/// Rate below which a flow is light, in bytes a second: 200 kb/s.
const LIGHT: f64 = 25_000.0;
/// The same for flows of small packets, such as voice, games or telemetry: 8 Mb/s.
const LIGHT_SMALL: f64 = 1_000_000.0;
/// Maximum mean packet length of a flow of small packets, in bytes.
const SMALL: f64 = 256.0;
/// Weight of the newest packet in the moving average of packet lengths.
const WEIGHT: f64 = 0.0625;
/// Maximum credit of a flow (see [`Rate::credit`]), in seconds.
const MAX_CREDIT: f64 = 1.0;
/// Credit at which a flow becomes light again, in seconds: as much as the flow gains while its
/// sender waits for a retransmission timeout.
const AGAIN: f64 = 0.2;

#[derive(Debug, Default)]
pub(super) struct Flows {
    rates: HashMap<Flow, Rate>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Rate {
    last: Instant,
    /// Bytes that the flow may still send before it counts as bulk, as seconds at the maximum rate
    /// of a light flow.
    credit: f64,
    /// Mean length of the flow's packets, in bytes.
    mean: f64,
    is_light: bool,
    /// Reaction of the flow's sender to losses, if the flow is TCP.
    reaction: Option<Box<Reaction>>,
}

impl Rate {
    fn new(now: Instant, len: usize) -> Self {
        let mean = len as f64;
        Rate { last: now, credit: MAX_CREDIT, mean, is_light: true, reaction: None }
    }

    /// Counts a packet; returns whether its flow is light.
    fn count(&mut self, now: Instant, len: usize) -> bool {
        let len = len as f64;
        self.mean += WEIGHT * (len - self.mean);
        let rate = if self.mean <= SMALL { LIGHT_SMALL } else { LIGHT };
        let passed = now.since(std::mem::replace(&mut self.last, now)).as_secs_f64();
        self.credit = (self.credit + passed).min(MAX_CREDIT);
        self.is_light = self.credit >= if self.is_light { len / rate } else { AGAIN };
        self.credit = (self.credit - len / rate).max(0.0);
        self.is_light
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Flow that sends little.
    Light,
    /// Flow that sends much and, as far as known, slows down on losses.
    Bulk,
    /// Flow that sends much and does not slow down on losses.
    Insensitive,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) flow: Flow,
    pub(super) len: usize,
    /// TCP header of the packet, if it has one.
    pub(super) segment: Option<&'a Segment>,
}

impl Flows {
    /// Counts a packet over a path of the given round-trip time; returns the kind of its flow.
    pub(super) fn count(&mut self, now: Instant, of: Sending<'_>, rtt: Duration) -> Kind {
        let Sending { flow, len, segment } = of;
        if self.rates.len() >= MAX_FLOWS && !self.rates.contains_key(&flow) {
            // The search for idle flows takes time, so it is not repeated for each packet.
            if self.swept.is_some_and(|at| now.since(at) < IDLE / 2) {
                return Kind::Bulk;
            }
            self.swept = Some(now);
            self.rates.retain(|_, rate| now.since(rate.last) < IDLE);
            if self.rates.len() >= MAX_FLOWS {
                return Kind::Bulk;
            }
        }
        let rate = self.rates.entry(flow).or_insert_with(|| Rate::new(now, len));
        let is_light = rate.count(now, len);
        if is_light && rate.reaction.is_none() {
            return Kind::Light;
        }
        let Some(segment) = segment else { return Kind::Bulk };
        let reaction = || Box::new(Reaction::new(now, segment));
        let reaction = rate.reaction.get_or_insert_with(reaction);
        reaction.sends(now, segment, rtt);
        match reaction.is_left_alone() {
            _ if is_light => Kind::Light,
            true => Kind::Insensitive,
            false => Kind::Bulk,
        }
    }

    /// Handles an acknowledgement to the sender of `flow`.
    pub(super) fn hear(&mut self, now: Instant, flow: &Flow, ack: Acknowledged, rtt: Duration) {
        let reaction = self.rates.get_mut(flow).and_then(|rate| rate.reaction.as_mut());
        if let Some(reaction) = reaction {
            reaction.hears(now, ack, rtt);
        }
    }

    pub(super) fn memory(&self) -> usize {
        let reactions = self.rates.values().filter(|rate| rate.reaction.is_some()).count();
        self.rates.capacity() * size_of::<(Flow, Rate)>() + reactions * size_of::<Reaction>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn flow(port: u16) -> Flow {
        let ip = IpAddr::from([10, 0, 0, 1]);
        Flow { protocol: 17, source: (ip, port), destination: (ip, 1) }
    }

    fn is_light(flows: &mut Flows, at: Instant, port: u16, len: usize) -> bool {
        let sending = Sending { flow: flow(port), len, segment: None };
        flows.count(at, sending, Duration::from_millis(100)) == Kind::Light
    }

    /// Sends `pace` packets a second of `len` bytes for 3 s; returns whether the flow is light at
    /// the last packet.
    fn stream(flows: &mut Flows, begun: u64, pace: u64, len: usize) -> bool {
        let at = |n: u64| Instant::ZERO + Duration::from_micros(begun + n * 1_000_000 / pace);
        (0..3 * pace).map(|n| is_light(flows, at(n), 7, len)).last().unwrap()
    }

    #[test]
    fn light_flows_are_detected_by_rate_and_packet_length() {
        let mut flows = Flows::default();
        assert!(stream(&mut flows, 0, 50, 400), "160 kb/s");
        assert!(!stream(&mut flows, 10_000_000, 100, 400), "320 kb/s");
        assert!(stream(&mut flows, 20_000_000, 5_000, 84), "3.4 Mb/s of small packets");
        assert!(!stream(&mut flows, 30_000_000, 20_000, 84), "13 Mb/s of small packets");
        assert!(stream(&mut flows, 40_000_000, 1, 1_500), "the flow is sparse again");
        assert!(!stream(&mut flows, 50_000_000, 1_000, 1_200), "bulk");
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        assert!(!is_light(&mut flows, at(53_100), 7, 1_200), "after 100 ms");
        assert!(is_light(&mut flows, at(53_400), 7, 1_200), "after a retransmission timeout");
    }

    #[test]
    fn the_number_of_remembered_flows_is_bounded() {
        let mut flows = Flows::default();
        let fits = |flows: &mut Flows, at, ports: std::ops::Range<u16>| {
            ports.filter(|&port| is_light(flows, at, port, 100)).count()
        };
        assert_eq!(fits(&mut flows, Instant::ZERO, 0..10_000), MAX_FLOWS);
        let later = Instant::ZERO + Duration::from_secs(5);
        assert_eq!(fits(&mut flows, later, 0..10_000), MAX_FLOWS);
    }
}
