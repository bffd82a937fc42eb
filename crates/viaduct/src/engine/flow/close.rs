//! Last phase of a flow with a broken end. Bytes received from that end are still delivered to the
//! other end, which is then reset. For example, a server that answers and closes while more of the
//! request is in flight resets its connection, but its answer must still reach the client. Bytes
//! for the broken end are discarded. If there are no bytes for the other end, the reset follows
//! immediately.

use std::io;
use std::time::Duration;

use viaduct_proto::time::Instant;

use super::state::State;
use super::{End, Flow, Middle, Moved, Shared};
use crate::engine::chain_io::Stage;
use crate::engine::conn::Conn;
use crate::engine::destination::error_of;

/// Time without progress after which the other end is reset.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of checks whether the other end has received all bytes.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// State of a flow with a broken end.
#[derive(Debug)]
pub(super) struct Closing {
    error: io::Error,
    /// End that broke, if known.
    end: Option<End>,
    /// Bytes that the other end has not received.
    left: u64,
    /// Time of the last progress.
    since: Instant,
    /// Time of the next check.
    pub(super) next_check: Instant,
}

impl Flow {
    /// Puts the flow into the closing state, because of `error`.
    pub(super) fn start_closing(&mut self, error: io::Error, now: Instant) {
        let ends = [End::Client, End::Server];
        let noted = ends.into_iter().find(|end| self.ends[*end as usize].is_broken);
        let end = match &mut self.middle {
            // The end may have broken before there was anything to move.
            Middle::Relay(relay) => {
                if let Some(end) = noted {
                    relay.set_broken(end);
                }
                relay.broken()
            }
            Middle::Chain(chain_io) => noted.or(Some(match chain_io.stage() {
                Stage::Failed(_) => End::Server,
                Stage::Opening | Stage::Open => End::Client,
            })),
        };
        let closing = Closing { error, end, left: u64::MAX, since: now, next_check: now };
        self.state = State::Closing(closing);
    }

    /// Error of the handlers, if they gave up after the flow was established.
    pub(super) fn chain_error(&self) -> Option<io::Error> {
        match self.stage() {
            Stage::Failed(why) if self.is_established() => Some(error_of(why)),
            _ => None,
        }
    }

    /// Delivers the remaining bytes of the broken end. `Err`, with the flow's error, once the other
    /// end has received all of them or has accepted none for [`RESET_TIMEOUT`]. If there are
    /// handlers, the first such timeout makes them abort, and the time starts again.
    pub(super) fn deliver_rest(
        &mut self,
        shared: &mut Shared,
        mut moved: Moved,
        now: Instant,
    ) -> io::Result<Moved> {
        let before = (moved.bytes, moved.written);
        let left = self.undelivered(shared, &mut moved, now);
        let state = std::mem::replace(&mut self.state, State::Established);
        let State::Closing(mut closing) = state else { return Ok(moved) };
        // Moved bytes count as progress, too: `left` need not shrink while bytes of the broken end
        // refill the pipe.
        if left < closing.left || (moved.bytes, moved.written) != before {
            (closing.left, closing.since) = (left, now);
        }
        let is_late = now.since(closing.since) > RESET_TIMEOUT;
        if left == 0 || is_late && !self.aborts(now) {
            return Err(closing.error);
        }
        if is_late {
            closing.since = now;
        }
        closing.next_check = now + CHECK_INTERVAL;
        self.state = State::Closing(closing);
        Ok(moved)
    }

    /// Makes the handlers abort towards the other end, even if their data is still queued. Returns
    /// false if there are no handlers, or if they were already told to abort.
    fn aborts(&mut self, now: Instant) -> bool {
        match &mut self.middle {
            Middle::Chain(chain_io) => chain_io.abort(now),
            Middle::Relay(_) => false,
        }
    }

    /// Number of bytes that are not delivered yet, here and in flight.
    fn undelivered(&mut self, shared: &mut Shared, moved: &mut Moved, now: Instant) -> u64 {
        let State::Closing(Closing { end: broken, .. }) = self.state else { return 0 };
        // Preface bytes for the other end must be sent first.
        let living: &[End] = match broken {
            Some(End::Client) => &[End::Server],
            Some(End::Server) => &[End::Client],
            None => &[End::Client, End::Server],
        };
        for &end in living {
            let end = &mut self.ends[end as usize];
            match end.send_preface() {
                Ok(true) => {}
                Ok(false) => return end.preface_out.len() as u64,
                Err(_) => return 0,
            }
        }
        let [client, server] = self.ends.each_mut().map(|end| end.conn.as_mut());
        let here = match &mut self.middle {
            Middle::Chain(chain_io) => {
                chain_io.deliver_rest([client, server], &mut shared.scratch, moved, now)
            }
            Middle::Relay(relay) => {
                let [client, server] =
                    [client, server].map(|conn| conn.and_then(|conn| conn.tcp()));
                client.zip(server).map_or(0, |(client, server)| {
                    relay.deliver_rest([client, server], &mut shared.pipes, &mut moved.bytes)
                })
            }
        };
        let to = living.iter().filter_map(|&end| self.ends[end as usize].conn.as_ref());
        here + to.map(Conn::unacknowledged).sum::<u64>()
    }
}
