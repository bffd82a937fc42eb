mod compress;
mod crypt;
mod datagrams;
mod migrate;
mod mux;
mod pairs;
mod relays;
mod route;
mod socks;
mod stripe;

use super::testing::{Net, shell};
use super::*;
use crate::flow::testing::World;
use crate::time::{Duration, Instant};

fn world(chain: &[&str]) -> World {
    World::new(chain, 64 << 10)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[test]
fn shape_lets_its_rate_pass_in_each_direction_and_no_more() {
    let mut world = world(&["shape:out=800k,in=1600k"]);
    world.write(100_000);
    world.receive(100_000);
    world.run_until(at(350));
    // Four slices of 100 ms have begun: 10,000 bytes each one way, 20,000 the other.
    assert_eq!((world.sent(), world.delivered()), (40_000, 80_000));
    world.run_until(at(1_000));
    assert_eq!((world.sent(), world.delivered()), (100_000, 100_000));
    world.assert_right();
}

#[test]
fn shape_keeps_its_rate_with_late_timers_and_shares_that_are_not_whole_bytes() {
    for (rate, late) in [(1_000, 0), (1_234_567, 7), (100_000, 130)] {
        let mut world = world(&[&format!("shape:rate={rate}")]);
        world.write(3_000_000);
        while world.now < at(10_000) {
            let next = world.chain.poll_timeout().unwrap() + Duration::from_millis(late);
            world.now = next;
            world.chain.handle_timeout(next);
            world.settle();
        }
        let asked = rate as f64 / 8.0 * world.now.as_secs_f64();
        let error = world.sent() as f64 / asked - 1.0;
        assert!(error.abs() < 0.03, "{rate}, {late} ms late: {error}");
    }
}

#[test]
fn shape_keeps_a_rate_of_less_than_a_bit_a_slice() {
    for rate in [5, 15] {
        let mut world = world(&[&format!("shape:rate={rate}")]);
        world.write(3_000);
        world.run_until(at(800_000));
        assert_eq!(world.sent(), 100 * rate, "{rate}");
    }
}

#[test]
fn latency_delays_each_byte_and_the_end() {
    let mut world = world(&["latency:delay=50ms", "latency:delay=20ms"]);
    world.write(1_000);
    world.shutdown();
    world.run_until(at(69));
    assert_eq!((world.sent(), world.is_shut()), (0, false));
    world.run_until(at(70));
    assert_eq!((world.sent(), world.is_shut()), (1_000, true));
}

#[test]
fn count_counts_and_answers_through_other_handlers() {
    let mut world = world(&["latency:delay=1ms", "count"]);
    world.write(300);
    world.receive(500);
    world.run_until(at(10));
    let said = world.control("count").unwrap();
    assert_eq!(said, "flows 1\nwritten 300\nread 500\n");
    assert_eq!(world.control("absent"), None);
}

#[test]
fn every_handler_and_all_its_settings_are_documented() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/handlers");
    let table = std::fs::read_to_string(docs.join("README.md")).unwrap();
    for about in registry(&shell()).about() {
        let page = std::fs::read_to_string(docs.join(format!("{}.md", about.name))).unwrap();
        let yes = |is: bool| if is { "yes" } else { "no" };
        let row = format!("| {} | {} |", yes(about.both_ends), yes(about.guards));
        let link = format!("| [`{0}`]({0}.md) |", about.name);
        assert!(table.lines().any(|line| line.starts_with(&link) && line.ends_with(&row)));
        for setting in &about.settings {
            assert!(page.contains(&format!("| `{}` |", setting.key)), "{} {setting:?}", about.name);
        }
    }
}

#[test]
fn chains_report_whether_they_guard_and_can_be_offloaded() {
    use crate::flow::{HandlerSpec, Offload, offload};
    let registry = registry(&shell());
    for (text, guards, rate) in [
        ("count", false, Some(None)),
        ("count shape:out=2M shape:out=1M", false, Some(Some(1_000_000))),
        ("count shape:rate=2M", false, None),
        ("count crypt:key=1.key", true, None),
    ] {
        let specs: Vec<HandlerSpec> = text.split(' ').map(|spec| spec.parse().unwrap()).collect();
        assert_eq!(registry.guards(&specs), guards, "{text}");
        let factories = registry.chain(&specs).unwrap();
        assert_eq!(offload(&factories), rate.map(|rate| Offload { rate }), "{text}");
    }
}

#[test]
fn settings_are_checked() {
    let chain = |text: &str| {
        let specs = text.split(' ').map(str::parse).collect::<Result<Vec<_>, _>>();
        specs.and_then(|specs| registry(&shell()).chain(&specs)).err().map(|e| e.to_string())
    };
    for (text, said) in [
        ("shape:rate=2M +count", None),
        ("shape", Some("a rate is missing")),
        ("shape:rat=2M", Some("shape: it has no setting \"rat\"; there are rate, ")),
        ("shape:in=1M,in=2M", Some("\"shape:in=1M,in=2M\": in is given twice")),
        ("shape:held=9", Some("a rate is missing")),
        ("shape:rate=fast", Some("shape: rate=fast: bits a second, such as 2M, is expected")),
        ("latency:delay=2h", Some("latency: delay=2h: a time up to 60s")),
        ("crypt", Some("key is missing")),
        ("crypt:key=no.key", Some("crypt: key=no.key: there is no such file")),
        ("crypt:key=word", Some("key=word: a key is 64 hexadecimal digits")),
        ("crypt:key=1.key,peer=ab", Some("peer=ab: a key is 64")),
        ("compress:level=20", Some("a number from 1 to 15 is expected")),
        ("migrate:within=1", Some("a time such as 30s")),
        ("stripe:from=10.0.0.1+x", Some("local addresses such as")),
        ("socks", Some("via is missing")),
        ("socks:via=[::1]:1080,user=u", Some("must be given together")),
        ("count:x=1", Some("count: it has no setting \"x\"; it has none")),
        ("shapes", Some("no handler is named \"shapes\"; there are c")),
        ("shape:rate", Some("\"shape:rate\" is not a handler; write it like")),
    ] {
        match (chain(text), said) {
            (None, None) => {}
            (Some(error), Some(part)) => assert!(error.contains(part), "{text}: {error}"),
            (error, _) => panic!("{text}: {error:?}"),
        }
    }
}

/// Writes both ways, and waits.
pub(super) fn exchange(net: &mut Net) {
    net.wait(Duration::from_secs(1));
    net.write(0, 1_000);
    net.write(1, 2_000);
    net.wait(Duration::from_secs(1));
    net.assert_whole();
}
