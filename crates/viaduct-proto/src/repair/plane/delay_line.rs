//! Datagrams in the order of their due times.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::repair::transport::Endpoint;
use crate::time::Instant;

/// Maximum number of delayed datagrams; further datagrams are handled immediately.
const MAX_DELAYED: usize = 8_192;
/// Maximum total length of delayed datagrams, in bytes.
const MAX_DELAYED_BYTES: usize = 8 << 20;

/// Datagrams that wait until packets that were sent earlier have arrived.
#[derive(Debug, Default)]
pub(super) struct DelayLine {
    waiting: BinaryHeap<Delayed>,
    bytes: usize,
    /// Number of the next datagram; numbers keep datagrams with the same due time in order.
    next: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Delayed {
    due: Instant,
    number: u64,
    pub(super) from: Endpoint,
    pub(super) datagram: Vec<u8>,
}

impl Ord for Delayed {
    /// Orders the datagram that is due first as the greatest, which the heap returns first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl DelayLine {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.peek().map(|first| first.due)
    }

    /// Adds a datagram; returns false if there is no room.
    pub(super) fn push(&mut self, due: Instant, from: Endpoint, datagram: &[u8]) -> bool {
        let bytes = self.bytes + datagram.len();
        if self.waiting.len() >= MAX_DELAYED || bytes > MAX_DELAYED_BYTES {
            return false;
        }
        let datagram = datagram.to_vec();
        self.waiting.push(Delayed { due, number: self.next, from, datagram });
        (self.bytes, self.next) = (bytes, self.next + 1);
        true
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<Delayed> {
        self.waiting.peek().filter(|first| first.due <= now)?;
        let first = self.waiting.pop()?;
        self.bytes -= first.datagram.len();
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn delayed_datagrams_are_returned_by_time_and_in_order() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let from = Endpoint::from(std::net::SocketAddr::from(([192, 0, 2, 1], 7_400)));
        let mut line = DelayLine::default();
        for (due, byte) in [(20, 1), (10, 2), (20, 3)] {
            assert!(line.push(at(due), from, &[byte]));
        }
        assert_eq!((line.poll_timeout(), line.pop(at(9))), (Some(at(10)), None));
        let out: Vec<_> = std::iter::from_fn(|| line.pop(at(20))).collect();
        let out: Vec<_> = out.into_iter().map(|of| of.datagram[0]).collect();
        assert_eq!((out, line.bytes), (vec![2, 1, 3], 0));
        assert!(!line.push(at(1), from, &vec![0; MAX_DELAYED_BYTES + 1]));
    }
}
