//! Recovery epoch: the part of a connection between two losses. Defines which packets cause an
//! acknowledgement, and how many packets are sent after each acknowledgement.

use super::cwnd::Reno;

/// Number of packets at the beginning of an epoch that are acknowledged one by one; after them,
/// every second packet is acknowledged. The number is even, so that a window of two or more packets
/// always contains a packet with a continuation.
pub const QUICK: u64 = 8;

/// Acknowledgement policy of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acks {
    /// True if, after the first [`QUICK`] packets, one request acknowledges two packets.
    pub delayed: bool,
    /// True if the window grows with each request (RFC 2581), instead of with each acknowledged
    /// packet (RFC 3465 with L = 2, as in current kernels).
    pub by_request: bool,
}

/// Parameters of a recovery epoch, from which the window at each of its packets follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Number of the epoch's first packet (the paper's TCPBase); 1 or more.
    pub base: u64,
    /// Initial window (startCwnd), in packets: 1 to 65535.
    pub start: u16,
    /// Slow start threshold, in packets.
    pub ssthresh: u16,
    /// Acknowledgement policy.
    pub acks: Acks,
}

impl Epoch {
    /// Returns whether packet `number` of this epoch is a *point*: a packet that carries a
    /// continuation. A packet without a continuation is the first of a pair, and is acknowledged by
    /// the request of the second.
    pub fn is_point(&self, number: u64) -> bool {
        let offset = number.saturating_sub(self.base);
        !self.acks.delayed || offset < QUICK || (offset - QUICK) % 2 == 1
    }

    /// The last point at or below `number`; if there is none, the number before the epoch.
    pub fn point_at(&self, number: u64) -> u64 {
        let none = self.base - 1;
        if number <= none || self.is_point(number) { number.max(none) } else { number - 1 }
    }

    /// The last point below the point `number`.
    pub fn point_before(&self, number: u64) -> u64 {
        self.point_at(number.max(self.base) - 1)
    }

    /// Number of points in the epoch up to and including `number`.
    pub fn points_to(&self, number: u64) -> u64 {
        let count = (number + 1).saturating_sub(self.base);
        if !self.acks.delayed || count <= QUICK { count } else { QUICK + (count - QUICK) / 2 }
    }

    /// Reno's window, in packets, when all packets up to `number` are acknowledged
    /// (TCPCwnd(k)).
    pub fn window(&self, number: u64) -> u64 {
        let point = self.point_at(number);
        let credits = if self.acks.by_request {
            self.points_to(point)
        } else {
            (point + 1).saturating_sub(self.base)
        };
        let reno = Reno { start: self.start.into(), ssthresh: self.ssthresh.into() };
        reno.after(credits).into()
    }

    /// The last packet sent when all up to `number` are acknowledged: one window beyond the
    /// last point.
    pub fn sent(&self, number: u64) -> u64 {
        self.point_at(number) + self.window(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs() -> impl Iterator<Item = Epoch> {
        let flags = [(false, false), (true, false), (true, true)];
        flags.into_iter().flat_map(|(delayed, by_request)| {
            let acks = Acks { delayed, by_request };
            [(1, 8), (2, 2), (10, 40)].map(|(start, ssthresh)| Epoch {
                base: 5,
                start,
                ssthresh,
                acks,
            })
        })
    }

    #[test]
    fn every_packet_is_sent_once_and_in_order() {
        for epoch in epochs() {
            let mut sent = epoch.base - 1 + u64::from(epoch.start);
            let mut before = epoch.base - 1;
            for point in (epoch.base..2_000).filter(|&n| epoch.is_point(n)) {
                assert_eq!(epoch.point_before(point), before);
                assert_eq!(epoch.sent(before), sent);
                let more = epoch.sent(point) - sent;
                assert!((1..=4).contains(&more), "{epoch:?}: {point} sends {more}");
                (sent, before) = (epoch.sent(point), point);
            }
        }
    }

    #[test]
    fn a_window_of_two_always_holds_a_point() {
        for epoch in epochs() {
            for first in epoch.base..100 {
                assert!(epoch.is_point(first) || epoch.is_point(first + 1));
            }
            let counted = (epoch.base..=99).filter(|&n| epoch.is_point(n)).count() as u64;
            assert_eq!(epoch.points_to(99), counted);
        }
    }

    #[test]
    fn points_are_found_from_either_side() {
        let acks = Acks { delayed: true, by_request: false };
        let epoch = Epoch { base: 1, start: 4, ssthresh: 8, acks };
        assert_eq!([8, 9, 10, 11, 12].map(|n| epoch.point_at(n)), [8, 8, 10, 10, 12]);
        assert_eq!([1, 8, 10, 12].map(|n| epoch.point_before(n)), [0, 7, 8, 10]);
        assert_eq!(epoch.point_at(0), 0);
    }
}
