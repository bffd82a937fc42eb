//! Chains for datagrams, in virtual time.

use std::net::SocketAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::testing::shell;
use super::{at, registry};
use crate::flow::HandlerSpec;
use crate::flow::datagrams::{Bounds, Direction, Ends, Passage, Taken, streams_alone};
use crate::flow::{Chain, Factory};
use crate::time::{Duration, Instant};

const BOUNDS: Bounds = Bounds { pairs: 100, idle: Duration::from_secs(60) };

fn factories(chain: &[&str]) -> Arc<[Arc<dyn Factory>]> {
    let specs: Vec<HandlerSpec> = chain.iter().map(|text| text.parse().unwrap()).collect();
    registry(&shell()).chain(&specs).unwrap()
}

fn passage(chain: &[&str]) -> Passage {
    Passage::new(factories(chain), BOUNDS).unwrap()
}

fn ends(port: u16) -> Ends {
    let own = SocketAddr::from(([10, 0, 0, 1], port));
    Ends { own, peer: "192.0.2.1:53".parse().unwrap() }
}

/// Collects the tag and the time of each datagram that is due by `now`.
fn leave(passage: &mut Passage, now: Instant, left: &mut Vec<(u32, Instant)>) {
    while let Some(next) = passage.poll_timeout().filter(|at| *at <= now) {
        while let Some(tag) = passage.poll_ready(next) {
            left.push((tag, next));
        }
        passage.handle_timeout(next);
    }
}

#[test]
fn latency_delays_each_datagram_and_drops_those_without_room() {
    let mut passage = passage(&["latency:delay=50ms,held=1000", "count"]);
    let mut send = |now, tag| passage.handle_datagram(now, ends(1), Direction::Out, 400, tag);
    assert_eq!(send(at(0), 1), Taken::Waits { begins: true });
    assert_eq!(send(at(10), 2), Taken::Waits { begins: false });
    assert_eq!(send(at(20), 3), Taken::Dropped);
    assert_eq!(send(at(50), 4), Taken::Waits { begins: false }, "the first has left");
    let mut left = Vec::new();
    leave(&mut passage, at(1_000), &mut left);
    assert_eq!(left, [(1, at(50)), (2, at(60)), (4, at(100))]);
    assert_eq!(passage.stats().dropped, [1, 0]);
}

#[test]
fn both_ways_pass_all_handlers_and_do_not_wait_for_each_other() {
    let mut passage = passage(&["latency:delay=50ms", "shape:out=8k,in=80k", "latency:delay=20ms"]);
    for tag in 0..2 {
        passage.handle_datagram(at(0), ends(1), Direction::Out, 100, tag);
        passage.handle_datagram(at(0), ends(1), Direction::Back, 100, 10 + tag);
    }
    let mut left = Vec::new();
    leave(&mut passage, at(1_000), &mut left);
    assert_eq!(left, [(0, at(70)), (10, at(70)), (11, at(80)), (1, at(170))]);
}

#[test]
fn handlers_that_take_only_streams_are_found() {
    let chain = factories(&["count", "compress", "latency:delay=1ms"]);
    assert_eq!(streams_alone(&chain).collect::<Vec<_>>(), ["compress"]);
    assert!(Passage::new(chain, BOUNDS).is_none());
}

#[test]
fn handlers_report_correctly_whether_they_take_datagrams() {
    let registry = registry(&shell());
    for (text, works) in [
        ("count", true),
        ("latency:delay=1ms", true),
        ("shape:rate=1M", true),
        ("socks:via=192.0.2.1:1080", true),
        ("compress", false),
    ] {
        let about = registry.about().find(|about| text.starts_with(about.name)).unwrap();
        let makes = streams_alone(&factories(&[text])).next().is_none();
        assert_eq!((about.datagrams, makes), (works, works), "{text}");
    }
}

#[test]
fn count_counts_datagrams_with_the_bytes_of_flows() {
    let chain = factories(&["count"]);
    let mut passage = Passage::new(chain.clone(), BOUNDS).unwrap();
    for (port, way) in [(1, Direction::Out), (1, Direction::Back), (2, Direction::Out)] {
        passage.handle_datagram(at(0), ends(port), way, 7, 0);
    }
    let mut asked = Chain::new(chain, 1000, at(0));
    let counted = asked.control(at(0), "count", b"").unwrap();
    assert_eq!(
        String::from_utf8(counted).unwrap(),
        "flows 3\nwritten 14\nread 7\n",
        "and this flow"
    );
}

#[test]
fn idle_pairs_are_forgotten_and_the_oldest_if_there_are_too_many() {
    let bounds = Bounds { pairs: 2, idle: Duration::from_secs(1) };
    let chain = factories(&["latency:delay=300ms"]);
    let mut passage = Passage::new(chain, bounds).unwrap();
    for (now, port) in [(0, 1), (10, 2), (20, 1), (30, 3)] {
        passage.handle_datagram(at(now), ends(port), Direction::Out, 1, 0);
    }
    assert_eq!(passage.pairs(), 2);
    let again = passage.handle_datagram(at(40), ends(1), Direction::Out, 1, 0);
    assert_eq!(again, Taken::Waits { begins: false }, "the second was forgotten");
    let mut left = Vec::new();
    leave(&mut passage, at(1_329), &mut left);
    assert_eq!((left.len(), passage.pairs()), (5, 2));
    leave(&mut passage, at(1_340), &mut left);
    assert_eq!((passage.pairs(), passage.waiting(), passage.poll_timeout()), (0, 0, None));
}

/// Random datagrams: microseconds since the previous one, port, direction, length.
fn traffic() -> impl Strategy<Value = Vec<(u64, u16, bool, usize)>> {
    prop::collection::vec((0..20_000u64, 0..3u16, any::<bool>(), 0..2_000usize), 1..300)
}

/// Datagrams that passed: port, direction, tag, arrival, departure, length; and the number
/// dropped.
type Crossed = (Vec<(u16, bool, u32, Instant, Instant, usize)>, usize);

fn cross(chain: &[&str], traffic: &[(u64, u16, bool, usize)]) -> Crossed {
    let mut passage = passage(chain);
    let (mut now, mut left, mut dropped) = (at(0), Vec::new(), 0);
    let mut came = Vec::new();
    for (tag, &(after, port, out, bytes)) in (0..).zip(traffic) {
        now += Duration::from_micros(after);
        leave(&mut passage, now, &mut left);
        came.push((port, out, now, bytes));
        let way = if out { Direction::Out } else { Direction::Back };
        let taken = passage.handle_datagram(now, ends(port), way, bytes, tag);
        dropped += usize::from(taken == Taken::Dropped);
    }
    leave(&mut passage, now + Duration::from_secs(3_600), &mut left);
    let line = |(tag, when): (u32, Instant)| {
        let (port, out, came, bytes) = came[tag as usize];
        (port, out, tag, came, when, bytes)
    };
    (left.into_iter().map(line).collect(), dropped)
}

proptest! {
    /// Order is kept between two ends, and each datagram is passed once or counted as dropped.
    #[test]
    fn datagrams_keep_their_order_and_are_passed_once_or_dropped(traffic in traffic()) {
        let chain = ["latency:delay=7ms,held=9000", "shape:rate=3M,held=4000", "count"];
        let (crossed, dropped) = cross(&chain, &traffic);
        prop_assert_eq!(crossed.len() + dropped, traffic.len());
        for port in 0..3 {
            for way in [true, false] {
                let tags = crossed.iter().filter(|of| (of.0, of.1) == (port, way)).map(|of| of.2);
                prop_assert!(tags.clone().zip(tags.skip(1)).all(|(a, b)| a < b));
            }
        }
        prop_assert!(crossed.windows(2).all(|pair| pair[0].4 <= pair[1].4));
    }

    #[test]
    fn latency_is_the_configured_delay(traffic in traffic(), delay in 0..500u64) {
        let chain = format!("latency:delay={delay}ms,held=1000000");
        let (crossed, dropped) = cross(&[&chain], &traffic);
        prop_assert_eq!(dropped, 0);
        for (.., came, when, _) in crossed {
            prop_assert_eq!(when.since(came), Duration::from_millis(delay));
        }
    }

    /// Between any two datagrams the rate is not exceeded, and it is used fully while datagrams
    /// wait.
    #[test]
    fn shape_holds_its_rate_and_its_bound(traffic in traffic(), kilobits in 100..50_000u64) {
        let held = 20_000;
        let (crossed, _) = cross(&[&format!("shape:rate={kilobits}k,held={held}")], &traffic);
        let bytes_a_second = kilobits as f64 * 125.0;
        for port in 0..3 {
            for way in [true, false] {
                let lane: Vec<_> =
                    crossed.iter().filter(|of| (of.0, of.1) == (port, way)).collect();
                let mut sum = 0;
                for (n, one) in lane.iter().enumerate() {
                    let passed = one.4.since(lane[0].4).as_secs_f64() * bytes_a_second;
                    prop_assert!(sum as f64 <= passed + 2.0, "{sum} in {passed}");
                    sum += one.5;
                    // Only the bounded queue is ahead of the datagram.
                    let most = held as f64 + 2_000.0;
                    prop_assert!(one.4.since(one.3).as_secs_f64() * bytes_a_second <= most);
                    // The datagram waited only for those ahead of it.
                    let idle = n == 0 || lane[n - 1].4 < one.3 && {
                        let busy = lane[n - 1].5 as f64 / bytes_a_second;
                        lane[n - 1].4.as_secs_f64() + busy < one.3.as_secs_f64()
                    };
                    prop_assert!(!idle || one.4 == one.3);
                }
            }
        }
    }
}
