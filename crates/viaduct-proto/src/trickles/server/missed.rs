//! Lost requests, whose packets are sent in answer to a later request, as with TCP's
//! cumulative acknowledgements.
//!
//! ```text
//!   points      ··· a ─── b ─── c ─── d ···        request d proves that a, b, c have arrived
//!   answered?       yes   no    no                 so its answer also has the packets for b and c,
//!                                                  as groups of continuations, without data
//! ```
//!
//! The replay window shows which requests were answered; no other state is needed. If the window no
//! longer has the entry of an answered request, that request's packets are sent twice. The client
//! recognises the copies by their numbers, and each continuation is still valid for one request
//! only.

use super::work::{MAIN, TAIL};
use super::{Refusal, Server};
use crate::time::Instant;
use crate::trickles::continuation::Continuation;
use crate::trickles::plan::{self, Run};
use crate::trickles::replay::Once;

/// Maximum number of lost requests that one request makes up for, whatever the settings.
pub const MAX_MADE_UP: usize = 32;

impl Server {
    /// Lays out the packets for the lost requests before the request that returned `known`.
    pub(super) fn make_up(
        &mut self,
        now: Instant,
        known: &Continuation,
        gaps: &[Run],
    ) -> Result<(), Refusal> {
        let most = usize::from(self.settings.make_up).min(MAX_MADE_UP);
        let (mut missed, mut count, mut number) = ([0; MAX_MADE_UP], 0, known.number);
        while count < most
            && let Some(before) = plan::request_before(known.epoch, number, below(gaps, number))
            && !self.replay.knows(known.connection, Once::Answered(before))
        {
            missed[count] = before;
            (count, number) = (count + 1, before);
        }
        self.stats.made_up += count as u64;
        for &number in missed[..count].iter().rev() {
            self.replay.note(now, known.connection, Once::Answered(number));
            let gaps = below(gaps, number);
            self.note_lack(now, known.connection, number, gaps);
            let plan = plan::step(known.epoch, number, gaps, known.burst.into())?;
            let template = if plan.epoch.base == known.epoch.base { TAIL } else { MAIN };
            self.again(now, known, plan.again.numbers(), false)?;
            self.group(now, template, plan.grouped);
            self.group(now, template, plan.fresh);
        }
        Ok(())
    }
}

/// The losses below packet `number`, which is not lost.
fn below(gaps: &[Run], number: u64) -> &[Run] {
    &gaps[..gaps.partition_point(|gap| gap.first < number)]
}
