//! Plan of an answer: how many packets, and their numbers (Trickles paper, sections 2.3 and 2.5).
//!
//! The plan is a pure function of the request's contents. The server follows the plan, and the
//! client uses it to predict the answer, including the byte ranges.
//!
//! ```text
//!              f: the first loss                   L: the last packet sent before f was reported
//!   ··· ─ P ─┬─ x ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┬─ ─ ─ ─ ─ ┤
//!            │        terminated            │ survivors │      cw = C(P) packets from P to L
//!            └──────────────── cw ──────────┴── newCwnd ┘      newCwnd = cw / 2
//!                                                   │
//!                    answer to survivor q ──────────┴──▶ packet q + newCwnd of the next epoch
//!
//!   P: the last packet with a continuation before f     C(P): the congestion window at P
//! ```
//!
//! Each request covers the packets after the previous request's packet, up to its own packet. A
//! request whose continuation was in a lost packet was never sent, and does not count. So every
//! lost packet is covered by exactly one request: the first request after the packet's run of
//! losses.

use super::epoch::Epoch;

/// Maximum number of packets that are retransmitted in answer to one request, whatever the
/// settings.
pub const MAX_BURST: usize = 32;

/// A run of consecutive lost packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of the first packet.
    pub first: u64,
    /// Number of packets; 1 or more.
    pub count: u32,
}

impl Run {
    /// Number of the last packet.
    pub fn last(self) -> u64 {
        self.first + u64::from(self.count) - 1
    }

    fn holds(self, number: u64) -> bool {
        (self.first..=self.last()).contains(&number)
    }
}

/// A range of consecutive packet numbers; may be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First number.
    pub first: u64,
    /// Number after the last one.
    pub end: u64,
}

impl Span {
    /// The numbers `first..end`; empty if `end` is not above `first`.
    pub fn new(first: u64, end: u64) -> Self {
        Span { first, end: end.max(first) }
    }

    /// The numbers.
    pub fn numbers(self) -> std::ops::Range<u64> {
        self.first..self.end
    }

    /// Number of packets.
    pub fn count(self) -> u64 {
        self.end - self.first
    }
}

/// Lost packets to be retransmitted, at most [`MAX_BURST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    numbers: [u64; MAX_BURST],
    count: usize,
}

impl Again {
    /// The packet numbers, ascending.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers[..self.count]
    }

    fn push(&mut self, number: u64) {
        self.numbers[self.count] = number;
        self.count += 1;
    }
}

/// Answer to one request. The fields are in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The epoch that the new packets belong to.
    pub epoch: Epoch,
    /// Lost packets that are retransmitted. Their nonces come from the second nonce key.
    pub again: Again,
    /// New packets whose continuations are sent as a group, without data (condition (b) of
    /// docs/trickles/protocol.md).
    pub grouped: Span,
    /// New packets with data. One packet continues the trickle, several split it; an empty span
    /// terminates it.
    pub fresh: Span,
}

impl Plan {
    fn nothing(epoch: Epoch) -> Self {
        Plan { epoch, again: Again::default(), grouped: Span::default(), fresh: Span::default() }
    }

    /// Returns whether the trickle is terminated without an answer.
    pub fn is_nothing(&self) -> bool {
        self.again.count == 0 && self.grouped.count() == 0 && self.fresh.count() == 0
    }
}

/// Error: a request that a correct client does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    /// A request reports a loss, but acknowledges a packet that the server would not have sent
    /// after this loss.
    #[error(
        "packet {number} is sent only if {first} has arrived, but its request reports {first} lost"
    )]
    BeyondLoss {
        /// Number of the request's packet.
        number: u64,
        /// First loss that the request reports.
        first: u64,
    },
    /// More packets are reported lost than unanswered, or more packets unanswered than were in
    /// flight.
    #[error("{lost} of at most {most} packets are reported lost at the end of an epoch")]
    Tail {
        /// Number of packets reported as lost, or as unanswered if that is more.
        lost: u64,
        /// Maximum possible number.
        most: u64,
    },
}

/// Plan for the first window of an epoch that follows a timeout or the echo of an address token.
pub fn begin(epoch: Epoch) -> Plan {
    Plan {
        fresh: Span::new(epoch.base, epoch.base + u64::from(epoch.start)),
        ..Plan::nothing(epoch)
    }
}

/// Plans the answer to request `number` of `epoch`, when all packets of the epoch up to `number`
/// have arrived except `gaps` (ascending, not adjacent, below `number`). At most `burst` packets
/// are retransmitted (burstLimit). Errors: [`Inconsistent::BeyondLoss`].
pub fn step(epoch: Epoch, number: u64, gaps: &[Run], burst: usize) -> Result<Plan, Inconsistent> {
    let Some(first) = gaps.first().map(|gap| gap.first) else {
        let before = epoch.point_before(number);
        let fresh = Span::new(epoch.sent(before) + 1, epoch.sent(number) + 1);
        return Ok(Plan { fresh, ..Plan::nothing(epoch) });
    };
    let (last, survivors) = loss_of(epoch, first);
    if number > last {
        return Err(Inconsistent::BeyondLoss { number, first });
    }
    let next = after_recovery(epoch, last, survivors);
    let before = request_before(epoch, number, gaps).unwrap_or(epoch.base - 1);
    let before = before.max(epoch.point_at(first - 1));
    let own = own_packets(epoch, number, gaps);
    let slot = |q: u64| q.max(last - survivors + 1) + survivors;
    let (again, repairs) = retransmissions(epoch, number, gaps, burst.min(MAX_BURST));
    // Each retransmission takes the place of one packet with new data.
    let opening = last - survivors;
    let own = own.max(opening + 1);
    let arrived = own - opening - lost_from(gaps, opening + 1);
    let displaced = repairs.saturating_sub(lost_from(gaps, opening + 1));
    let fresh = slot(own + (displaced + 1).saturating_sub(arrived)).min(slot(number + 1));
    Ok(Plan {
        epoch: next,
        again,
        grouped: Span::new(slot(before + 1), fresh),
        fresh: Span::new(fresh, slot(number + 1)),
    })
}

/// Number of lost packets in `gaps` at or above `first`.
fn lost_from(gaps: &[Run], first: u64) -> u64 {
    gaps.iter().map(|gap| (gap.last() + 1).saturating_sub(gap.first.max(first))).sum()
}

/// The last request before request `number` that may have reached the server: the request of the
/// last point ([`Epoch::is_point`]) below `number` that is not in `gaps`. `None` if the epoch has
/// none.
pub fn request_before(epoch: Epoch, number: u64, gaps: &[Run]) -> Option<u64> {
    let mut before = epoch.point_before(number);
    for gap in gaps.iter().rev() {
        if gap.holds(before) {
            before = epoch.point_at(gap.first - 1);
        }
    }
    (before >= epoch.base).then_some(before)
}

/// Last packet sent before the loss of `first` was known, and number of surviving trickles.
fn loss_of(epoch: Epoch, first: u64) -> (u64, u64) {
    let flight = epoch.window(first - 1);
    (epoch.sent(first - 1), (flight / 2).max(2).min(flight))
}

/// Epoch that begins with the survivors: TCPBase = L + 1, ssthresh = startCwnd = newCwnd.
fn after_recovery(epoch: Epoch, last: u64, survivors: u64) -> Epoch {
    let window = u16::try_from(survivors).unwrap_or(u16::MAX);
    Epoch { base: last + 1, start: window, ssthresh: window, acks: epoch.acks }
}

/// First arrived packet among those of request `number`: packet `number` and, with delayed
/// acknowledgements, the packet before it.
fn own_packets(epoch: Epoch, number: u64, gaps: &[Run]) -> u64 {
    let first = epoch.point_before(number) + 1;
    if gaps.last().is_some_and(|gap| gap.holds(first)) { number } else { first }
}

/// Lost packets that are retransmitted in answer to request `number`, and the total number
/// retransmitted up to and including this answer. Lost packets beyond `burst` wait for later
/// requests. The number of requests after each gap, which the proof of receipt shows, determines
/// which lost packets have not been retransmitted yet.
fn retransmissions(epoch: Epoch, number: u64, gaps: &[Run], burst: usize) -> (Again, u64) {
    let burst = burst as u64;
    let (mut lost, mut waiting, mut now) = (0, 0, 0);
    for (i, gap) in gaps.iter().enumerate() {
        lost += u64::from(gap.count);
        waiting += u64::from(gap.count);
        let until = gaps.get(i + 1).map_or(number, |next| next.first - 1);
        let requests = epoch.points_to(until) - epoch.points_to(gap.last());
        // After the last gap, `requests` includes request `number` itself, so one is subtracted.
        let earlier = if until == number { requests.saturating_sub(1) } else { requests };
        waiting -= waiting.min(earlier.saturating_mul(burst));
        now = waiting.min(burst);
    }
    let mut skip = lost - waiting;
    let sent = skip + now;
    let mut again = Again::default();
    for gap in gaps {
        let passed = skip.min(gap.count.into());
        skip -= passed;
        for n in gap.first + passed..=gap.last() {
            if again.count as u64 == now {
                return (again, sent);
            }
            again.push(n);
        }
    }
    (again, sent)
}

/// Losses at the end of an epoch, reported by the first request of the next epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Number of packets lost at the end of the previous epoch.
    pub lost: u32,
    /// Number of packets at the end of that epoch for which no request was sent, including the
    /// lost ones.
    pub unanswered: u32,
}

/// Plans the answer to the `tail` that is reported by request `number` of `epoch`, which began with
/// survivors. Errors: [`Inconsistent::Tail`].
pub fn tail(epoch: Epoch, number: u64, tail: Tail, burst: usize) -> Result<Plan, Inconsistent> {
    let (lost, unanswered) = (u64::from(tail.lost), u64::from(tail.unanswered));
    let survivors = u64::from(epoch.start);
    // The request whose answer contained packet `number` has reached the server, and so have all
    // earlier requests.
    let most = (epoch.base + survivors).saturating_sub(number + 1);
    if lost > unanswered || unanswered > most {
        return Err(Inconsistent::Tail { lost: lost.max(unanswered), most });
    }
    let mut again = Again::default();
    let first = epoch.base - lost;
    (first..epoch.base).take(burst.min(MAX_BURST)).for_each(|n| again.push(n));
    let end = epoch.base + survivors;
    Ok(Plan { again, grouped: Span::new(end - unanswered, end), ..Plan::nothing(epoch) })
}

#[cfg(test)]
mod tests;
