//! Delivery rate samples, from sent and acknowledged bytes: Cheng, Cardwell et al., "Delivery
//! Rate Estimation" (draft-cheng-iccrg-delivery-rate-estimation).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Maximum number of send times that are kept.
const MAX_SAMPLES: usize = 16 << 10;
/// Number of round trips for which send times are kept; later acknowledgements yield no sample.
const MEMORY: u32 = 4;

/// Packets sent at one time, and the state at that time.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
    /// Send time of the newest packet that had been acknowledged at time `at`.
    first_at: Instant,
    limited: bool,
}

/// Sample of a batch of acknowledgements, which arrived together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Delivery rate, in bytes a second; `None` if it cannot be determined.
    pub(super) rate: Option<f64>,
    /// True if the sender was application-limited, in which case the path may be faster.
    pub(super) limited: bool,
    /// Total bytes delivered when the newest acknowledged packet was sent.
    pub(super) before: u64,
    /// Total bytes delivered now.
    pub(super) delivered: u64,
    /// Bytes acknowledged in the batch.
    pub(super) acked: u64,
    /// Shortest round trip among the acknowledged packets.
    pub(super) rtt: Duration,
}

/// Counters of sent and acknowledged bytes.
#[derive(Clone, Debug)]
pub(super) struct Samples {
    sent: VecDeque<Sent>,
    /// Bytes in flight; an upper estimate.
    pub(super) in_flight: u64,
    delivered: u64,
    delivered_at: Instant,
    first_at: Instant,
    /// Samples are application-limited until this many bytes are delivered; 0 if they are not.
    limited_until: u64,
    /// Bytes acknowledged in the current batch of acknowledgements.
    acked: u64,
    /// The latest sent packet of those acknowledged in the current batch.
    newest: Option<Sent>,
    /// Shortest round trip in the current batch.
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

    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 {
            (self.first_at, self.delivered_at) = (now, now);
        }
        self.in_flight += bytes;
        if self.sent.back().is_some_and(|last| last.at == now) {
            return;
        }
        if self.sent.len() == MAX_SAMPLES {
            self.sent.pop_front();
        }
        let Samples { delivered, delivered_at, first_at, .. } = *self;
        let limited = self.limited_until > 0;
        self.sent.push_back(Sent { at: now, delivered, delivered_at, first_at, limited });
    }

    /// Records the acknowledgement of a packet.
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

    /// Completes the sample after a batch of acknowledgements, with `in_flight` bytes still in
    /// flight; `limited` is true if the sender is application-limited.
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
        // An interval shorter than a round trip would give a rate that is too high.
        let rate = (over >= rtt && !over.is_zero()).then(|| bytes as f64 / over.as_secs_f64());
        let acked = std::mem::take(&mut self.acked);
        let (before, delivered) = (newest.delivered, self.delivered);
        Some(Sample { rate, limited: newest.limited, before, delivered, acked, rtt })
    }
}
