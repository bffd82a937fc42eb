//! Round trips from this node and from the hops to servers, by the servers' networks. The number of
//! networks is bounded: those that have been unused for the longest time are forgotten first.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::time::{Duration, Instant};

/// Time after which a round trip counts as unknown.
const MAX_AGE: Duration = Duration::from_secs(3_600);
/// Weight of a new round trip in the average.
const WEIGHT: f64 = 0.25;

/// Network of a server: /24, or /48 for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix(IpNet);

impl Prefix {
    /// Network of `server`.
    pub fn of(server: IpAddr) -> Prefix {
        Prefix(match server.to_canonical() {
            IpAddr::V4(ip) => Ipv4Net::new_assert(ip, 24).trunc().into(),
            IpAddr::V6(ip) => Ipv6Net::new_assert(ip, 48).trunc().into(),
        })
    }

    /// Returns the network.
    pub fn network(self) -> IpNet {
        self.0
    }
}

/// Round trips to one network, by node.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(Vec<(usize, f64, Instant)>);

impl Known {
    /// Round trip from `node`, in milliseconds; `None` if unknown.
    pub(super) fn rtt_ms(&self, now: Instant, node: usize) -> Option<f64> {
        let known = self.0.iter().find(|(of, ..)| *of == node);
        known.filter(|(.., at)| now.since(*at) < MAX_AGE).map(|(_, rtt_ms, _)| *rtt_ms)
    }

    fn add(&mut self, now: Instant, node: usize, rtt_ms: f64) {
        match self.0.iter_mut().find(|(of, ..)| *of == node) {
            Some((_, average, at)) => {
                let is_old = now.since(*at) >= MAX_AGE;
                *average = if is_old { rtt_ms } else { *average + WEIGHT * (rtt_ms - *average) };
                *at = now;
            }
            None => self.0.push((node, rtt_ms, now)),
        }
    }
}

/// Networks of servers, each with a state `S`.
#[derive(Debug)]
pub(super) struct Servers<S> {
    /// Maximum number of networks in each of the two generations.
    max: usize,
    /// Networks used since the generations last changed.
    young: HashMap<Prefix, (S, Known)>,
    /// Networks last used in the previous generation; dropped at the next change.
    old: HashMap<Prefix, (S, Known)>,
}

impl<S: Default> Servers<S> {
    /// Returns an empty set of at most `max` networks.
    pub(super) fn new(max: usize) -> Servers<S> {
        Servers { max: (max / 2).max(1), young: HashMap::new(), old: HashMap::new() }
    }

    /// State of a network, and its round trips.
    pub(super) fn get(&mut self, prefix: Prefix) -> (&mut S, &Known) {
        let (state, known) = self.entry(prefix);
        (state, known)
    }

    /// Round trips to a network, if it is known. Does not count as a use of the network.
    pub(super) fn known(&self, prefix: Prefix) -> Option<&Known> {
        let entry = self.young.get(&prefix).or_else(|| self.old.get(&prefix));
        entry.map(|(_, known)| known)
    }

    /// All networks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Prefix, &S, &Known)> {
        let all = self.young.iter().chain(&self.old);
        all.map(|(prefix, (state, known))| (*prefix, state, known))
    }

    /// All networks, and their states.
    pub(super) fn states(&mut self) -> impl Iterator<Item = (Prefix, &mut S)> {
        let all = self.young.iter_mut().chain(&mut self.old);
        all.map(|(prefix, (state, _))| (*prefix, state))
    }

    /// Number of networks.
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Adds a round trip, in milliseconds, from `node` to a server of `prefix`; ignored unless it
    /// is positive.
    pub(super) fn measured(&mut self, now: Instant, node: usize, prefix: Prefix, rtt_ms: f64) {
        if rtt_ms.is_finite() && rtt_ms > 0.0 {
            self.entry(prefix).1.add(now, node, rtt_ms);
        }
    }

    /// Forgets all states, and the round trips from hops, because the hops' numbers have changed.
    pub(super) fn forget_hops(&mut self) {
        for (state, known) in self.young.values_mut().chain(self.old.values_mut()) {
            *state = S::default();
            known.0.retain(|(node, ..)| *node == 0);
        }
    }

    fn entry(&mut self, prefix: Prefix) -> &mut (S, Known) {
        if !self.young.contains_key(&prefix) {
            let kept = self.old.remove(&prefix);
            if self.young.len() >= self.max {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(prefix, kept.unwrap_or_default());
        }
        self.young.entry(prefix).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn prefix(number: u32) -> Prefix {
        Prefix::of(IpAddr::from((0x0a00_0001 + (number << 8)).to_be_bytes()))
    }

    #[test]
    fn servers_of_one_network_share_a_round_trip() {
        let of = |text: &str| Prefix::of(text.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("192.0.2.200"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("2001:db8:1::1"), of("2001:db8:2::1"));
    }

    #[test]
    fn round_trips_are_averaged_and_expire() {
        let mut servers = Servers::<()>::new(8);
        for (second, rtt_ms) in [(0, 100.0), (1, 200.0), (2, f64::NAN), (3, 0.0)] {
            servers.measured(at(second), 3, prefix(0), rtt_ms);
        }
        let known = servers.get(prefix(0)).1;
        assert_eq!((known.rtt_ms(at(4), 3), known.rtt_ms(at(4), 2)), (Some(125.0), None));
        assert_eq!(known.rtt_ms(at(3_601), 3), None);
        servers.measured(at(4_000), 3, prefix(0), 50.0);
        assert_eq!(servers.get(prefix(0)).1.rtt_ms(at(4_000), 3), Some(50.0));
    }

    #[test]
    fn networks_are_bounded_and_those_in_use_stay() {
        let mut servers = Servers::<u32>::new(16);
        *servers.get(prefix(0)).0 = 7;
        for number in 1..1_000 {
            let _ = servers.get(prefix(number));
            assert_eq!(*servers.get(prefix(0)).0, 7, "in use");
            assert!(servers.young.len() + servers.old.len() <= 16);
        }
        servers.measured(at(0), 0, prefix(0), 1.0);
        servers.measured(at(0), 1, prefix(0), 1.0);
        servers.forget_hops();
        let (state, known) = servers.get(prefix(0));
        assert_eq!((*state, known.0.len()), (0, 1));
    }
}
