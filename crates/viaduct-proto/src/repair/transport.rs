//! Transports between two gateways, and the selection of one.
//!
//! ```text
//!   start, silence ─▶ handshake over UDP ─▶ no answer ─▶ over UDP and fake TCP at the same time
//!                                                          │ the first answer creates the session
//!   session over fake TCP ─▶ every 10 s to 16 min: a handshake over UDP ─▶ answered: back to UDP
//! ```
//!
//! An answered handshake proves that a transport works in both directions. The resulting session
//! belongs to this transport. The peer changes to this transport when the session is used, so both
//! gateways send over the same transport without further messages.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::time::{Duration, Instant};

/// Transport of datagrams between gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// UDP.
    #[default]
    Udp,
    /// Packets that look like TCP ([`crate::fake_tcp`]).
    FakeTcp,
}

impl Transport {
    /// All transports, in order of preference.
    pub const ALL: [Transport; 2] = [Transport::Udp, Transport::FakeTcp];

    /// Bytes of headers in addition to those of a datagram over UDP.
    pub(super) fn more_headers(self) -> usize {
        match self {
            Transport::Udp => 0,
            Transport::FakeTcp => crate::fake_tcp::MORE_THAN_UDP,
        }
    }

    /// Name in a config, and in the status.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::FakeTcp => "fake-tcp",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Address of a gateway, and the transport over which it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Transport.
    pub transport: Transport,
    /// Address and port.
    pub address: SocketAddr,
}

impl From<SocketAddr> for Endpoint {
    /// Endpoint over UDP.
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint { transport: Transport::Udp, address }
    }
}

/// Transports that may be used for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// UDP while it works, otherwise fake TCP.
    #[default]
    Auto,
    /// Single transport.
    Only(Transport),
    /// No datagrams at all: there are no repairs.
    None,
}

/// Reason why the current transport is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The config says so, or nothing else was tried.
    #[default]
    Config,
    /// Handshakes over UDP were not answered.
    Unanswered,
    /// Handshakes over UDP were answered, but many datagrams over UDP were dropped.
    Throttled,
    /// A handshake over UDP was answered again.
    Answered,
    /// The peer has selected the transport.
    Peer,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::Config => "as configured",
            Cause::Unanswered => "UDP is not answered",
            Cause::Throttled => "UDP is throttled",
            Cause::Answered => "UDP is answered again",
            Cause::Peer => "the peer has chosen it",
        })
    }
}

/// Time from the change to fake TCP to the first probe of UDP. The interval to the next probe
/// doubles with each probe.
const FIRST_PROBE: Duration = Duration::from_secs(10);
/// Maximum interval of probes, doubled for each time in a row that UDP failed soon after a return.
const MAX_PROBE: Duration = Duration::from_secs(60);
/// Time for which UDP must work after a return to it: if UDP fails sooner, it is probed less often.
const STEADY: Duration = Duration::from_secs(600);
/// Binary logarithm of the maximum factor by which the interval of probes grows.
const MAX_BACKOFF: u32 = 4;

/// Number of handshakes for which throttled UDP is avoided.
const AVOIDING: u32 = 3;

/// Selection of the transport for one peer.
#[derive(Debug)]
pub(super) struct Selector {
    choice: TransportChoice,
    pub(super) current: Transport,
    pub(super) cause: Cause,
    /// Number of handshakes since the last answer.
    unanswered: u32,
    /// True if UDP is throttled: the first handshakes then avoid it.
    avoids_udp: bool,
    /// True if the peer does not receive this gateway's datagrams, although this gateway receives
    /// the peer's.
    unheard: bool,
    /// Time of the next probe of UDP, and the interval from this probe to the following one.
    probe: Option<(Instant, Duration)>,
    /// Time of the last return to UDP.
    returned: Option<Instant>,
    /// Number of times in a row that UDP failed soon after a return.
    failures: u32,
}

impl Selector {
    pub(super) fn new(choice: TransportChoice) -> Selector {
        let current = match choice {
            TransportChoice::Auto | TransportChoice::None => Transport::Udp,
            TransportChoice::Only(only) => only,
        };
        let (probe, returned, cause) = Default::default();
        let (unanswered, avoids_udp, unheard, failures) = Default::default();
        Selector {
            choice,
            current,
            cause,
            unanswered,
            avoids_udp,
            unheard,
            probe,
            returned,
            failures,
        }
    }

    /// Returns whether the transport is selected automatically.
    pub(super) fn is_auto(&self) -> bool {
        self.choice == TransportChoice::Auto
    }

    /// Returns whether UDP is used, and may be replaced if it is throttled.
    pub(super) fn may_avoid_udp(&self) -> bool {
        self.is_auto() && self.current == Transport::Udp && !self.avoids_udp
    }

    /// Records that UDP is throttled.
    pub(super) fn avoid_udp(&mut self) {
        self.avoids_udp = true;
    }

    /// Returns whether datagrams over this transport are accepted.
    pub(super) fn allows(&self, transport: Transport) -> bool {
        matches!(self.choice, TransportChoice::Auto)
            || self.choice == TransportChoice::Only(transport)
    }

    /// Transports over which the handshake that is due now is sent. `silent`: the peer does not
    /// answer.
    pub(super) fn handshake(&mut self, silent: bool) -> &'static [Transport] {
        let is_first = self.unanswered == 0 && !silent && !self.unheard;
        self.unanswered = self.unanswered.saturating_add(1);
        match self.choice {
            TransportChoice::Auto if self.avoids_udp && self.unanswered <= AVOIDING => {
                only(Transport::FakeTcp)
            }
            TransportChoice::Auto if !is_first => &Transport::ALL,
            TransportChoice::Auto | TransportChoice::Only(_) => only(self.current),
            TransportChoice::None => &[],
        }
    }

    /// Number of handshakes in a row that were not answered over any transport.
    pub(super) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Returns whether the current attempt at an unanswered handshake is the second, the fourth,
    /// etc.
    pub(super) fn is_even_try(&self) -> bool {
        self.unanswered > 0 && self.unanswered.is_multiple_of(2)
    }

    /// Records that the peer does not receive this gateway's datagrams.
    pub(super) fn set_unheard(&mut self) {
        self.unheard = true;
    }

    /// Records the transport of the session that is now used. `own`: this gateway has started the
    /// session.
    pub(super) fn handle_session(&mut self, now: Instant, transport: Transport, own: bool) {
        (self.unanswered, self.unheard) = (0, false);
        let was_throttled = std::mem::take(&mut self.avoids_udp);
        if transport == self.current || !self.is_auto() {
            return;
        }
        self.current = transport;
        self.cause = match transport {
            _ if was_throttled => Cause::Throttled,
            _ if !own => Cause::Peer,
            Transport::Udp => Cause::Answered,
            Transport::FakeTcp => Cause::Unanswered,
        };
        match transport {
            Transport::Udp => (self.probe, self.returned) = (None, Some(now)),
            Transport::FakeTcp => {
                // A throttle lets handshakes pass, so an answered probe proves little.
                let is_soon =
                    was_throttled || self.returned.is_some_and(|at| now.since(at) < STEADY);
                self.failures = if is_soon { (self.failures + 1).min(MAX_BACKOFF) } else { 0 };
                let first = if is_soon { MAX_PROBE * (1 << self.failures) } else { FIRST_PROBE };
                self.probe = Some((now + first, first * 2));
            }
        }
    }

    /// Takes over the transport of an earlier process.
    pub(super) fn resume(&mut self, now: Instant, transport: Transport, cause: Cause) {
        if !self.is_auto() {
            return;
        }
        (self.current, self.cause) = (transport, cause);
        self.probe = match transport {
            Transport::Udp => None,
            Transport::FakeTcp => Some((now + FIRST_PROBE, FIRST_PROBE * 2)),
        };
    }

    /// Time of the next probe of UDP.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.probe.map(|(at, _)| at)
    }

    /// Returns the transports to be probed now with a handshake.
    pub(super) fn probe(&mut self, now: Instant) -> &'static [Transport] {
        let Some((_, interval)) = self.probe.filter(|(at, _)| *at <= now) else { return &[] };
        let longest = MAX_PROBE * (1 << self.failures);
        let interval = interval.min(longest);
        self.probe = Some((now + interval, interval * 2));
        only(Transport::Udp)
    }
}

fn only(transport: Transport) -> &'static [Transport] {
    match transport {
        Transport::Udp => &[Transport::Udp],
        Transport::FakeTcp => &[Transport::FakeTcp],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::ZERO;

    fn after(seconds: u64) -> Instant {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn fake_tcp_is_tried_when_udp_is_not_answered() {
        let mut selector = Selector::new(TransportChoice::Auto);
        assert_eq!(selector.handshake(false), [Transport::Udp]);
        assert_eq!(selector.handshake(false), Transport::ALL);
        selector.handle_session(START, Transport::Udp, true);
        assert_eq!((selector.current, selector.cause), (Transport::Udp, Cause::Config));
        assert_eq!(selector.handshake(true), Transport::ALL, "after a silence, both together");
        selector.handle_session(START, Transport::FakeTcp, true);
        assert_eq!((selector.current, selector.cause), (Transport::FakeTcp, Cause::Unanswered));
        assert_eq!(selector.handshake(false), [Transport::FakeTcp], "a later re-keying");
    }

    #[test]
    fn udp_is_probed_after_ten_seconds_and_then_less_often() {
        let mut selector = Selector::new(TransportChoice::Auto);
        selector.handle_session(START, Transport::FakeTcp, true);
        let mut probes = Vec::new();
        for second in 0..200 {
            if !selector.probe(after(second)).is_empty() {
                probes.push(second);
            }
        }
        assert_eq!(probes, [10, 30, 70, 130, 190]);
        selector.handle_session(after(200), Transport::Udp, true);
        assert_eq!((selector.poll_timeout(), selector.cause), (None, Cause::Answered));
        // UDP fails soon after its return, twice.
        selector.handle_session(after(210), Transport::FakeTcp, true);
        assert_eq!(selector.poll_timeout(), Some(after(210 + 120)));
        selector.handle_session(after(330), Transport::Udp, true);
        selector.handle_session(after(340), Transport::FakeTcp, true);
        assert_eq!(selector.poll_timeout(), Some(after(340 + 240)));
        selector.handle_session(after(580), Transport::Udp, true);
        selector.handle_session(after(1_580), Transport::FakeTcp, true);
        assert_eq!(selector.poll_timeout(), Some(after(1_590)), "UDP had been steady");
    }

    #[test]
    fn throttled_udp_is_avoided_for_minutes() {
        let mut selector = Selector::new(TransportChoice::Auto);
        assert!(selector.may_avoid_udp());
        selector.avoid_udp();
        assert!(!selector.may_avoid_udp());
        for _ in 0..AVOIDING {
            assert_eq!(selector.handshake(false), [Transport::FakeTcp]);
        }
        assert_eq!(selector.handshake(false), Transport::ALL, "the peer may not accept it");
        selector.handle_session(START, Transport::FakeTcp, false);
        assert_eq!((selector.current, selector.cause), (Transport::FakeTcp, Cause::Throttled));
        assert_eq!(selector.poll_timeout(), Some(after(120)));
    }

    #[test]
    fn a_configured_transport_stays() {
        for only in Transport::ALL {
            let mut selector = Selector::new(TransportChoice::Only(only));
            for silent in [false, true, true] {
                assert_eq!(selector.handshake(silent), [only]);
            }
            selector.handle_session(START, Transport::Udp, true);
            assert_eq!((selector.current, selector.poll_timeout()), (only, None));
            assert!(selector.allows(only));
        }
    }

    #[test]
    fn without_a_transport_nothing_is_sent_or_accepted() {
        let mut selector = Selector::new(TransportChoice::None);
        assert_eq!((selector.handshake(false), selector.handshake(true)), (&[][..], &[][..]));
        assert!(selector.probe(after(1_000)).is_empty());
        assert!(Transport::ALL.iter().all(|transport| !selector.allows(*transport)));
    }
}
