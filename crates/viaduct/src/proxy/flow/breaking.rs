//! How a flow breaks: what the end that broke has said before still comes to the other end, which is reset behind it.
//! So ends a server that answers and closes, with more of a request on its way: its answer is not to be lost. Bytes for
//! the end that broke are nothing to wait for: without any for the other the reset goes on at once.

use std::io;
use std::time::Duration;

use viaduct_proto::time::Instant;

use super::{End, Flow, Middle, Moved, Shared, Stage};
use crate::proxy::leg::Leg;
use crate::proxy::target::error_of;

/// The other end is reset when it has taken nothing of it for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often is looked whether it has taken all.
const LOOK: Duration = Duration::from_millis(5);

/// What is known of a flow that breaks.
#[derive(Debug)]
pub(super) struct Breaking {
    error: io::Error,
    /// The end that broke, as far as is known.
    end: Option<End>,
    /// Bytes that the other end has not taken.
    left: u64,
    /// When it took some.
    since: Instant,
    /// When to look again.
    pub(super) look: Instant,
}

impl Flow {
    /// It breaks from now on, for this reason.
    pub(super) fn breaks(&mut self, error: io::Error, now: Instant) {
        let end = match &mut self.middle {
            // It may have broken before there was anything to move.
            Middle::Relay(relay) => {
                if let Some(end) = self.broken_end {
                    relay.set_broken(end);
                }
                relay.broken()
            }
            Middle::Through(through) => self.broken_end.or(Some(match through.stage() {
                Stage::Failed(_) => End::Server,
                Stage::Opening | Stage::Open => End::Client,
            })),
        };
        self.breaking = Some(Breaking { error, end, left: u64::MAX, since: now, look: now });
    }

    /// Whether its handlers have given up, though it was there.
    pub(super) fn given_up(&self) -> Option<io::Error> {
        match self.stage() {
            Stage::Failed(why) if self.risen => Some(error_of(why)),
            _ => None,
        }
    }

    /// Moves on what the end that broke has said. `Err`: the other end has it, or takes none of it.
    pub(super) fn last_words(
        &mut self,
        shared: &mut Shared,
        mut moved: Moved,
        now: Instant,
    ) -> io::Result<Moved> {
        let left = self.say_last(shared, &mut moved, now);
        let Some(mut breaking) = self.breaking.take() else { return Ok(moved) };
        if left < breaking.left {
            (breaking.left, breaking.since) = (left, now);
        }
        if left == 0 {
            return Err(breaking.error);
        }
        if now.since(breaking.since) > PATIENCE {
            if !self.aborts(now) {
                return Err(breaking.error);
            }
            breaking.since = now;
        }
        breaking.look = now + LOOK;
        self.breaking = Some(breaking);
        Ok(moved)
    }

    /// Has its handlers tell the other end, though what they hold does not move; whether they are still to.
    fn aborts(&mut self, now: Instant) -> bool {
        match &mut self.middle {
            Middle::Through(through) => through.abort(now),
            Middle::Relay(_) => false,
        }
    }

    /// Bytes that are left of it, here and on their way.
    fn say_last(&mut self, shared: &mut Shared, moved: &mut Moved, now: Instant) -> u64 {
        if !self.connected {
            return 0;
        }
        let broken = self.breaking.as_ref().and_then(|breaking| breaking.end);
        // What goes to the other end before all else comes first now, too.
        let living: &[End] = match broken {
            Some(End::Client) => &[End::Server],
            Some(End::Server) => &[End::Client],
            None => &[End::Client, End::Server],
        };
        for &end in living {
            match self.say_first(end) {
                Ok(true) => {}
                Ok(false) => return self.first[end as usize].len() as u64,
                Err(_) => return 0,
            }
        }
        let here = match (&mut self.middle, &mut self.legs) {
            (Middle::Through(through), [client, server]) => {
                through.last_words([client.as_mut(), server.as_mut()], &mut shared.scratch, now)
            }
            (Middle::Relay(relay), [Some(client), Some(server)]) => {
                match (client.tcp(), server.tcp()) {
                    (Some(client), Some(server)) => {
                        relay.last_words([client, server], &mut shared.pipes, &mut moved.bytes)
                    }
                    _ => 0,
                }
            }
            (Middle::Relay(_), _) => 0,
        };
        let to = living.iter().filter_map(|&end| self.legs[end as usize].as_ref());
        here + to.map(Leg::unacknowledged).sum::<u64>()
    }
}
