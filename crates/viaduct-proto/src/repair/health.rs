//! Health of a peer: whether losses occur and are recovered, rather than whether a session is up.
//!
//! ```text
//!   counters, once a second ─▶ increments over the last half minute ─▶ State
//!                                up │ up, nothing recovered: … │ degraded: … │ down: …
//! ```

use std::collections::VecDeque;

use super::peer::PeerFacts;
use super::stats::{LossReport, PeerStats};
use super::wire::VERSION;
use crate::health::State;
use crate::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(30);
/// Minimum number of packets from which a share is computed.
const MIN_SAMPLE: u64 = 20;
/// Minimum number of losses before a peer without recoveries is reported.
const MIN_LOST: u64 = 5;
/// Percentage of lost packets at which the path counts as misconfigured: packets arrive altered, or
/// do not arrive at this gateway at all.
const TOTAL_LOSS_PERCENT: u64 = 95;

/// Counters of one peer over the last half minute.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Counters, and the time at which they first had these values; no entry is added while all
    /// counters stay the same.
    seen: VecDeque<(Instant, Counts)>,
}

/// Counters that the state depends on, or their increments within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    into: Losses,
    out: Losses,
    arrived: u64,
    /// Number of packets that arrived and that the peer must announce.
    announced: u64,
    sent: u64,
    unprotected: u64,
    foreign: u64,
    repairs: u64,
}

/// Losses of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Losses {
    covered: u64,
    lost: u64,
    recovered: u64,
}

impl Health {
    /// Adds this second's counters and returns the peer's state. `trouble`: a problem of the WAN
    /// itself.
    pub fn look(
        &mut self,
        now: Instant,
        stats: &PeerStats,
        facts: &PeerFacts,
        trouble: Option<&str>,
    ) -> State {
        if trouble.is_none() && !stats.up {
            self.seen.clear();
            return State::Down(with_last(now, &silence(facts), facts));
        }
        // The first entry has the counters at the beginning of the window.
        while self.seen.get(1).is_some_and(|(at, _)| now.since(*at) > WINDOW) {
            self.seen.pop_front();
        }
        let counts = Counts::of(stats);
        let before = self.seen.front().map_or(counts, |(_, before)| *before);
        if self.seen.back().is_none_or(|(_, last)| *last != counts) {
            self.seen.push_back((now, counts));
        }
        match trouble {
            Some(trouble) => State::Down(with_last(now, trouble, facts)),
            None => counts.since(&before).judge(facts),
        }
    }
}

impl Losses {
    fn of(report: &LossReport) -> Losses {
        let LossReport { covered, lost, recovered, .. } = *report;
        Losses { covered, lost, recovered }
    }

    fn since(&self, before: &Losses) -> Losses {
        Losses {
            covered: self.covered.saturating_sub(before.covered),
            lost: self.lost.saturating_sub(before.lost),
            recovered: self.recovered.saturating_sub(before.recovered),
        }
    }
}

impl Counts {
    fn of(stats: &PeerStats) -> Counts {
        let PeerStats { sender, receiver, reported, .. } = stats;
        Counts {
            into: Losses::of(&receiver.link),
            out: Losses::of(reported),
            arrived: receiver.packets,
            announced: receiver.packets.saturating_sub(receiver.acks),
            sent: sender.packets,
            unprotected: sender.unprotected,
            foreign: receiver.foreign,
            repairs: receiver.repairs,
        }
    }

    /// Increments since `before`.
    fn since(&self, before: &Counts) -> Counts {
        Counts {
            into: self.into.since(&before.into),
            out: self.out.since(&before.out),
            arrived: self.arrived.saturating_sub(before.arrived),
            announced: self.announced.saturating_sub(before.announced),
            sent: self.sent.saturating_sub(before.sent),
            unprotected: self.unprotected.saturating_sub(before.unprotected),
            foreign: self.foreign.saturating_sub(before.foreign),
            repairs: self.repairs.saturating_sub(before.repairs),
        }
    }

    fn judge(&self, facts: &PeerFacts) -> State {
        let state = self.misconfigured(facts).or_else(|| self.unrecovered());
        state.or_else(|| self.unprotected(facts)).unwrap_or(State::Up)
    }

    /// State if the two configs or the path between the gateways are wrong.
    fn misconfigured(&self, facts: &PeerFacts) -> Option<State> {
        let Counts { into, out, .. } = self;
        let wrong = |reason: String| match useless(into) || useless(out) {
            true => Some(State::Useless(reason)),
            false => Some(State::Degraded(reason)),
        };
        if let Some(disagreement) = &facts.disagreement {
            return wrong(disagreement.clone());
        }
        if self.foreign > 0 {
            return wrong(format!(
                "{} recoveries were between addresses of other sites: do both configs have the \
                 same prefixes?",
                self.foreign
            ));
        }
        if all_lost(into) {
            return wrong(match self.arrived {
                0 => "every packet of the peer's site counts as lost, and none arrives here with \
                      its addresses: is there NAT on the WAN, or another route?"
                    .to_owned(),
                _ => "every packet of the peer's site counts as lost, though some arrive: does \
                      something on the way alter them?"
                    .to_owned(),
            });
        }
        if all_lost(out) {
            return wrong(
                "the peer counts every packet from here as lost: is there NAT on the WAN, or \
                 another route there?"
                    .to_owned(),
            );
        }
        None
    }

    /// State if too few of the lost packets are recovered.
    fn unrecovered(&self) -> Option<State> {
        let directions = [(&self.into, "of the peer's site"), (&self.out, "from here")];
        if let Some((loss, whose)) = directions.into_iter().find(|(loss, _)| useless(loss)) {
            return Some(State::Useless(format!(
                "{} packets {whose} were lost in the last half minute, too many at a time for the \
                 code",
                loss.lost
            )));
        }
        let (loss, whose) = directions.into_iter().find(|(loss, _)| poor(loss))?;
        let share = loss.recovered * 100 / loss.lost.max(1);
        Some(State::Degraded(format!(
            "{share} % of the lost packets {whose} are recovered: {} of {}",
            loss.recovered, loss.lost
        )))
    }

    /// State if many packets are sent without repairs.
    fn unprotected(&self, facts: &PeerFacts) -> Option<State> {
        if self.sent >= MIN_SAMPLE && self.unprotected * 2 > self.sent {
            return Some(State::Degraded(format!(
                "{} of {} packets were sent unprotected: too long for a repair to fit the MTU",
                self.unprotected, self.sent
            )));
        }
        let code = facts.terms.as_ref().map(|terms| &terms.code[..]);
        if self.sent >= MIN_SAMPLE && self.arrived >= MIN_SAMPLE && code == Some("none") {
            return Some(State::Degraded(
                "the peer's code is none: packets lost on the way here are not recovered"
                    .to_owned(),
            ));
        }
        let encodes = code.is_some_and(|code| code != "none");
        // On a link without losses, a peer sends only names.
        let is_silent = self.repairs == 0 && self.into.covered == 0;
        if self.announced >= 10 * MIN_SAMPLE && is_silent && encodes {
            return Some(State::Degraded(
                "packets of the peer's site arrive, but no repairs of them".to_owned(),
            ));
        }
        None
    }
}

/// Returns whether there were losses and no recoveries.
fn useless(loss: &Losses) -> bool {
    loss.lost >= MIN_LOST && loss.recovered == 0
}

fn all_lost(loss: &Losses) -> bool {
    loss.covered >= MIN_SAMPLE && loss.lost * 100 >= loss.covered * TOTAL_LOSS_PERCENT
}

/// Returns whether less than half of the losses are recovered.
fn poor(loss: &Losses) -> bool {
    loss.lost >= MIN_SAMPLE && loss.recovered * 2 < loss.lost
}

fn silence(facts: &PeerFacts) -> String {
    if let Some(unresolved) = &facts.unresolved {
        return unresolved.clone();
    }
    if let Some(version) = facts.other_version {
        return format!(
            "datagrams of version {version} of the protocol come from its address, and this \
                gateway \
             speaks {VERSION}: both need the same program"
        );
    }
    match (facts.endpoint, facts.heard_at) {
        (_, Some(_)) => "it does not answer any more".to_owned(),
        (Some(at), None) => format!(
            "no answer from {at}: does its gateway run, and do firewalls let UDP through, both \
                ways?"
        ),
        (None, None) => {
            "it has sent no handshake: does its config have this site's endpoint?".to_owned()
        }
    }
}

fn with_last(now: Instant, reason: &str, facts: &PeerFacts) -> String {
    match facts.handshake_at {
        Some(at) => format!("{reason}, last handshake {} s ago", now.since(at).as_secs()),
        None => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::terms::Terms;

    /// State of a peer whose counters change by `each` every second.
    fn run(each: impl Fn(&mut PeerStats), facts: &PeerFacts) -> State {
        let (mut health, mut stats, mut now) =
            (Health::default(), PeerStats { up: true, ..PeerStats::default() }, Instant::ZERO);
        let mut state = State::Up;
        for _ in 0..20 {
            state = health.look(now, &stats, facts, None);
            each(&mut stats);
            now += Duration::from_secs(1);
        }
        state
    }

    fn link(loss: &mut LossReport, covered: u64, lost: u64, recovered: u64) {
        (loss.covered, loss.lost, loss.recovered) =
            (loss.covered + covered, loss.lost + lost, loss.recovered + recovered);
    }

    #[test]
    fn a_peer_is_up_if_losses_are_recovered_or_there_are_none() {
        let facts = PeerFacts::default();
        assert_eq!(run(|stats| link(&mut stats.receiver.link, 100, 0, 0), &facts), State::Up);
        assert_eq!(run(|stats| link(&mut stats.receiver.link, 100, 9, 8), &facts), State::Up);
        assert_eq!(run(|_| (), &facts), State::Up);
    }

    #[test]
    fn a_session_that_recovers_nothing_has_a_reason() {
        let facts = PeerFacts::default();
        let nat = run(|stats| link(&mut stats.receiver.link, 100, 100, 0), &facts);
        assert!(matches!(&nat, State::Useless(why) if why.contains("NAT")), "{nat}");
        let altered = |stats: &mut PeerStats| {
            link(&mut stats.receiver.link, 100, 100, 3);
            stats.receiver.packets += 100;
        };
        let altered = run(altered, &facts);
        assert!(matches!(&altered, State::Degraded(why) if why.contains("alter")), "{altered}");
        let there = run(|stats| link(&mut stats.reported, 100, 99, 0), &facts);
        assert!(there.to_string().starts_with("up, nothing recovered: the peer counts"), "{there}");
        let bursts = run(|stats| link(&mut stats.receiver.link, 100, 30, 0), &facts);
        assert!(matches!(&bursts, State::Useless(why) if why.contains("too many")), "{bursts}");
        let some = run(|stats| link(&mut stats.receiver.link, 100, 30, 9), &facts);
        assert!(some.to_string().starts_with("degraded: 30 % of the lost"), "{some}");
        let foreign = run(|stats| stats.receiver.foreign += 1, &facts);
        assert!(matches!(&foreign, State::Degraded(why) if why.contains("prefixes")), "{foreign}");
    }

    #[test]
    fn unannounced_packets_are_reported() {
        let terms = Terms { code: "auto".to_owned(), ..Terms::default() };
        let facts = PeerFacts { terms: Some(terms.into()), ..PeerFacts::default() };
        let silent = run(|stats| stats.receiver.packets += 100, &facts);
        assert!(matches!(&silent, State::Degraded(why) if why.contains("no repairs")), "{silent}");
        let acks = |stats: &mut PeerStats| {
            (stats.receiver.packets, stats.receiver.acks) =
                (stats.receiver.packets + 101, stats.receiver.acks + 100);
        };
        assert_eq!(run(acks, &facts), State::Up);
        let named = |stats: &mut PeerStats| {
            stats.receiver.packets += 100;
            link(&mut stats.receiver.link, 100, 0, 0);
        };
        assert_eq!(run(named, &facts), State::Up);
    }

    #[test]
    fn the_state_covers_the_last_half_minute_and_idle_peers_take_no_memory() {
        let (mut health, facts) = (Health::default(), PeerFacts::default());
        let mut stats = PeerStats { up: true, ..PeerStats::default() };
        let at = |second| Instant::ZERO + Duration::from_secs(second);
        health.look(at(0), &stats, &facts, None);
        link(&mut stats.receiver.link, 100, 30, 0);
        let states: Vec<_> =
            (1..99).map(|second| health.look(at(second), &stats, &facts, None).is_up()).collect();
        assert_eq!(states.iter().position(|is_up| *is_up), Some(31), "{states:?}");
        assert_eq!(health.seen.len(), 1);
    }

    #[test]
    fn prefixes_that_disagree_are_the_reason() {
        let disagreement = Some("prefixes disagree: x".to_owned());
        let facts = PeerFacts { disagreement, ..PeerFacts::default() };
        assert_eq!(run(|_| (), &facts).to_string(), "degraded: prefixes disagree: x");
    }

    #[test]
    fn a_peer_that_is_down_has_a_reason_and_a_time() {
        let look = |facts: &PeerFacts, trouble| {
            let now = Instant::ZERO + Duration::from_secs(90);
            Health::default().look(now, &PeerStats::default(), facts, trouble).to_string()
        };
        let never =
            PeerFacts { endpoint: Some(([192, 0, 2, 1], 7400).into()), ..Default::default() };
        assert_eq!(
            look(&never, None),
            "down: no answer from 192.0.2.1:7400: does its gateway run, and do firewalls let UDP \
                through, both \
             ways?"
        );
        let heard = PeerFacts { handshake_at: Some(Instant::ZERO), ..never.clone() };
        assert_eq!(
            look(&heard, Some("wan0 is down")),
            "down: wan0 is down, last handshake 90 s ago"
        );
        let old = PeerFacts { other_version: Some(1), ..never };
        assert!(look(&old, None).contains("of version 1"));
        let unresolved = Some("oslo.example is not resolved: no such host".to_owned());
        let unresolved = PeerFacts { unresolved, ..PeerFacts::default() };
        assert!(look(&unresolved, None).starts_with("down: oslo.example is not resolved"));
        assert!(look(&PeerFacts::default(), None).contains("it has sent no handshake"));
    }
}
