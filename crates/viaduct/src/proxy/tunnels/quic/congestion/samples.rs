//! How fast a path delivers, by what is sent and what is acknowledged: Cheng, Cardwell et al.,
//! "Delivery Rate Estimation" (draft-cheng-iccrg-delivery-rate-estimation).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Times of sending that are remembered, at most.
const MOST: usize = 16 << 10;
/// And for so many round trips: what is acknowledged later tells nothing.
const MEMORY: u32 = 4;

/// Packets that were sent at one time, and how things stood then.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// When the packet was sent whose acknowledgement was the latest.
    first_at: Instant,
    limited: bool,
}

/// What the acknowledgements that came together tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Bytes a second; none if it cannot be told.
    pub(super) rate: Option<f64>,
    /// The sender had not enough to send: the path may be faster.
    pub(super) limited: bool,
    /// Bytes that had been delivered when the packet was sent, and are delivered now.
    pub(super) before: u64,
    pub(super) delivered: u64,
    /// Bytes that came together.
    pub(super) acked: u64,
    /// The shortest round trip among them.
    pub(super) rtt: Duration,
}

/// The count.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    sent: VecDeque<Sent>,
    in_flight: u64,
    delivered: u64,
    delivered_at: Instant,
    first_at: Instant,
    /// Until so much is delivered, samples are limited; 0: they are not.
    limited_until: u64,
    /// Of the acknowledgements that are coming in: their bytes, the packet sent last, and the shortest time.
    acked: u64,
    newest: Option<Sent>,
    rtt: Option<Duration>,
}

impl Samples {
    pub(super) fn new(now: Instant) -> Samples {
        Samples {
            sent: VecDeque::new(),
            in_flight: 0,
            delivered: 0,
            delivered_at: now,
            first_at: now,
            limited_until: 0,
            acked: 0,
            newest: None,
            rtt: None,
        }
    }

    /// Bytes that are on their way, or a few more.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 {
            (self.first_at, self.delivered_at) = (now, now);
        }
        self.in_flight += bytes;
        if self.sent.back().is_some_and(|last| last.at == now) {
            return;
        }
        if self.sent.len() == MOST {
            self.sent.pop_front();
        }
        let Samples { delivered, delivered_at, first_at, .. } = *self;
        let limited = self.limited_until > 0;
        self.sent.push_back(Sent { at: now, delivered, delivered_at, first_at, limited });
    }

    /// One packet is acknowledged.
    pub(super) fn acked(&mut self, now: Instant, sent_at: Instant, bytes: u64) {
        self.delivered += bytes;
        self.acked += bytes;
        self.delivered_at = now;
        let rtt = now.saturating_duration_since(sent_at);
        self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
        let found = self.sent.binary_search_by_key(&sent_at, |sent| sent.at);
        if let Ok(index) = found
            && self.newest.is_none_or(|newest| newest.at < sent_at)
        {
            self.newest = Some(self.sent[index]);
        }
    }

    /// All that came together is told; so many bytes are on their way still.
    pub(super) fn take(&mut self, now: Instant, in_flight: u64, limited: bool) -> Option<Sample> {
        self.in_flight = in_flight;
        if self.limited_until > 0 && self.delivered > self.limited_until {
            self.limited_until = 0;
        }
        if limited {
            self.limited_until = (self.delivered + in_flight).max(1);
        }
        let (newest, rtt) = (self.newest.take()?, self.rtt.take()?);
        while self.sent.front().is_some_and(|sent| now.duration_since(sent.at) > MEMORY * rtt) {
            self.sent.pop_front();
        }
        self.first_at = newest.at;
        let sending = newest.at.saturating_duration_since(newest.first_at);
        let acking = now.saturating_duration_since(newest.delivered_at);
        let over = sending.max(acking);
        let bytes = self.delivered - newest.delivered;
        // In less than a round trip something is told that no path did.
        let rate = (over >= rtt && !over.is_zero()).then(|| bytes as f64 / over.as_secs_f64());
        let acked = std::mem::take(&mut self.acked);
        let (before, delivered) = (newest.delivered, self.delivered);
        Some(Sample { rate, limited: newest.limited, before, delivered, acked, rtt })
    }
}
