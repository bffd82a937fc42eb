//! State of a peer that is shown to operators.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::repair::control;
use crate::repair::racks::SliceCount;
use crate::repair::shadow::{Outcome, TRIED};
use crate::repair::stats::LossReport;
use crate::repair::terms::Terms;
use crate::repair::transport::{Cause, Transport};
use crate::time::{Duration, Instant};

/// Peer state other than counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFacts {
    /// Current endpoint.
    pub endpoint: Option<SocketAddr>,
    /// Transport of the datagrams to the endpoint.
    pub transport: Transport,
    /// Reason why this transport is used.
    pub cause: Cause,
    /// Number of handshakes in a row that were not answered over any transport; at most one
    /// a second is sent.
    pub unanswered: u32,
    /// Reason why the peer's host name has no address; set by the caller, which resolves
    /// names.
    pub unresolved: Option<String>,
    /// Time of the last authentic message; `None` before the first.
    pub heard_at: Option<Instant>,
    /// Time of the last handshake.
    pub handshake_at: Option<Instant>,
    /// Terms last received.
    pub terms: Option<Arc<Terms>>,
    /// Mismatch between the peer's terms and this config.
    pub disagreement: Option<String>,
    /// Protocol version of datagrams that came from the peer's endpoint within the last minute, if
    /// it differs from this gateway's version. The source of these datagrams may be forged.
    pub other_version: Option<u8>,
    /// Value to which the path lowers the MSS of SYNs, for IPv4 and IPv6.
    pub lowered_mss: [Option<u16>; 2],
    /// State of the controller, if the code adapts to the losses.
    pub control: Option<control::State>,
    /// Outcomes that each trial code would have had, if the link is only observed.
    pub trials: Option<[Outcome; TRIED.len()]>,
    /// Slices that the peer owns, if it is a member of a rack.
    pub slices: Option<SliceCount>,
    /// Number of lanes.
    pub lanes: usize,
    /// Number of lanes that have no session, or whose peer is silent.
    pub lanes_down: usize,
    /// Paths to the peer; empty if there is only one.
    pub paths: Vec<PathFacts>,
}

/// State of one of several paths to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathFacts {
    /// Index of the path.
    pub path: u8,
    /// True if the path carries datagrams in both directions.
    pub is_up: bool,
    /// Round-trip time; `None` until it is measured.
    pub rtt: Option<Duration>,
    /// Index of the path over which repairs of this path's packets are sent.
    pub via: u8,
    /// Number of packets that were sent over this path.
    pub packets: u64,
    /// Losses among the peer's packets.
    pub incoming: LossReport,
    /// Losses among the packets to the peer, as the peer reports them.
    pub outgoing: LossReport,
}

impl PeerFacts {
    /// Adds the facts of further lanes of the peer. Facts that cannot be added, such as the
    /// endpoint, are taken from a lane that is down, if there is one.
    pub fn merge(&mut self, more: PeerFacts) {
        let is_shown = self.lanes == 0 || more.lanes_down > 0 && self.lanes_down == 0;
        let lanes = self.lanes + more.lanes;
        let lanes_down = self.lanes_down + more.lanes_down;
        let control = control::State::combined(self.control, more.control);
        let trials = match (self.trials, more.trials) {
            (Some(a), Some(b)) => Some(std::array::from_fn(|at| a[at].plus(&b[at]))),
            (a, b) => a.or(b),
        };
        let paths = [&self.paths[..], &more.paths].concat();
        if is_shown {
            *self = more;
        }
        *self = PeerFacts { lanes, lanes_down, control, trials, paths, ..std::mem::take(self) };
    }
}
