//! Two ends that are joined: what one application writes the other reads, whatever the chain.

use proptest::prelude::*;

use super::super::testing::{LIMIT, Net};
use crate::time::Duration;

/// Bytes of one write, at most.
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
    const HANDLERS: &[&str] =
        &["count", "shape:rate=1M", "latency:delay=3ms", "crypt:key=1.key", "compress"];
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
                Step::Write(host, count) if net.end(host).chain.may_write() => net.write(host, count),
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
        prop_assert!(net.connections.iter().all(|c| c.seats == [None; 2]), "all is closed");
    }
}
