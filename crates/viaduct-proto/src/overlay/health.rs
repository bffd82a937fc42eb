//! Health of a peer, determined from the results of probes of the path to the peer.

use super::prober::{Prober, State as Path};
use crate::health::State;
use crate::time::Instant;

/// Probes needed before the loss is evaluated.
const MIN_SAMPLE: usize = 20;
/// Minimum share of lost probes at which a path is degraded.
const MAX_LOSS: f64 = 0.1;
/// Number of probe intervals within which a live peer has probed this node.
const CALLS_WITHIN: u32 = 4;

/// State of the peer that `of` probes. `called` is the time of the peer's own last probe of this
/// node. `by` is the node through which flows to the peer are sent, if they are not sent directly.
pub(super) fn state_of(
    now: Instant,
    of: &Prober,
    called: Option<Instant>,
    by: Option<&str>,
) -> State {
    if of.state == Path::Up {
        let (lost, count) = (of.loss(), of.counted());
        return match count >= MIN_SAMPLE && lost >= MAX_LOSS {
            true => State::Degraded(format!(
                "{:.0} % of the last {count} probes were lost",
                lost * 100.0
            )),
            false => State::Up,
        };
    }
    let last = match of.last_answer {
        Some(at) => format!("last answer {} s ago", now.since(at).as_secs()),
        None => "no answer yet".to_owned(),
    };
    if let Some(node) = by {
        return State::Degraded(format!(
            "the direct path is down, {last}; flows go through {node}"
        ));
    }
    // If a peer stops, its last probe is at most two intervals later than its last answer. A later
    // probe means that the peer still runs.
    let since = of.last_answer.map_or(Instant::ZERO, |at| at + 2 * of.timing.interval);
    let calls =
        called.is_some_and(|at| at > since && now.since(at) < CALLS_WITHIN * of.timing.interval);
    let reason = match (calls, of.last_answer) {
        (true, _) => {
            "its probes arrive, and it does not answer ours: is its endpoint here right, and its \
                firewall open?"
        }
        (_, Some(_)) => "it does not answer any more",
        (_, None) => "nothing has been received from it",
    };
    State::Down(format!("{reason}, {last}"))
}

#[cfg(test)]
mod tests {
    use super::super::prober::Timing;
    use super::*;
    use crate::time::Duration;

    const STEP: Duration = Duration::from_millis(250);

    /// State after `steps` steps, in which `answers` decides which probes are answered.
    fn run(
        steps: u64,
        answers: impl Fn(u64) -> bool,
    ) -> impl Fn(Option<Instant>, Option<&str>) -> String {
        let mut now = Instant::ZERO;
        let mut prober = Prober::new(Timing::default(), now);
        for step in 0..steps {
            prober.look(now);
            if prober.probes(now, step, 0.5) && answers(step) {
                prober.answered(now, step);
            }
            now += STEP;
        }
        move |called, by| state_of(now, &prober, called, by).to_string()
    }

    #[test]
    fn the_state_follows_from_the_results_of_probes() {
        let state = run(100, |_| true);
        assert_eq!(state(None, None), "up");
        assert_eq!(state(None, Some("c")), "up", "another route is only shorter");
        let lossy = run(400, |step| step % 3 != 0);
        assert!(lossy(None, None).starts_with("degraded: "), "{}", lossy(None, None));
        assert!(lossy(None, None).contains(" % of the last 100 probes were lost"));
    }

    #[test]
    fn a_path_that_is_down_has_a_reason_and_a_time() {
        let never = run(40, |_| false);
        assert_eq!(never(None, None), "down: nothing has been received from it, no answer yet");
        let gone = run(80, |step| step < 40);
        assert_eq!(gone(None, None), "down: it does not answer any more, last answer 10 s ago");
        let by = "degraded: the direct path is down, last answer 10 s ago; flows go through c";
        assert_eq!(gone(None, Some("c")), by);
        let just = Instant::ZERO + 39 * STEP;
        assert!(never(Some(just), None).starts_with("down: its probes arrive"));
        assert!(gone(Some(just), None).starts_with("down: it does not answer any more"));
    }
}
