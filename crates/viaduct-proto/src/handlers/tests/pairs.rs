//! Two connected ends: for any chain, one application reads what the other writes.

use proptest::prelude::*;

use super::super::testing::{LIMIT, Net};
use crate::flow::Failure;
use crate::time::Duration;

/// Maximum bytes of one write.
const PIECE: usize = 3_000;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    Takes(usize, bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, 0..PIECE).prop_map(|(host, count)| Step::Write(host, count)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(host, takes)| Step::Takes(host, takes)),
        3 => (0..100_u64).prop_map(Step::Wait),
    ]
}

fn chain() -> impl Strategy<Value = Vec<&'static str>> {
    const HANDLERS: &[&str] = &[
        "count",
        "shape:rate=1M",
        "latency:delay=3ms",
        "crypt:key=1.key",
        "compress",
        "migrate:buffer=64k",
        "stripe:paths=2",
        "mux",
    ];
    prop::collection::vec(prop::sample::select(HANDLERS), 0..5)
}

fn long() -> Duration {
    Duration::from_secs(600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bytes_arrive_once_and_in_order_and_each_direction_ends_by_itself(
        chain in chain(),
        cut in 1..5_000_usize,
        first in 0..2_usize,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut net = Net::new(&chain, &chain);
        net.cut = cut;
        net.connect();
        net.wait(Duration::from_secs(1));
        prop_assert_eq!(net.end(0).answer, Some(Ok(())), "{:?}", net.said);
        for step in steps {
            match step {
                Step::Write(host, count) if net.end(host).chain.may_write() => {
                    net.write(host, count);
                }
                Step::Write(..) => {}
                Step::Takes(host, takes) => net.end(host).takes = takes,
                Step::Wait(millis) => net.wait(Duration::from_millis(millis)),
            }
            for host in [0, 1] {
                let held = net.end(host).chain.incoming().len();
                prop_assert!(held <= LIMIT + 64 * 1024 + 2 * PIECE, "{} bytes", held);
            }
        }
        (net.end(0).takes, net.end(1).takes) = (true, true);
        net.shutdown(first);
        net.wait(long());
        prop_assert_eq!((net.end(first).finished, net.end(1 - first).finished), (0, 1));
        net.write(1 - first, 100);
        net.shutdown(1 - first);
        net.wait(long());
        net.assert_whole();
        prop_assert_eq!((net.end(0).finished, net.end(1).finished), (1, 1));
        net.close(0);
        net.close(1);
        net.wait(long());
        prop_assert!(net.end(0).failed.is_empty() && net.end(1).failed.is_empty());
        prop_assert!(net.connections.iter().all(|c| c.seats == [None; 2]), "all are closed");
    }
}

/// Network event under a flow that migrates.
#[derive(Clone, Debug)]
enum Blow {
    Cut(bool),
    Up(bool),
}

fn blow() -> impl Strategy<Value = Blow> {
    prop_oneof![any::<bool>().prop_map(Blow::Cut), any::<bool>().prop_map(Blow::Up)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_migrating_flow_loses_no_data_whatever_happens_to_its_connections(
        above in chain(),
        // `mux` keeps a silent connection, and so hides the silence from `migrate`.
        below in chain().prop_filter("it hides silence", |chain| !chain.contains(&"mux")),
        cut in 1..5_000_usize,
        steps in prop::collection::vec((step(), prop::option::weighted(0.2, blow())), 1..60),
    ) {
        let chain = [&above[..2.min(above.len())], &["migrate"], &below[..2.min(below.len())]];
        let chain = chain.concat();
        let mut net = Net::new(&chain, &chain);
        net.cut = cut;
        net.connect();
        net.wait(Duration::from_secs(1));
        for (step, blow) in steps {
            match blow {
                Some(Blow::Cut(heard)) => net.cut_all(heard),
                Some(Blow::Up(is_up)) => net.is_up = is_up,
                None => {}
            }
            match step {
                Step::Write(host, count) if net.end(host).chain.may_write() => {
                    net.write(host, count);
                }
                Step::Write(..) => {}
                Step::Takes(host, takes) => net.end(host).takes = takes,
                Step::Wait(millis) => net.wait(Duration::from_millis(millis)),
            }
        }
        net.is_up = true;
        (net.end(0).takes, net.end(1).takes) = (true, true);
        net.wait(Duration::from_secs(60));
        net.assert_whole();
        net.close(0);
        net.wait(Duration::from_secs(1));
        net.close(1);
        net.wait(long());
        let is_whole = net.end(0).failed.is_empty() && net.end(1).failed.is_empty();
        prop_assert!(is_whole, "{:?}", net.said);
        prop_assert_eq!(net.end(1).finished, 1);
        let open = |c: &super::super::testing::Connection| c.seats.iter().all(Option::is_some);
        prop_assert!(!net.connections.iter().any(open), "all are closed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_reset_arrives_once_and_nothing_is_delivered_that_was_not_written(
        chain in chain().prop_filter("they hide resets", |chain| {
            !chain.iter().any(|name| name.starts_with("migrate") || name.starts_with("stripe"))
        }),
        cut in 1..5_000_usize,
        counts in prop::collection::vec(0..PIECE, 1..10),
        millis in 0..50_u64,
    ) {
        let mut net = Net::new(&chain, &chain);
        net.cut = cut;
        net.connect();
        net.wait(Duration::from_secs(1));
        for count in counts {
            for host in [0, 1] {
                if net.end(host).chain.may_write() {
                    net.write(host, count);
                }
            }
        }
        net.wait(Duration::from_millis(millis));
        net.cut_all(true);
        net.wait(long());
        for host in [0, 1] {
            prop_assert_eq!(&net.end(host).failed[..], [Failure::Reset]);
            prop_assert_eq!(net.end(host).finished, 0);
            let read = net.end(host).read.got;
            prop_assert!(read <= net.end(1 - host).written.made);
        }
    }
}
