//! Needs of this receiver: repairs and names to be requested from the peer.

use super::known::Known;
use super::repairs::Repairs;
use crate::fec::Seq;
use crate::repair::ledger::State;
use crate::repair::requests::{Requests, Times};
use crate::repair::section::Need;
use crate::repair::unnamed::Unnamed;
use crate::time::{Duration, Instant};

/// Times assumed until they are measured or reported.
const USUAL_WAIT: Duration = Duration::from_millis(25);
const USUAL_RTT: Duration = Duration::from_millis(100);

/// Missing packets and names, and the times at which they are requested.
pub(in crate::repair) struct Needs {
    pub(super) requests: Requests,
    pub(super) unnamed: Unnamed,
    pub(in crate::repair) times: Times,
}

impl Needs {
    /// Creates the state of a receiver without missing packets or names.
    pub(super) fn new() -> Self {
        Needs {
            requests: Requests::default(),
            unnamed: Unnamed::default(),
            times: Times { wait: USUAL_WAIT, rtt: USUAL_RTT },
        }
    }

    /// Records that packet `seq` has arrived or was recovered; returns whether it was missing for
    /// longer than flows can wait.
    pub(super) fn here(&mut self, now: Instant, seq: Seq) -> bool {
        self.requests.here(now, seq).is_some_and(|missed| missed > self.times.wait)
    }

    /// Forgets packets that are too old, or below `floor`; returns whether there were such packets.
    pub(super) fn expire(&mut self, now: Instant, floor: Seq) -> bool {
        self.requests.expire(now, floor) > 0
    }

    /// Returns whether no packet or name is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.unnamed.is_empty()
    }

    /// Time of the next possible request.
    pub(super) fn due(&self, repairs: &Repairs) -> Option<Instant> {
        let requests = self.requests.due(self.times, self.expected(repairs));
        [requests, self.unnamed.due(self.times.rtt)].into_iter().flatten().min()
    }

    pub(super) fn next(&mut self, now: Instant, known: &Known, repairs: &Repairs) -> Option<Need> {
        let expected = self.expected(repairs);
        let Needs { requests, unnamed, times } = self;
        let is_named = |seq| known.ledger.row(seq).is_none_or(|row| row.state != State::Unnamed);
        let held = |first, last| repairs.decoder.equations_within(first, last);
        let names = unnamed.ask(now, times.rtt, is_named);
        names
            .or_else(|| requests.ask_early(now, expected))
            .or_else(|| requests.ask(now, *times, held, |seq| known.is_given_up(seq)))
    }

    /// Number of equations held for packets not requested yet, plus the number of repairs expected
    /// while flows can wait.
    fn expected(&self, repairs: &Repairs) -> usize {
        let held = self
            .requests
            .fresh()
            .map_or(0, |(first, last)| repairs.decoder.equations_within(first, last));
        held + repairs.in_flight.within(self.times.wait)
    }
}
