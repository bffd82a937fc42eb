//! Behaviour of a tunnel, one aspect at a time; random sequences of operations are in
//! `sequences`.

mod sequences;
mod world;

use super::{Carrier, Event, LinkError, Settings, StreamId, Tunnel};
use crate::flow::{Address, Failure};
use crate::time::{Duration, Instant};
use world::World;

fn small() -> Settings {
    Settings {
        initial: 40_000,
        limit: 200_000,
        least_window: 1_000,
        mss: 1_400,
        queue: 20_000,
        streams: 50,
        ..Settings::default()
    }
}

const LINK: &str = "rate=100M,delay=10ms";

#[test]
fn a_stream_opens_without_a_round_trip_and_each_direction_ends_by_itself() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    world.run(Duration::from_millis(100));
    let start = world.now;
    let id = world.open(0).unwrap();
    world.write(0, id, 500);
    world.shutdown(0, id);
    while world.streams[&id].read[1].len() < 500 {
        assert!(world.step(start + Duration::from_secs(1)));
    }
    assert!(world.now - start < Duration::from_millis(11), "one way, not a round trip");
    world.run(Duration::from_millis(100));
    assert!(world.streams[&id].finished[1] && !world.streams[&id].finished[0]);
    world.write(1, id, 700);
    world.shutdown(1, id);
    world.settle();
    assert_eq!(world.ends[0].stats().open + world.ends[1].stats().open, 0, "forgotten by both");
    let accepted = |event: &Event| matches!(event, Event::Accepted(_));
    assert_eq!(world.events[0].iter().filter(|event| accepted(event)).count(), 1);
}

#[test]
fn a_reset_reaches_the_other_end_once_and_frees_all() {
    for both in [false, true] {
        let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
        let id = world.open(0).unwrap();
        world.write(0, id, 20_000);
        world.run(Duration::from_millis(100));
        world.streams.get_mut(&id).unwrap().stopped[1] = true;
        world.write(0, id, 20_000);
        world.run(Duration::from_millis(100));
        assert!(world.ends[1].stats().held > 0);
        world.reset(1, id);
        if both {
            world.reset(0, id);
        }
        world.settle();
        let told = |end: usize| {
            let is = |e: &&Event| matches!(e, Event::Reset(_, Failure::Denied));
            world.events[end].iter().filter(is).count()
        };
        assert_eq!((told(0), told(1)), (usize::from(!both), 0));
        assert_eq!(world.ends[0].stats().open + world.ends[1].stats().open, 0);
    }
}

#[test]
fn a_stream_alone_fills_the_path_whatever_its_length() {
    for (link, rate) in [
        ("rate=200M,delay=50ms", 200e6),
        ("rate=1G,delay=30ms", 1e9),
        ("rate=10M,delay=300ms", 10e6),
    ] {
        for carrier in [Carrier::Stream, Carrier::Streams] {
            let mut world = World::new(&Settings::default(), link, carrier, 1);
            let id = world.open(0).unwrap();
            world.bulk(&[id], Duration::from_secs(3));
            let carried = world.bulk(&[id], Duration::from_secs(2))[0] * 8.0;
            assert!(carried > 0.98 * rate, "{link}, {carrier:?}: {carried:.0}");
            let product = rate / 8.0 * world.config.delay.as_secs_f64() * 2.0;
            let ratio = world.ends[1].stats().window as f64 / product;
            assert!((2.0..10.0).contains(&ratio), "{link}: {ratio} products");
        }
    }
}

#[test]
fn streams_share_a_link_evenly_and_links_share_the_tokens() {
    let mut world = World::new(&Settings::default(), "rate=50M,delay=20ms", Carrier::Stream, 3);
    let ids: Vec<_> = (0..9).map(|_| world.open(0).unwrap()).collect();
    for link in 1..=3 {
        assert_eq!(ids.iter().filter(|id| id.link == link).count(), 3, "least loaded first");
    }
    world.bulk(&ids, Duration::from_secs(2));
    let rates = world.bulk(&ids, Duration::from_secs(4));
    let (least, most) = rates.iter().fold((f64::MAX, 0.0_f64), |(l, m), &r| (l.min(r), m.max(r)));
    assert!(least > 0.9 * most, "{rates:?}");
    assert!(rates.iter().sum::<f64>() * 8.0 > 0.95 * 150e6, "{rates:?}");
}

#[test]
fn new_streams_avoid_the_link_that_carries_most_in_either_direction() {
    let mut world = World::new(&Settings::default(), "rate=50M,delay=20ms", Carrier::Stream, 2);
    let large = world.open(0).unwrap();
    let idle = world.open(0).unwrap();
    world.bulk(&[large], Duration::from_secs(3));
    for _ in 0..3 {
        assert_eq!(world.open(1).unwrap().link, idle.link, "end 1 receives no bulk on it");
    }
    world.settle();
    world.run(Duration::from_secs(10));
    assert_eq!(world.open(1).unwrap().link, large.link, "it has fewer streams, and is idle");
}

#[test]
fn readers_that_have_stopped_do_not_slow_the_others() {
    let settings = Settings { limit: 4 << 20, ..Settings::default() };
    let mut world = World::new(&settings, "rate=50M,delay=20ms", Carrier::Stream, 1);
    let alone = world.open(0).unwrap();
    let before = world.bulk(&[alone], Duration::from_secs(3))[0];
    let stopped = world.open(0).unwrap();
    world.streams.get_mut(&stopped).unwrap().stopped[1] = true;
    let beside = world.bulk(&[stopped, alone], Duration::from_secs(3))[1];
    assert!(beside > 0.95 * before, "one: {beside} of {before}");
    // There are more stopped streams than the buffer has shares for; each other stream still makes
    // progress.
    for _ in 0..20 {
        let stopped = world.open(0).unwrap();
        world.streams.get_mut(&stopped).unwrap().stopped[1] = true;
        world.bulk(&[stopped], Duration::from_secs(1));
    }
    let late = world.open(0).unwrap();
    let rate = world.bulk(&[late], Duration::from_secs(2))[0];
    let least = f64::from(settings.least_window) / 0.045;
    assert!(rate > 0.8 * least, "{rate} of at least {least} a second");
    world.settle();
}

#[test]
fn a_small_stream_does_not_wait_behind_a_large_one() {
    let mut world = World::new(&Settings::default(), "rate=20M,delay=50ms", Carrier::Stream, 1);
    let large = world.open(0).unwrap();
    world.bulk(&[large], Duration::from_secs(5));
    for _ in 0..5 {
        let small = world.open(0).unwrap();
        world.write(0, small, 100);
        let start = world.now;
        while world.streams[&small].read[1].is_empty() {
            world.bulk(&[large], Duration::from_millis(1));
        }
        // One-way delay, plus the bytes that the socket already holds: 64 KiB.
        assert!(world.now - start < Duration::from_millis(50 + 27 + 10), "{:?}", world.now - start);
    }
}

#[test]
fn streams_of_a_broken_link_are_reset_and_its_tokens_are_freed() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 2);
    let ids: Vec<_> = (0..6).map(|_| world.open(0).unwrap()).collect();
    world.bulk(&ids, Duration::from_millis(500));
    world.cut(1);
    // This end has removed the link; the other has not detected the cut yet.
    world.ends[0].remove_link(1);
    let stranded = world.ends[0].stats().tokens_stranded;
    assert!(stranded > 0);
    world.bulk(&ids, Duration::from_millis(300));
    assert_eq!(world.ends[1].stats().links, 1, "told by GONE on the other link");
    world.dial();
    world.run(Duration::from_millis(100));
    let late = world.open(0).unwrap();
    assert_eq!(late.link, 3, "the least loaded one");
    world.write(0, late, 5_000);
    world.settle();
    let resets = |end: usize| {
        world.events[end]
            .iter()
            .filter(|e| matches!(e, Event::Reset(id, _) if id.link == 1))
            .count()
    };
    assert_eq!((resets(0), resets(1)), (3, 3));
    assert_eq!(world.ends[0].stats().tokens_stranded, 0);
}

#[test]
fn a_restarted_peer_is_served_again() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    let id = world.open(0).unwrap();
    world.bulk(&[id], Duration::from_millis(300));
    world.cut(1);
    world.ends[0].remove_link(1);
    world.ends[1] = Tunnel::new(small(), 77);
    world.dial();
    world.run(Duration::from_millis(100));
    let id = world.open(0).unwrap();
    world.write(0, id, 20_000);
    world.settle();
    assert_eq!(world.streams[&id].read[1].len(), 20_000);
    assert_eq!(world.ends[0].stats().tokens_stranded, 0);
}

#[test]
fn links_to_a_restarted_peer_outlive_those_to_its_former_instance() {
    for carrier in [Carrier::Stream, Carrier::Streams] {
        let mut world = World::new(&small(), LINK, carrier, 3);
        // This end has not detected the restart yet.
        (1..=3).for_each(|link| world.cut(link));
        world.ends[1] = Tunnel::new(small(), 77);
        (0..3).for_each(|_| world.dial());
        world.run(Duration::from_millis(100));
        assert_eq!(world.ends[0].links().collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!(world.ends[1].stats().links, 3);
        let down = |link| Event::LinkDown(link, LinkError::Restarted);
        assert!((1..=3).all(|link| world.events[0].contains(&down(link))));
        let id = world.open(0).unwrap();
        world.write(0, id, 20_000);
        world.settle();
    }
}

#[test]
fn a_hello_of_the_peers_former_instance_is_refused() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    let late = world.ends[0].dial(world.now, Carrier::Stream);
    let (mut former, mut hello) = (Tunnel::new(small(), 2), Vec::new());
    assert!(former.accept_link(world.now, late, Carrier::Stream));
    former.poll_transmit(world.now, &mut hello).unwrap();
    world.cut(1);
    world.ends[1] = Tunnel::new(small(), 77);
    world.dial();
    world.run(Duration::from_millis(100));
    world.ends[0].handle_bytes(world.now, late, 0, &hello);
    world.settle();
    assert_eq!(world.ends[0].links().collect::<Vec<_>>(), [3]);
    assert!(world.events[0].contains(&Event::LinkDown(late, LinkError::Restarted)));
}

#[test]
fn a_drained_link_is_closed_after_its_streams() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 2);
    world.run(Duration::from_millis(100));
    let first = world.open(0).unwrap();
    world.write(0, first, 3_000);
    world.ends[0].leave(first.link);
    world.run(Duration::from_millis(100));
    for _ in 0..3 {
        assert_ne!(world.open(0).unwrap().link, first.link);
        assert_ne!(world.open(1).unwrap().link, first.link, "the peer has left too");
    }
    assert!(!world.ends[0].is_over(first.link));
    world.shutdown(0, first);
    world.shutdown(1, first);
    world.settle();
    assert!((0..2).all(|end| world.ends[end].is_over(first.link)));
}

#[test]
fn streams_outlive_a_handover_of_the_far_end_to_another_process() {
    for carrier in [Carrier::Stream, Carrier::Streams] {
        let mut world = World::new(&small(), LINK, carrier, 2);
        let ids: Vec<_> = (0..4).map(|_| world.open(0).unwrap()).collect();
        ids.iter().for_each(|&id| world.write(0, id, 20_000));
        world.run(Duration::from_millis(12));
        world.hand_over(&small());
        let late = world.open(0).unwrap();
        world.write(0, late, 700);
        world.run(Duration::from_millis(100));
        assert_eq!(world.open(0), None, "the far end has left its links");
        world.dial();
        world.run(Duration::from_millis(100));
        let new = world.open(0).unwrap();
        assert_eq!(new.link, 3);
        world.run(Duration::from_millis(20));
        // Each process has granted a buffer of its own.
        let [all, own] = [&world.ends[0], &world.ends[1]].map(Tunnel::stats);
        assert_eq!((all.open, all.opened, own.open), (6, 6, 1));
        assert_eq!(all.tokens, own.window + world.old.as_ref().unwrap().stats().window);
        for id in ids.iter().copied().chain([late, new]) {
            for end in 0..2 {
                world.write(end, id, 30_000);
                world.shutdown(end, id);
            }
        }
        world.settle();
        let is_lost = |event: &Event| matches!(event, Event::LinkDown(..) | Event::Reset(..));
        assert!(!world.events.iter().flatten().any(is_lost));
        let old = world.old.as_ref().unwrap();
        assert!((1..=2).all(|link| old.is_over(link) && world.ends[0].is_over(link)));
        assert!(!world.ends[0].is_over(3));
        world.old = None;
        for link in 1..=2 {
            world.cut(link);
            world.ends[0].remove_link(link);
        }
        while world.ends[0].poll_forgotten().is_some() {}
        world.settle();
        let stats = world.ends[0].stats();
        assert_eq!((stats.opened, stats.open, stats.links), (6, 0, 1), "the totals stay");
        assert_eq!(stats.tokens, world.ends[1].stats().window);
    }
}

#[test]
fn a_link_that_this_end_leaves_begins_no_generation() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 2);
    let first = world.open(0).unwrap();
    world.ends[0].leave(first.link);
    world.run(Duration::from_millis(100));
    world.dial();
    world.run(Duration::from_millis(100));
    assert_eq!(world.ends[1].stats().links, 3, "the peer has not seen a restart");
    world.write(0, first, 3_000);
    world.settle();
}

#[test]
fn a_peer_that_hands_over_again_and_again_loses_the_oldest_streams() {
    let (now, mut near) = (Instant::ZERO, Tunnel::new(small(), 1));
    for link in 1..=7 {
        assert_eq!(near.dial(now, Carrier::Stream), link);
        let mut far = Tunnel::new(small(), u64::from(link));
        assert!(far.accept_link(now, link, Carrier::Stream));
        let exchange = |near: &mut Tunnel, far: &mut Tunnel| {
            let mut out = Vec::new();
            while let Some((to, lane)) = near.poll_transmit(now, &mut out) {
                // The bytes of earlier links are lost.
                far.handle_bytes(now, to, lane, &std::mem::take(&mut out));
            }
            while let Some((to, lane)) = far.poll_transmit(now, &mut out) {
                near.handle_bytes(now, to, lane, &std::mem::take(&mut out));
            }
        };
        exchange(&mut near, &mut far);
        assert!(near.open(Address::Name("server".to_owned(), 80), None).is_some());
        far.leave(link);
        exchange(&mut near, &mut far);
        assert!(near.is_left());
    }
    assert_eq!(near.links().collect::<Vec<_>>(), [7, 3, 4, 5, 6]);
    let events: Vec<_> = std::iter::from_fn(|| near.poll_event()).collect();
    let is_reset =
        |link| events.contains(&Event::Reset(StreamId { link, number: 1 }, Failure::Reset));
    assert_eq!([1, 2, 3].map(is_reset), [true, true, false]);
}

#[test]
fn a_link_whose_numbers_are_used_up_is_left() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    world.ends[0].use_up(1);
    let last = world.open(0).unwrap();
    assert_eq!(world.open(0), None);
    world.write(0, last, 3_000);
    world.run(Duration::from_millis(100));
    assert_eq!(world.open(1), None, "the peer has left too");
    world.shutdown(0, last);
    world.shutdown(1, last);
    world.settle();
    assert!((0..2).all(|end| world.ends[end].is_over(1)));
}

#[test]
fn a_broken_link_is_reported_until_the_peer_confirms_the_report() {
    for carrier in [Carrier::Stream, Carrier::Streams] {
        let mut world = World::new(&small(), LINK, carrier, 1);
        for link in 1..=20 {
            world.cut(link);
            world.ends.iter_mut().for_each(|end| end.remove_link(link));
            assert!(world.ends.iter().all(|end| end.untold() == 1));
            world.dial();
            world.run(Duration::from_secs(1));
            assert!(world.ends.iter().all(|end| end.untold() == 0), "confirmed by a PONG");
        }
        // No link comes up.
        let last = 21;
        world.cut(last);
        world.ends[0].remove_link(last);
        for _ in 0..5_000 {
            let link = world.ends[0].dial(world.now, carrier);
            world.ends[0].remove_link(link);
        }
        assert!(world.ends[0].untold() < 5_000, "{}", world.ends[0].untold());
    }
}

#[test]
fn a_silent_link_is_given_up() {
    let mut world = World::new(&small(), LINK, Carrier::Stream, 1);
    let id = world.open(0).unwrap();
    world.write(0, id, 100);
    world.run(Duration::from_secs(60));
    assert_eq!(world.ends[0].stats().links, 1, "pings keep it up");
    world.links.clear();
    let silent = world.now;
    while world.ends[0].links().next().is_some() {
        world.now = world.ends[0].poll_timeout().unwrap();
        world.ends[0].handle_timeout(world.now);
    }
    assert!(world.now - silent <= small().silence + small().ping);
    let events: Vec<_> = std::iter::from_fn(|| world.ends[0].poll_event()).collect();
    assert!(events.contains(&Event::Reset(id, Failure::Reset)));
    assert!(events.contains(&Event::LinkDown(1, LinkError::Silent(small().silence))));
}

#[test]
fn a_path_longer_than_the_time_between_pings_is_measured() {
    let settings = Settings { ping: Duration::from_millis(100), ..small() };
    let mut world = World::new(&settings, "delay=250ms", Carrier::Stream, 1);
    world.run(Duration::from_secs(5));
    let link = world.ends[0].link_stats(1).unwrap();
    assert_eq!(link.rtt.map(|rtt| rtt.as_millis() / 100), Some(5));
}
