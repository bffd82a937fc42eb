use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Instant {
    Instant::from_nanos(1_000_000_000_000 + millis * 1_000_000)
}

fn window(bytes: usize) -> Replay {
    Replay::new(bytes, Duration::from_secs(8), [1, 2, 3, 4], at(0))
}

#[test]
fn each_operation_is_recorded_once() {
    let mut replay = window(1 << 16);
    for number in 0..1_000 {
        assert!(replay.note(at(number), 7, Once::Answered(number)));
    }
    for number in 0..1_000 {
        assert!(!replay.note(at(1_000), 7, Once::Answered(number)));
        assert!(replay.note(at(1_000), 8, Once::Answered(number)));
        assert!(replay.note(at(1_000), 7, Once::Again(number)));
    }
}

#[test]
fn continuations_without_a_record_are_too_old_to_be_answered() {
    let mut replay = window(1 << 16);
    for tick in 0..3_000 {
        let now = at(tick * 10);
        assert!(replay.note(now, 1, Once::Answered(tick)));
        // Each continuation is made at its tick, and replayed at later ticks.
        for old in (0..tick).step_by(37) {
            let made = at(old * 10);
            let refused = !replay.is_fresh(now, made) || replay.knows(1, Once::Answered(old));
            assert!(refused, "made at {made:?} is answered again at {now:?}");
        }
        let horizon = replay.horizon(now);
        assert_eq!(horizon, Duration::from_secs(8), "at {now:?}");
    }
    assert_eq!(replay.turned_early(), 0);
}

#[test]
fn a_flood_shortens_the_horizon_and_neither_uses_memory_nor_blocks_new_requests() {
    let mut replay = window(1 << 16);
    let memory = replay.memory();
    assert!(replay.note(at(0), 1, Once::Answered(1)));
    // A million answers within two seconds, in memory for sixteen thousand.
    for number in 0..1_000_000 {
        let now = at(number / 500);
        assert!(replay.note(now, 2, Once::Answered(number)) || number == 0);
        assert!(replay.is_fresh(now, now), "a new continuation is refused at {number}");
        let old = number.saturating_sub(5_000);
        assert!(replay.knows(2, Once::Answered(old)), "{old} is no longer known at {number}");
    }
    assert_eq!(replay.memory(), memory);
    assert!(replay.turned_early() > 10);
    assert!(!replay.is_fresh(at(2_000), at(0)), "evicted continuations are refused");
    let fill = 1_000_000 / replay.turned_early();
    assert!(fill > 3_000, "a slice of 4,096 places is full with {fill} entries");
}

#[test]
fn an_idle_window_keeps_its_horizon() {
    let mut replay = window(1 << 12);
    assert!(replay.note(at(100_000), 1, Once::Begun(1)));
    assert!(replay.is_fresh(at(100_000), at(93_000)));
}

#[test]
fn continuations_ahead_of_the_clock_are_recorded_until_the_clock_catches_up() {
    let mut replay = window(1 << 16);
    let made = at(400);
    assert!(replay.admit(at(0), made) && replay.note(at(0), 1, Once::Answered(1)));
    // Twelve times as many entries as the memory has room for, within 100 ms.
    for number in 0..200_000 {
        let now = at(number / 2_000);
        assert!(replay.admit(now, now) && replay.note(now, 2, Once::Answered(number)));
        assert!(replay.knows(1, Once::Answered(1)), "no longer known at {number}");
    }
    // From now on the entry may be evicted, because the continuation is refused for its age.
    for number in 200_000..300_000 {
        let now = at(301 + number / 2_000);
        assert!(replay.admit(now, now) && replay.note(now, 2, Once::Answered(number)));
        assert!(!replay.is_fresh(now, made) || replay.knows(1, Once::Answered(1)));
    }
}

#[test]
fn continuations_ahead_of_the_clock_are_answered_only_if_they_can_be_recorded() {
    let mut replay = window(1 << 16);
    let (mut number, mut refused) = (0, 0);
    for millis in 0..2_000 {
        let now = at(millis);
        // The flood ends in the middle.
        for _ in 0..if millis < 1_000 { 500 } else { 2 } {
            number += 1;
            assert!(replay.admit(now, now) && replay.note(now, 2, Once::Answered(number)));
        }
        let ahead = now + Duration::from_millis(100);
        let fresh = replay.admit(now, ahead) && replay.note(now, 1, Once::Answered(millis));
        refused += u32::from(!fresh);
        assert!(fresh || millis < 1_110, "refused at {millis} ms");
    }
    assert!((500..1_000).contains(&refused), "{refused}");
}

#[test]
fn replicas_whose_clocks_are_ahead_are_accepted_at_low_load() {
    let mut replay = window(1 << 16);
    for tick in 0..3_000 {
        let now = at(tick * 10);
        let made = now + Duration::from_millis(tick % 50 * 10);
        assert!(replay.admit(now, made) && replay.note(now, 1, Once::Answered(tick)));
    }
}

/// Microseconds until a continuation arrives, its lead over the clock, and the number of entries
/// that its answer records.
fn coming() -> impl Strategy<Value = (u64, i64, u64)> {
    let pause = prop_oneof![9 => 1_u64..300, 1 => 1_u64..200_000];
    let ahead = prop_oneof![-300_000_i64..0, -300_i64..300, 0_i64..500_000];
    (pause, ahead, 0_u64..32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_answered_twice_and_new_continuations_are_always_fresh(
        all in proptest::collection::vec(coming(), 1..300)
    ) {
        // Room for 256 entries a slice.
        let mut replay = window(1 << 12);
        let (mut now, mut answered) = (at(0), Vec::new());
        for (number, (pause, ahead, notes)) in (0_u64..).zip(all) {
            let before = now;
            now += Duration::from_micros(pause);
            let by = Duration::from_micros(ahead.unsigned_abs());
            let made = if ahead < 0 { now - by } else { now + by };
            if replay.admit(now, made) && replay.note(now, 1, Once::Answered(number)) {
                answered.push((number, made));
                (0..notes).for_each(|note| {
                    replay.note(now, number, Once::Survivor(note));
                });
            }
            prop_assert!(replay.is_fresh(now, now), "made now, at {now:?}");
            prop_assert!(replay.is_fresh(now, before), "made before, at {now:?}");
            for &(number, made) in &answered {
                let again = replay.is_fresh(now, made) && !replay.knows(1, Once::Answered(number));
                prop_assert!(!again, "{number}, made at {made:?}, is answered again at {now:?}");
            }
        }
    }
}
