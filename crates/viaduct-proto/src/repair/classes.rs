//! Classes of packets, and the protection of each.
//!
//! ```text
//!   acknowledgement without data ───────────────▶ not named, unless configured
//!   first of the operator's classes that matches ▶ as configured
//!   DSCP of expedited forwarding and above ─────┐
//!   flow of a low rate, or of small packets ────┴▶ copies
//!   TCP sender that losses do not slow down ────▶ names only
//!   all others ─────────────────────────────────▶ window
//! ```
//!
//! The window serves throughput: it recovers a lost packet once enough repairs for the whole burst
//! have arrived. Copies serve latency: one copy is sent shortly after its packet, and more if
//! losses come in bursts.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::flow::Flow;
use super::flows::{Flows, Kind, Sending};
use crate::time::{Duration, Instant};
use crate::wire::ip::{Header, MutableFields};
use crate::wire::tcp_sack::{self, Acknowledged};
use crate::wire::transport::Segment;

/// Lowest DSCP of latency-sensitive packets: expedited forwarding, voice, network control.
const EXPEDITED: u8 = 44;

/// Protection of packets while the link is lossy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repairs {
    /// Repairs of the window, at a rate that adapts to the losses.
    #[default]
    Window,
    /// Copies of each packet, in addition to the window.
    Copies,
    /// A copy of each packet, sent immediately over a path other than the packet's, whether or not
    /// the link is lossy. Same as [`Repairs::Copies`] while there is no other path.
    Duplicate,
    /// No repairs; losses are still measured.
    None,
}

/// Class of packets with a common protection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// Name for display.
    pub name: String,
    /// Conditions on packets of the class.
    pub matches: Match,
    /// Protection of packets of the class.
    pub repairs: Repairs,
    /// Time for which flows of the class can wait for a packet; `None` for the measured time.
    pub deadline: Option<Duration>,
    /// Maximum number of repairs for each packet of the class.
    pub max_overhead: Option<f64>,
}

/// Conditions on a packet, all of which must hold; an empty list matches every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Differentiated services code points.
    pub dscp: Vec<u8>,
    /// Prefixes, matched against the addresses of either end.
    pub prefixes: Vec<IpNet>,
    /// Ports of either end, TCP or UDP.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Protocol numbers.
    pub protocols: Vec<u8>,
}

impl Match {
    fn has(&self, flow: &Flow, dscp: u8) -> bool {
        let has_ip = |ip: IpAddr| self.prefixes.iter().any(|net| net.contains(&ip));
        let has_port = |port: u16| self.ports.iter().any(|range| range.contains(&port));
        (self.dscp.is_empty() || self.dscp.contains(&dscp))
            && (self.protocols.is_empty() || self.protocols.contains(&flow.protocol))
            && (self.prefixes.is_empty() || has_ip(flow.source.0) || has_ip(flow.destination.0))
            && (self.ports.is_empty() || has_port(flow.source.1) || has_port(flow.destination.1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Treatment {
    /// Not announced to the peer.
    Unnamed,
    /// Named, with this protection and at most this number of repairs.
    Named(Repairs, f64),
}

#[derive(Debug, Default)]
pub(super) struct Classifier {
    classes: Vec<Class>,
    /// True if acknowledgements without data are treated like other packets.
    pub(super) acks: bool,
    flows: Flows,
    /// Send time of the last packet of each class that has a deadline.
    declared: Vec<Option<Instant>>,
    /// Send time of the last packet that only the window protects, and that has no deadline.
    undeclared: Option<Instant>,
}

/// Time for which a deadline stays in force after the last packet of its class.
const BINDS: Duration = Duration::from_secs(2);

impl Classifier {
    pub(super) fn new(classes: Vec<Class>, acks: bool) -> Self {
        let declared = vec![None; classes.len()];
        Classifier { classes, acks, declared, ..Classifier::default() }
    }

    /// Classifies a normalised packet with mutable `fields` that leaves over a path of this RTT.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        packet: &[u8],
        fields: MutableFields,
        rtt: Duration,
    ) -> Treatment {
        if !self.acks && tcp_sack::is_plain_ack(packet) {
            return Treatment::Unnamed;
        }
        let segment = Segment::parse(packet);
        let Ok(header) = Header::parse(packet) else { return Treatment::Unnamed };
        let (flow, dscp) = (Flow::of(&header, packet), fields.tos >> 2);
        let mut classes = self.classes.iter().zip(&mut self.declared);
        if let Some((class, declared)) = classes.find(|(class, _)| class.matches.has(&flow, dscp)) {
            if class.deadline.is_some() {
                *declared = Some(now);
            } else if class.repairs == Repairs::Window {
                self.undeclared = Some(now);
            }
            let most = class.max_overhead.unwrap_or(f64::INFINITY);
            return Treatment::Named(class.repairs, most);
        }
        let sending = Sending { flow, len: packet.len(), segment: segment.as_ref() };
        let repairs = match self.flows.count(now, sending, rtt) {
            Kind::Light => Repairs::Copies,
            _ if dscp >= EXPEDITED => Repairs::Copies,
            Kind::Bulk => {
                self.undeclared = Some(now);
                Repairs::Window
            }
            Kind::Insensitive => Repairs::None,
        };
        Treatment::Named(repairs, f64::INFINITY)
    }

    /// Handles a packet from the peer's site, which may acknowledge data of a local sender.
    pub(super) fn overhear(
        &mut self,
        now: Instant,
        packet: &[u8],
        acknowledged: Acknowledged,
        rtt: Duration,
    ) {
        if let Ok(header) = Header::parse(packet) {
            let flow = Flow::of(&header, packet).back();
            self.flows.hear(now, &flow, acknowledged, rtt);
        }
    }

    /// Time for which the flows of recent packets can wait; `usual` for those without a deadline.
    pub(super) fn wait(&self, now: Instant, usual: Duration) -> Duration {
        let binds = |at: Instant| now.since(at) < BINDS;
        let classes = self.classes.iter().zip(&self.declared);
        let declared = classes.filter(|(_, at)| at.is_some_and(binds));
        match declared.filter_map(|(class, _)| class.deadline).min() {
            Some(deadline) if self.undeclared.is_some_and(binds) => deadline.min(usual),
            Some(deadline) => deadline,
            None => usual,
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.flows.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::transport::{TCP, UDP};

    /// Packet of `len` bytes to this port; if it is TCP, with the ACK flag.
    fn packet(protocol: u8, port: u16, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        (packet[9], packet[32], packet[33]) = (protocol, 0x50, 0x10);
        packet[16..20].copy_from_slice(&[10, 2, 0, 1]);
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet
    }

    fn judge(of: &mut Classifier, millis: u64, packet: &[u8], tos: u8) -> Treatment {
        let at = Instant::ZERO + Duration::from_millis(millis);
        of.judge(at, packet, MutableFields { ttl: 64, tos }, Duration::from_millis(100))
    }

    fn named(repairs: Repairs) -> Treatment {
        Treatment::Named(repairs, f64::INFINITY)
    }

    #[test]
    fn sparse_flows_get_copies_and_bulk_the_window() {
        let mut of = Classifier::default();
        let full = packet(TCP, 80, 1_200);
        let first = judge(&mut of, 0, &full, 0);
        let later: Vec<_> = (1..100).map(|n| judge(&mut of, n, &full, 0)).collect();
        assert_eq!((first, later[98]), (named(Repairs::Copies), named(Repairs::Window)));
        assert_eq!(judge(&mut of, 100, &packet(UDP, 53, 80), 0), named(Repairs::Copies));
        assert_eq!(judge(&mut of, 100, &full, 46 << 2), named(Repairs::Copies));
        assert_eq!(judge(&mut of, 10_000, &full, 0), named(Repairs::Copies), "the flow was idle");
    }

    #[test]
    fn acknowledgements_are_unprotected_unless_configured() {
        let ack = packet(TCP, 80, 40);
        let mut of = Classifier::new(Vec::new(), true);
        assert_eq!(judge(&mut Classifier::default(), 0, &ack, 0), Treatment::Unnamed);
        assert_eq!(judge(&mut of, 0, &ack, 0), named(Repairs::Copies));
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let class = |name: &str, matches, repairs| Class {
            name: name.to_owned(),
            matches,
            repairs,
            ..Class::default()
        };
        let backup = Match { ports: vec![873..=873], ..Match::default() };
        let lab = Match {
            prefixes: vec!["10.2.0.0/24".parse().unwrap()],
            protocols: vec![UDP],
            ..Match::default()
        };
        let slow = Class {
            deadline: Some(Duration::from_millis(30)),
            max_overhead: Some(0.1),
            ..class("slow", Match { dscp: vec![8], ..Match::default() }, Repairs::Window)
        };
        let classes =
            [class("backup", backup, Repairs::None), class("lab", lab, Repairs::Window), slow];
        let mut of = Classifier::new(classes.to_vec(), false);
        assert_eq!(judge(&mut of, 0, &packet(TCP, 873, 900), 0), named(Repairs::None));
        assert_eq!(judge(&mut of, 0, &packet(UDP, 53, 90), 0), named(Repairs::Window));
        assert_eq!(judge(&mut of, 0, &packet(TCP, 53, 90), 0), named(Repairs::Copies));
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let (usual, set) = (Duration::from_millis(25), Duration::from_millis(30));
        assert_eq!(of.wait(at(0), usual), usual);
        let slow = judge(&mut of, 100, &packet(TCP, 80, 900), 8 << 2);
        assert_eq!(slow, Treatment::Named(Repairs::Window, 0.1));
        assert_eq!(of.wait(at(101), usual), usual, "other flows cannot wait for longer");
        judge(&mut of, 4_000, &packet(TCP, 80, 900), 8 << 2);
        assert_eq!((of.wait(at(4_001), usual), of.wait(at(9_000), usual)), (set, usual));
    }

    #[test]
    fn each_deadline_ends_with_the_packets_of_its_class() {
        let class = |dscp, millis| Class {
            matches: Match { dscp: vec![dscp], ..Match::default() },
            deadline: Some(Duration::from_millis(millis)),
            ..Class::default()
        };
        let mut of = Classifier::new(vec![class(8, 10), class(16, 80)], false);
        let full = packet(TCP, 80, 900);
        judge(&mut of, 0, &full, 8 << 2);
        let mut wait = |millis: u64| {
            judge(&mut of, millis, &full, 16 << 2);
            of.wait(Instant::ZERO + Duration::from_millis(millis), Duration::from_millis(25))
        };
        let waits = [0, 1_000, 1_900, 2_100, 3_000].map(|millis| wait(millis).as_millis());
        assert_eq!(waits, [10, 10, 10, 80, 80]);
    }
}
