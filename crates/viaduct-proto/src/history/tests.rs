use proptest::prelude::*;

use super::*;

fn subject(name: &str, count: u64) -> Subject {
    let readings = vec![("rate", Reading::per_second(count)), ("now", Reading::Gauge(Some(1.0)))];
    Subject { kind: "peer", name: name.to_owned(), readings }
}

fn key(name: &str) -> Key {
    ("site".to_owned(), "peer", name.to_owned())
}

#[test]
fn late_readers_get_ten_minutes_and_older_samples_are_gone() {
    let mut history = History::default();
    for sample in 0..2_000_u64 {
        let time = sample as f64 / 2.0;
        history.tick(time);
        history.record("site", time, vec![subject("a", sample * 5)]);
    }
    let chunk = history.since(&key("a"), 0).unwrap();
    assert_eq!((chunk.first, chunk.times.len(), chunk.times[0]), (801, MAX_SAMPLES, 400.0));
    assert_eq!(chunk.series["rate"], vec![10.0; MAX_SAMPLES]);
    assert_eq!(history.since(&key("a"), 2_000).unwrap().times, [999.5]);
    assert!(history.since(&key("a"), 2_001).unwrap().times.is_empty());
    assert!(history.since(&key("b"), 0).is_none());
}

#[test]
fn values_are_of_the_last_second() {
    let mut history = History::default();
    // One counter grows by 10 every half second, the other by 20 once a second.
    for (sample, count) in [0, 10, 20, 30, 40].into_iter().enumerate() {
        let time = sample as f64 / 2.0;
        history.tick(time);
        let whole = count / 20 * 20;
        let readings =
            vec![("rate", Reading::per_second(count)), ("share", Reading::percent(0, whole))];
        let subject = Subject { kind: "peer", name: "a".to_owned(), readings };
        history.record("site", time, vec![subject]);
    }
    let series = history.since(&key("a"), 0).unwrap().series;
    assert_eq!(series["rate"][1..], [20.0; 4]);
    assert_eq!(series["share"][2..], [0.0; 3], "no gaps");
}

#[test]
fn a_restart_and_missing_samples_leave_a_gap_and_no_spike() {
    let mut history = History::default();
    let samples = [(10.0, Some(100)), (11.0, Some(200)), (0.5, Some(900)), (1.5, Some(910))];
    let samples = samples.into_iter().chain([(0.0, None), (3.5, Some(930))]);
    for (second, (clock, count)) in samples.enumerate() {
        history.tick(second as f64);
        if let Some(count) = count {
            history.record("site", clock, vec![subject("a", count)]);
        }
    }
    let rates = &history.since(&key("a"), 0).unwrap().series["rate"];
    let seen: Vec<_> = rates.iter().map(|rate| (!rate.is_nan()).then_some(*rate)).collect();
    assert_eq!(seen, [None, Some(100.0), None, Some(10.0), None, Some(10.0)]);
}

#[test]
fn a_subject_that_is_gone_is_forgotten_after_ten_minutes_or_for_lack_of_room() {
    let mut history = History::default();
    history.tick(0.0);
    history.record("site", 1.0, vec![subject("gone", 1)]);
    let id = history.id(&key("gone")).unwrap();
    for second in 1..MAX_SAMPLES {
        history.tick(second as f64);
    }
    assert_eq!(history.key(id), Some(&key("gone")));
    history.tick(1_200.0);
    assert_eq!((history.key(id), history.keys().count()), (None, 0));

    let many = |from: usize| (from..from + MAX_SUBJECTS).map(|n| subject(&n.to_string(), 0));
    history.record("site", 2.0, many(0).collect());
    history.record("site", 2.0, vec![subject("one more", 0)]);
    assert_eq!((history.left_out(), history.keys().count()), (1, MAX_SUBJECTS));
    history.tick(1_201.0);
    history.tick(1_202.0);
    history.record("site", 3.0, many(MAX_SUBJECTS).collect());
    assert_eq!((history.left_out(), history.keys().count()), (0, MAX_SUBJECTS));
    assert!(history.id(&key("0")).is_none());
}

/// Second of a service's life.
#[derive(Clone, Debug)]
enum Second {
    Counts(u64),
    Silent,
    Restarts,
}

fn second() -> impl Strategy<Value = Second> {
    prop_oneof![
        8 => (0..1_000_u64).prop_map(Second::Counts),
        1 => Just(Second::Silent),
        1 => Just(Second::Restarts),
    ]
}

/// Runs a service for `seconds`. Returns the history, and the rates that are expected.
fn live(seconds: &[Second], mut each: impl FnMut(&History)) -> (History, Vec<Option<f64>>) {
    let (mut history, mut expected) = (History::default(), Vec::new());
    // Clock and count of each record since the last restart.
    let (mut count, mut clock, mut life) = (0, 0.0, Vec::<(f64, u64)>::new());
    for (n, second) in seconds.iter().enumerate() {
        history.tick(n as f64);
        clock += 1.0;
        match second {
            Second::Counts(more) => count += more,
            Second::Restarts => (count, clock, life) = (0, 0.0, Vec::new()),
            Second::Silent => {
                expected.push(None);
                each(&history);
                continue;
            }
        }
        history.record("site", clock, vec![subject("a", count)]);
        let base = life.get(life.len().saturating_sub(WINDOW));
        expected.push(base.map(|(then, old)| (count - old) as f64 / (clock - then)));
        life.push((clock, count));
        each(&history);
    }
    (history, expected)
}

proptest! {
    #[test]
    fn rates_are_those_between_two_samples_of_one_life(
        seconds in prop::collection::vec(second(), 1..3_000),
    ) {
        let (history, expected) = live(&seconds, |_| {});
        if let Some(chunk) = history.since(&key("a"), 0) {
            prop_assert_eq!(chunk.times.len(), seconds.len().min(MAX_SAMPLES));
            let kept = &expected[seconds.len() - chunk.times.len()..];
            for (rate, expected) in chunk.series["rate"].iter().zip(kept) {
                let rate = (!rate.is_nan()).then_some(*rate);
                prop_assert_eq!(rate, expected.map(|rate| rate as f32));
            }
        }
    }

    #[test]
    fn a_viewer_that_polls_gets_the_same_values_as_a_late_one(
        seconds in prop::collection::vec(second(), 1..MAX_SAMPLES),
        every in 1..50_u64,
    ) {
        let (mut seen, mut next) = (Vec::<f32>::new(), 1);
        let mut read = |history: &History, is_last: bool| {
            let Some(chunk) = history.since(&key("a"), next) else { return };
            if is_last || history.now().is_multiple_of(every) {
                assert_eq!(chunk.first, next);
                seen.extend(&chunk.series["rate"]);
                next = history.now() + 1;
            }
        };
        let (history, _) = live(&seconds, |history| read(history, false));
        read(&history, true);
        if let Some(chunk) = history.since(&key("a"), 1) {
            let bit = |rate: &f32| if rate.is_nan() { 0 } else { rate.to_bits() };
            let bits = |rates: &[f32]| rates.iter().map(bit).collect::<Vec<_>>();
            prop_assert_eq!(bits(&seen), bits(&chunk.series["rate"]));
        }
    }
}
