//! Evaluation of an authentic request.

use std::net::SocketAddr;

use super::{Refusal, Server, instant, micros};
use crate::time::Instant;
use crate::trickles::continuation::{Continuation, Invalid, Losses, Mode};
use crate::trickles::keys::Keys;
use crate::trickles::plan::{self, Plan, Run};
use crate::trickles::proof::Gaps;
use crate::trickles::wire::request::Returned;

/// Number of packets after which an epoch ends, so that a packet's offset in its epoch fits in the
/// continuation.
const MAX_EPOCH: u64 = 1 << 31;

/// Relation of a continuation to the address from which it is returned.
#[derive(Clone, Copy, Debug)]
pub(super) enum Home {
    /// Same address, with its hash under the newest secret.
    Here(u64),
    /// Another address.
    Elsewhere,
    /// Same address, but the epoch cannot continue: the secret of its nonces is no longer in the
    /// ring, or the epoch has [`MAX_EPOCH`] packets.
    Expired,
}

pub(super) struct Judged {
    /// Plan for the end of the previous epoch.
    pub(super) tail: Option<Plan>,
    pub(super) plan: Plan,
    /// Losses that the proof shows.
    pub(super) gaps: Gaps,
    /// Losses to repair: for continuations of the current epoch, and of the next one.
    pub(super) losses: [Losses; 2],
}

impl Server {
    /// Evaluates an authentic, fresh request, and plans its answer.
    pub(super) fn judge(
        &self,
        known: &Continuation,
        returned: &Returned,
    ) -> Result<Judged, Refusal> {
        let gaps = self.gaps(known, returned)?;
        let mut losses = self.unrepaired(known, returned.repaired)?;
        let burst = known.burst.into();
        let mut tail = None;
        if let Some(end) = returned.tail.filter(|_| known.mode == Mode::Survivors) {
            tail = Some(plan::tail(known.epoch, known.number, end, burst)?);
            let first = known.epoch.base.saturating_sub(end.lost.into());
            if end.lost > 0 {
                losses.push(Run { first, count: end.lost });
            }
        }
        let plan = plan::step(known.epoch, known.number, gaps.runs(), burst)?;
        let mut later = losses;
        gaps.runs().iter().for_each(|&gap| later.push(gap));
        Ok(Judged { tail, plan, gaps, losses: [losses, later] })
    }

    /// Losses that a request's proof shows.
    pub(super) fn gaps(&self, known: &Continuation, returned: &Returned) -> Result<Gaps, Refusal> {
        let mut nonces = self.nonce_keys(known)?.nonces(self.series);
        Ok(returned.proof.check(known.epoch.base, known.number, &mut nonces)?)
    }

    /// Losses that still wait for their repair. Errors: [`Refusal::Unrepaired`] if such losses are
    /// left after the first window that follows a recovery, because the repairs then count as lost;
    /// or if `repaired` is not the xor of the repairs' nonces. The client has to restart.
    fn unrepaired(&self, known: &Continuation, repaired: Option<u64>) -> Result<Losses, Refusal> {
        let window = known.epoch.base + u64::from(known.epoch.start);
        match (known.losses.runs(), repaired) {
            ([], _) => Ok(Losses::default()),
            (_, None) if known.number < window => Ok(known.losses),
            (_, None) => Err(Refusal::Unrepaired),
            (runs, Some(sum)) => {
                let mut nonces = self.nonce_keys(known)?.nonces_again(self.series);
                let right = runs.iter().map(|run| nonces.sum(run.first, run.last()));
                let right = right.fold(0, |sum, nonce| sum ^ nonce);
                if sum == right { Ok(Losses::default()) } else { Err(Refusal::Unrepaired) }
            }
        }
    }

    pub(super) fn nonce_keys(&self, known: &Continuation) -> Result<&Keys, Refusal> {
        let keys = self.ring.get(known.nonces);
        keys.ok_or(Refusal::Invalid(Invalid::UnknownSecret(known.nonces)))
    }

    /// Sets the series of nonces to that of `known`'s generation at its client's address `from`.
    pub(super) fn use_series_of(
        &mut self,
        known: &Continuation,
        from: SocketAddr,
    ) -> Result<(), Refusal> {
        let keys = self.nonce_keys(known)?;
        self.series = keys.series(known.connection, known.generation, from);
        Ok(())
    }

    /// Compares the address `from` with the address to which the returned continuation was sent.
    pub(super) fn home(&self, from: SocketAddr, known: &Continuation, returned: &Returned) -> Home {
        let sealed_by = returned.continuation.first().and_then(|&secret| self.ring.get(secret));
        let Some(keys) = sealed_by.filter(|keys| keys.address(from) == known.address) else {
            return Home::Elsewhere;
        };
        if self.ring.get(known.nonces).is_none() || known.number - known.epoch.base >= MAX_EPOCH {
            return Home::Expired;
        }
        let newest = self.ring.newest();
        let same = keys.number() == newest.number();
        Home::Here(if same { known.address } else { newest.address(from) })
    }

    /// Returns `known` with the current time, the hash `address`, and an updated round trip.
    pub(super) fn timed(&self, now: Instant, address: u64, known: Continuation) -> Continuation {
        let trip = now.since(instant(now, known.timestamp)).as_micros();
        let trip = u32::try_from(trip).unwrap_or(u32::MAX);
        let rtt = match known.rtt {
            0 => trip,
            old => old - old / 8 + trip / 8,
        };
        Continuation { timestamp: micros(now), rtt: rtt.max(1), address, ..known }
    }
}
