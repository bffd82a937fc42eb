//! TCP Reno as the reference: a sender with Reno's window and SACK, as in current kernels (RFC
//! 5681, 6675, 6298), and a receiver with delayed acknowledgements. Packets are numbered from 1 and
//! have one length.
//!
//! The window grows by the packets that an acknowledgement newly reports. The acknowledgement that
//! ends a recovery covers a whole window, but packets acknowledged selectively before do not count
//! again, so the window is then ssthresh (RFC 5681, 3.2, step 6).

use std::collections::{BTreeSet, VecDeque};

use crate::time::{Duration, Instant};
use crate::trickles::cwnd::Reno;

/// Minimum of the term that is added to the smoothed round trip, as in Linux.
const MIN_VARIATION: Duration = Duration::from_millis(200);
/// Maximum delay of an acknowledgement.
const DELAY: Duration = Duration::from_millis(40);
/// Number of packets at the beginning that are acknowledged one by one.
const QUICK: u64 = 8;

#[derive(Debug)]
struct Window {
    now: u32,
    ssthresh: u32,
    /// Window after the last reduction.
    start: u32,
    /// Packets acknowledged since the last reduction.
    credits: u64,
}

impl Window {
    fn grow(&mut self, packets: u64) {
        self.credits += packets;
        self.now = Reno { start: self.start, ssthresh: self.ssthresh }.after(self.credits);
    }

    fn shrink(&mut self, ssthresh: u32, window: Option<u32>) {
        self.ssthresh = ssthresh.max(2);
        self.now = window.unwrap_or(self.ssthresh);
        (self.start, self.credits) = (self.now, 0);
    }
}

/// Retransmission timeout, from measured round trips.
#[derive(Debug, Default)]
struct Timeout {
    smoothed: Option<Duration>,
    variation: Duration,
    backoff: u32,
}

impl Timeout {
    fn wait(&self) -> Duration {
        let added = (4 * self.variation).max(MIN_VARIATION);
        let base = self.smoothed.map_or(Duration::from_secs(1), |smoothed| smoothed + added);
        base * (1 << self.backoff.min(8))
    }

    fn measure(&mut self, trip: Duration) {
        match self.smoothed {
            None => (self.smoothed, self.variation) = (Some(trip), trip / 2),
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(trip)) / 4;
                self.smoothed = Some((smoothed * 7 + trip) / 8);
            }
        }
    }
}

/// Reno sender that always has data to send.
#[derive(Debug)]
pub(crate) struct Sender {
    length: usize,
    now: Instant,
    window: Window,
    acknowledged: u64,
    next: u64,
    sacked: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    /// Lost packets that were retransmitted.
    again: BTreeSet<u64>,
    /// Packet whose acknowledgement ends the current recovery.
    recovery: Option<u64>,
    /// Send times of new packets, from which round trips are measured.
    sent: VecDeque<(u64, Instant)>,
    timeout: Timeout,
    deadline: Option<Instant>,
    /// Minimum number of packets sent together.
    burst: u32,
    /// True if a burst is being sent.
    leaving: bool,
    pub(crate) timeouts: u64,
    pub(crate) recoveries: u64,
}

impl Sender {
    pub(crate) fn new(length: usize, initial_window: u32) -> Self {
        let start = initial_window;
        Sender {
            length,
            now: Instant::ZERO,
            window: Window { now: start, ssthresh: u32::MAX, start, credits: 0 },
            acknowledged: 0,
            next: 1,
            sacked: BTreeSet::new(),
            lost: BTreeSet::new(),
            again: BTreeSet::new(),
            recovery: None,
            sent: VecDeque::new(),
            timeout: Timeout::default(),
            deadline: None,
            burst: 1,
            leaving: false,
            timeouts: 0,
            recoveries: 0,
        }
    }

    /// Makes the sender wait until `burst` packets, or a third of the window, can be sent together,
    /// as kernels do for devices with segmentation offload.
    pub(crate) fn in_bursts(self, burst: u32) -> Self {
        Sender { burst, ..self }
    }

    /// Packets acknowledged in order.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Congestion window, in packets.
    pub(crate) fn window(&self) -> u32 {
        self.window.now
    }

    /// Packets believed to be in flight.
    fn pipe(&self) -> u64 {
        let outstanding = self.next - 1 - self.acknowledged;
        outstanding + self.again.len() as u64 - (self.sacked.len() + self.lost.len()) as u64
    }

    pub(crate) fn handle(&mut self, now: Instant, ack: &[u8]) {
        self.now = now;
        let mut words = ack.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word));
        let Some(upto) = words.next() else { return };
        while let (Some(first), Some(last)) = (words.next(), words.next()) {
            for number in first.max(self.acknowledged + 1)..=last {
                self.sacked.insert(number);
                self.lost.remove(&number);
                self.again.remove(&number);
            }
        }
        let advances = upto > self.acknowledged;
        if advances {
            self.advance(now, upto);
        }
        self.mark_lost();
        // Acknowledgements do not advance past a lost retransmission, which is therefore sent again
        // only after a timeout.
        if advances {
            self.deadline = (self.next - 1 > self.acknowledged).then(|| now + self.timeout.wait());
        }
    }

    fn advance(&mut self, now: Instant, upto: u64) {
        let known = self.sacked.range(..=upto).count() as u64;
        let packets = upto - self.acknowledged - known;
        self.acknowledged = upto;
        self.timeout.backoff = 0;
        while let Some(&(number, sent)) = self.sent.front().filter(|(number, _)| *number <= upto) {
            if number == upto && self.recovery.is_none() {
                self.timeout.measure(now.since(sent));
            }
            self.sent.pop_front();
        }
        for set in [&mut self.sacked, &mut self.lost, &mut self.again] {
            *set = set.split_off(&(upto + 1));
        }
        if self.recovery.is_some_and(|point| upto >= point) {
            self.recovery = None;
        }
        if self.recovery.is_none() {
            self.window.grow(packets);
        }
    }

    /// Marks as lost the packets above which three packets are selectively acknowledged.
    fn mark_lost(&mut self) {
        let Some(&third) = self.sacked.iter().rev().nth(2) else { return };
        let new: Vec<u64> = (self.acknowledged + 1..third)
            .filter(|n| !self.sacked.contains(n) && !self.lost.contains(n))
            .collect();
        if new.is_empty() {
            return;
        }
        self.lost.extend(new);
        if self.recovery.is_none() {
            let flight = (self.next - 1 - self.acknowledged) as u32;
            self.window.shrink(flight.min(self.window.now) / 2, None);
            self.recovery = Some(self.next - 1);
            self.recoveries += 1;
        }
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        let (pipe, window) = (self.pipe(), u64::from(self.window.now));
        let least = u64::from(self.burst).min(window / 3).max(1);
        self.leaving = pipe < window && (self.leaving || pipe == 0 || window - pipe >= least);
        if !self.leaving {
            return None;
        }
        let number = match self.lost.iter().find(|n| !self.again.contains(n)) {
            Some(&number) => {
                self.again.insert(number);
                number
            }
            None => {
                self.sent.push_back((self.next, self.now));
                self.next += 1;
                self.next - 1
            }
        };
        self.deadline = self.deadline.or(Some(self.now + self.timeout.wait()));
        let mut packet = vec![0; self.length];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        Some(packet)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.timeouts += 1;
        let flight = (self.next - 1 - self.acknowledged) as u32;
        let half = flight.min(self.window.now) / 2;
        let ssthresh = if self.timeout.backoff == 0 { half } else { self.window.ssthresh };
        self.window.shrink(ssthresh, Some(1));
        self.timeout.backoff += 1;
        self.lost =
            (self.acknowledged + 1..self.next).filter(|n| !self.sacked.contains(n)).collect();
        self.again.clear();
        self.sent.clear();
        self.recovery = None;
        self.deadline = Some(now + self.timeout.wait());
    }
}

/// Reno receiver.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    upto: u64,
    above: BTreeSet<u64>,
    owed: u32,
    deadline: Option<Instant>,
    out: VecDeque<Vec<u8>>,
}

impl Receiver {
    pub(crate) fn handle(&mut self, now: Instant, packet: &[u8]) {
        let Some(number) = packet.first_chunk() else { return };
        let number = u64::from_be_bytes(*number);
        let hole = !self.above.is_empty();
        if number > self.upto {
            self.above.insert(number);
        }
        while self.above.remove(&(self.upto + 1)) {
            self.upto += 1;
        }
        self.owed += 1;
        let order = number == self.upto && !hole;
        if self.owed == 2 || !order || self.upto <= QUICK {
            self.acknowledge();
        } else {
            self.deadline = Some(now + DELAY);
        }
    }

    fn acknowledge(&mut self) {
        (self.owed, self.deadline) = (0, None);
        let mut ranges: Vec<[u64; 2]> = Vec::new();
        for &number in &self.above {
            match ranges.last_mut() {
                Some([_, last]) if *last + 1 == number => *last = number,
                _ => ranges.push([number, number]),
            }
        }
        let mut words = vec![self.upto];
        words.extend(ranges.into_flattened());
        self.out.push_back(words.into_iter().flat_map(u64::to_be_bytes).collect());
    }

    pub(crate) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn handle_timeout(&mut self, _now: Instant) {
        self.acknowledge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(upto: u64, ranges: &[[u64; 2]]) -> Vec<u8> {
        let words = [&[upto][..], ranges.as_flattened()].concat();
        words.into_iter().flat_map(u64::to_be_bytes).collect()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn after_a_recovery_the_window_is_half_of_what_was_in_flight() {
        let mut sender = Sender::new(100, 20);
        while sender.poll_transmit().is_some() {}
        // The first of twenty is lost; the next two acknowledgements release one new packet each.
        for last in 2..=20 {
            sender.handle(at(10), &ack(0, &[[2, last]]));
            while sender.poll_transmit().is_some() {}
        }
        assert_eq!((sender.window(), sender.recoveries, sender.pipe()), (10, 1, 10));
        sender.handle(at(20), &ack(22, &[]));
        assert_eq!(sender.window(), 10, "the nineteen after the loss are not counted again");
        sender.handle(at(21), &ack(28, &[]));
        assert_eq!(sender.window(), 10, "nine");
        sender.handle(at(21), &ack(29, &[]));
        assert_eq!(sender.window(), 11, "ten: the repair, and nine new packets");
    }
}
