//! UDP stream of the paper between real hosts, with real gateways on the emulated link.
//!
//! ```text
//!   a1 ── numbered, timed datagrams ──▶ gwa ══ lossy link ══▶ gwb ──▶ b1
//!                                        └─ repairs ─▶      ─▶┘ injects what it recovers
//! ```

use viaduct_proto::link::Reason;

use crate::experiments::prelude::*;
use crate::topology::programs::{Carrier, Message, TimedMessages};

/// Payload of a datagram for IP packets of the paper's 1200 bytes.
const PAYLOAD: usize = 1200 - 28;

/// Delay after the stream until the counters are final: longer than flushing a bin, crossing
/// the link and publishing take together.
const SETTLE: Duration = Duration::from_millis(500);

/// Results of a stream.
#[derive(Clone, Debug)]
pub(super) struct RealOutcome {
    /// Data packets injected by the gateway.
    pub(super) recovered: u64,
    /// Messages that never arrived.
    pub(super) never: u64,
    /// Repairs lost on the link.
    pub(super) repairs_lost: u64,
    /// Manifests lost on the link, estimated from the loss rate: neither end counts them.
    pub(super) manifests_lost: u64,
    /// Packets of any kind dropped by the link, from its own record.
    pub(super) dropped: u64,
    /// Bursts in that record.
    pub(super) bursts: usize,
    /// Mean delay of recovered messages beyond their normal arrival, in ms.
    pub(super) latency_ms: f64,
}

impl RealOutcome {
    /// Returns the data packets lost on the link.
    pub(super) fn lost(&self) -> u64 {
        self.recovered + self.never
    }

    /// Returns the share of the lost data packets that was recovered.
    pub(super) fn share(&self) -> f64 {
        self.recovered as f64 / self.lost().max(1) as f64
    }

    /// Returns the number of losses counted by hosts and gateways, relative to the link's record.
    pub(super) fn accounted(&self) -> f64 {
        let counted = self.lost() + self.repairs_lost + self.manifests_lost;
        counted as f64 / self.dropped.max(1) as f64
    }
}

/// Sends the paper's 10 Mb/s for `seconds` in `world`, with the code of `spec`. Fails if gateways
/// cannot be started or queried, sockets fail, or on Ctrl-C.
pub(super) fn send(
    world: &mut World,
    spec: &GatewaySpec,
    link: &LinkConfig,
    seconds: u64,
) -> Result<RealOutcome> {
    world.protect(spec)?;
    let (a_before, b_before) = (world.sender()?, world.receiver()?);
    take_drops(world)?;
    let stream = TimedMessages {
        size: PAYLOAD,
        bits_per_second: 1e7 * PAYLOAD as f64 / 1200.0,
        timeout: Duration::from_secs(1),
        ..TimedMessages::paper(Carrier::Udp, Duration::from_secs(seconds))
    };
    let messages = stream.run(world.a1(), world.b1())?;
    // Time for flushing the last bins, for their repairs to cross the link, and for publishing
    // counters.
    thread::sleep(SETTLE);
    let (a, b) = (world.sender()?, world.receiver()?);
    let drops = take_drops(world)?;
    let recovered = b.recovered - b_before.recovered;
    let repairs_sent = a.repairs - a_before.repairs;
    let repairs_seen = b.repairs - b_before.repairs;
    let never = messages.iter().filter(|m| m.latency.is_none()).count() as u64;
    let manifests = a.manifests - a_before.manifests;
    let share = (recovered + never) as f64 / messages.len().max(1) as f64;
    Ok(RealOutcome {
        recovered,
        never,
        repairs_lost: repairs_sent.saturating_sub(repairs_seen),
        manifests_lost: (manifests as f64 * share) as u64,
        dropped: drops.0,
        bursts: drops.1,
        latency_ms: late_ms(&messages, link.delay) / recovered.max(1) as f64,
    })
}

/// Returns the packets and bursts that the loss process dropped from A to B since the last call.
fn take_drops(world: &World) -> Result<(u64, usize)> {
    let record = world.link()?.take_record(Direction::AtoB)?;
    let lost = record.drops.iter().filter(|drop| drop.reason == Reason::Loss).count();
    Ok((lost as u64, record.burst_lengths().len()))
}

/// Returns the sum of recovery latencies in ms, over all messages that a later message overtook.
/// The link keeps the order, so these messages were recovered. A message that was recovered before
/// the next arrival was barely late, and is not counted.
fn late_ms(messages: &[Message], one_way: Duration) -> f64 {
    let mut earliest_later = Duration::MAX;
    let mut sum = Duration::ZERO;
    for message in messages.iter().rev() {
        let Some(latency) = message.latency else { continue };
        let arrival = message.sent + latency;
        if arrival > earliest_later {
            sum += latency.saturating_sub(one_way);
        }
        earliest_later = earliest_later.min(arrival);
    }
    sum.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_overtaken_messages_count_as_late() {
        let ms = Duration::from_millis;
        let message =
            |sent, latency: Option<u64>| Message { sent: ms(sent), latency: latency.map(ms) };
        // The second message is overtaken by the third; the fourth never arrives; the last is
        // only slow.
        let messages = [
            message(0, Some(50)),
            message(1, Some(60)),
            message(2, Some(50)),
            message(3, None),
            message(4, Some(58)),
        ];
        assert_eq!(late_ms(&messages, ms(50)), 10.0);
    }
}
