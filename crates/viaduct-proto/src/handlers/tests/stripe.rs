use super::super::testing::Net;
use super::exchange;
use crate::time::Duration;

fn live(net: &Net) -> usize {
    net.connections.iter().filter(|c| c.seats.iter().all(Option::is_some)).count()
}

/// Writes as much as the flow accepts, for `rounds` rounds of 10 ms. Returns the number of bytes
/// that arrive in this time.
fn pour(net: &mut Net, from: usize, rounds: usize) -> usize {
    let before = net.end(1 - from).read.got;
    for _ in 0..rounds {
        while net.end(from).chain.may_write() {
            net.write(from, 2_000);
        }
        net.wait(Duration::from_millis(10));
    }
    net.end(1 - from).read.got - before
}

#[test]
fn a_flow_uses_all_its_connections_and_arrives_in_order() {
    let mut rates = Vec::new();
    for paths in [1, 2, 4] {
        let mut net = Net::joined(&[&format!("stripe:paths={paths}"), "shape:rate=1M"]);
        exchange(&mut net);
        assert_eq!(live(&net), paths);
        rates.push([pour(&mut net, 0, 400), pour(&mut net, 1, 400)]);
        net.wait(Duration::from_secs(20));
        net.assert_whole();
        net.shutdown(0);
        net.shutdown(1);
        net.wait(Duration::from_secs(2));
        assert_eq!((net.end(0).finished, net.end(1).finished, live(&net)), (1, 1, 0));
    }
    for (way, &one) in rates[0].iter().enumerate() {
        assert!(rates[1][way] * 10 > one * 17, "{rates:?}");
        assert!(rates[2][way] * 10 > one * 34, "{rates:?}");
    }
}

#[test]
fn data_of_a_lost_connection_is_sent_on_the_others() {
    for heard in [true, false] {
        let mut net = Net::joined(&["stripe:paths=3", "latency:delay=20ms"]);
        exchange(&mut net);
        pour(&mut net, 0, 10);
        net.cut_one(1, heard);
        pour(&mut net, 0, 10);
        net.wait(Duration::from_secs(5));
        net.assert_whole();
        assert_eq!(live(&net), 3, "another takes its place");
    }
}

#[test]
fn a_much_slower_connection_does_not_delay_the_flow() {
    let rate = |way: usize, slow: Option<u64>| {
        let paths = 1 + usize::from(slow.is_some());
        let mut net = Net::joined(&[&format!("stripe:paths={paths},buffer=1M")]);
        exchange(&mut net);
        for (connection, rate) in net.connections.iter_mut().zip([Some(1_000_000), slow]) {
            connection.wires.iter_mut().for_each(|wire| wire.rate = rate);
        }
        let got = pour(&mut net, way, 2_000);
        net.wait(Duration::from_secs(100));
        net.assert_whole();
        got
    };
    for way in [0, 1] {
        let alone = rate(way, None);
        for (slow, least) in [(300_000, 120), (50_000, 97), (5_000, 90)] {
            let got = rate(way, Some(slow));
            assert!(got * 100 > alone * least, "{way} {slow}: {got} of {alone}");
        }
    }
}
