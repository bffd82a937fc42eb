use std::net::SocketAddr;

use super::super::testing::{LIMIT, Net};
use crate::flow::{Failure, Half};
use crate::time::Duration;

const FLOWS: usize = 5;

/// Connects `FLOWS` flows. The shared connection is the second chain of host 0, and the first of
/// host 1.
fn joined(chain: &[&str]) -> Net {
    let mut net = Net::new(chain, chain);
    for _ in 0..FLOWS {
        net.connect();
        net.wait(Duration::from_millis(100));
    }
    for at in flows(0) {
        assert_eq!(net.ends[0][at].answer, Some(Ok(())), "{:?}", net.said);
    }
    net
}

/// Chains of the flows at a host, in the order in which they were opened.
fn flows(host: usize) -> impl Iterator<Item = usize> {
    (0..=FLOWS).filter(move |&at| at != 1 - host)
}

fn live(net: &Net) -> usize {
    net.connections.iter().filter(|c| c.seats.iter().all(Option::is_some)).count()
}

#[test]
fn flows_to_one_destination_share_a_connection_and_each_has_its_own_data() {
    let mut net = joined(&["count", "mux", "crypt:key=1.key"]);
    assert_eq!(net.connections.len(), 1);
    let now = net.now;
    for (n, (near, far)) in flows(0).zip(flows(1)).enumerate() {
        net.ends[0][near].write(now, 100 * n + 1);
        net.ends[1][far].write(now, 10_000 * n);
        net.ends[0][near].chain.shutdown(now, Half::Write);
    }
    net.wait(Duration::from_secs(1));
    for (n, (near, far)) in flows(0).zip(flows(1)).enumerate() {
        let [near, far] = [&net.ends[0][near], &net.ends[1][far]];
        assert_eq!((far.read.got, near.read.got), (100 * n + 1, 10_000 * n));
        assert_eq!((far.finished, near.finished), (1, 0), "each direction ends by itself");
    }
    assert_eq!(net.connections.len(), 1);
}

#[test]
fn a_silent_connection_is_reset_with_its_reason() {
    let mut net = joined(&["mux:silence=5s"]);
    net.cut_all(false);
    net.wait(Duration::from_secs(20));
    assert_eq!(net.end(0).failed, [Failure::Reset]);
    assert!(net.said.iter().any(|line| line.contains("nothing received for 5s")), "{:?}", net.said);
}

#[test]
fn flows_share_a_connection_only_with_flows_of_the_same_source_address() {
    let mut net = Net::new(&["count", "mux"], &["count", "mux"]);
    for (own, connections) in [(1, 1), (2, 2), (1, 2), (2, 2)] {
        let own = SocketAddr::from(([192, 0, 2, own], 4000 + net.ends[0].len() as u16));
        let at = net.connect_from(own.into());
        net.wait(Duration::from_millis(100));
        assert_eq!(net.ends[0][at].answer, Some(Ok(())), "{:?}", net.said);
        assert_eq!(net.connections.len(), connections);
    }
    net.connect();
    assert_eq!(
        net.connections.len(),
        3,
        "a flow without its own source address shares none either"
    );
}

#[test]
fn an_unused_connection_is_closed_unless_a_flow_comes_first() {
    let mut net = joined(&["mux"]);
    let close = |net: &mut Net| {
        let (now, mut all) = (net.now, net.ends.iter_mut().flatten());
        all.by_ref().filter(|end| end.is_there || end.answer.is_some()).for_each(|end| {
            end.chain.close(now);
            end.is_there = false;
        });
    };
    for _ in 0..2 {
        close(&mut net);
        net.wait(Duration::from_millis(100));
        assert_eq!(live(&net), 1);
        net.connect();
        net.wait(Duration::from_millis(200));
        assert_eq!((live(&net), net.connections.len()), (1, 1), "it is used again");
    }
    close(&mut net);
    net.wait(Duration::from_secs(2));
    assert_eq!(live(&net), 0);
    let last = net.connect();
    net.wait(Duration::from_millis(100));
    assert_eq!((net.ends[0][last].answer, net.connections.len()), (Some(Ok(())), 2));
}

#[test]
fn a_stopped_reader_delays_no_other_flow_and_is_bounded() {
    let mut net = joined(&["mux:buffer=64k"]);
    let [slow, quick] = [flows(1).next().unwrap(), flows(1).last().unwrap()];
    let [to_slow, to_quick] = [flows(0).next().unwrap(), flows(0).last().unwrap()];
    net.ends[1][slow].takes = false;
    for _ in 0..200 {
        for at in [to_slow, to_quick] {
            if net.ends[0][at].chain.may_write() {
                let now = net.now;
                net.ends[0][at].write(now, 4_000);
            }
        }
        net.wait(Duration::from_millis(20));
    }
    assert_eq!(net.ends[1][quick].read.got, net.ends[0][to_quick].written.made);
    assert!(net.ends[1][quick].read.got > 500_000, "{}", net.ends[1][quick].read.got);
    assert!(net.ends[1][slow].chain.incoming().len() <= LIMIT + 64 * 1024);
    assert!(!net.ends[0][to_slow].chain.may_write(), "the writer of the slow flow waits");
    net.ends[1][slow].takes = true;
    net.wait(Duration::from_secs(5));
    assert_eq!(net.ends[1][slow].read.got, net.ends[0][to_slow].written.made);
}

#[test]
fn a_broken_connection_resets_all_its_flows() {
    let mut net = joined(&["mux"]);
    net.cut_all(true);
    net.wait(Duration::from_secs(1));
    for (host, at) in flows(0).map(|at| (0, at)).chain(flows(1).map(|at| (1, at))) {
        assert_eq!(net.ends[host][at].failed, [Failure::Reset], "{host} {at}");
    }
}

#[test]
fn a_flow_that_is_dropped_is_reset_alone() {
    let mut net = joined(&["mux"]);
    let [near, far] = [flows(0).next().unwrap(), flows(1).next().unwrap()];
    let now = net.now;
    net.ends[0][near].chain.abandon(now);
    net.wait(Duration::from_secs(1));
    assert_eq!(net.ends[1][far].failed, [Failure::Reset]);
    assert!(flows(1).skip(1).all(|at| net.ends[1][at].failed.is_empty()));
    assert_eq!(live(&net), 1);
}

#[test]
fn unwanted_data_for_a_closed_flow_does_not_drop_the_flows_own_data() {
    let mut net = Net::joined(&["mux"]);
    net.wait(Duration::from_millis(100));
    net.end(1).takes = false;
    // The first bytes fill the buffer above the stream, so the stream keeps the last bytes.
    for count in [2 * LIMIT, 300] {
        net.write(0, count);
        net.wait(Duration::from_millis(100));
    }
    net.close(0);
    net.write(1, 100);
    net.wait(Duration::from_secs(1));
    assert!(net.end(1).failed.is_empty());
    net.end(1).takes = true;
    net.wait(Duration::from_secs(1));
    assert_eq!((net.end(1).read.got, net.end(1).finished), (2 * LIMIT + 300, 1));
    net.write(1, 100);
    net.wait(Duration::from_secs(1));
    assert_eq!(net.end(1).failed, [Failure::Reset], "all data had arrived before the reset");
}

#[test]
fn unreachable_destinations_and_hosts_at_their_limit_are_reported() {
    let mut net = Net::new(&["mux"], &["mux"]);
    net.is_up = false;
    net.connect();
    net.connect();
    net.wait(Duration::from_secs(1));
    let (connection, now) = (&mut net.ends[0][1].chain, net.now);
    connection.connected(now, connection.bottom().unwrap(), Err(Failure::Refused));
    net.settle();
    for at in [0, 2] {
        assert_eq!(net.ends[0][at].answer, Some(Err(Failure::Refused)), "{at}");
    }
    let mut net = joined(&["mux"]);
    net.spawns = false;
    let more = net.connect();
    net.wait(Duration::from_secs(1));
    assert_eq!(net.ends[0][more].answer, Some(Err(Failure::Unreachable)));
    assert!(
        flows(0).all(|at| net.ends[0][at].failed.is_empty()),
        "the other flows are not affected"
    );
}

#[test]
fn a_connection_that_failed_to_start_is_started_for_the_next_flow() {
    let mut net = Net::new(&["mux"], &["mux"]);
    net.spawns = false;
    let first = net.connect();
    assert_eq!(net.ends[0][first].answer, Some(Err(Failure::Unreachable)));
    net.spawns = true;
    let second = net.connect();
    net.wait(Duration::from_millis(100));
    assert_eq!(net.ends[0][second].answer, Some(Ok(())), "{:?}", net.said);
}

#[test]
fn an_application_waits_until_its_stream_is_opened() {
    for chain in [&["mux"][..], &["mux", "crypt:key=1.key"], &["compress", "mux"]] {
        let mut net = Net::new(chain, chain);
        let first = net.connect();
        assert!(!net.ends[0][first].chain.may_write(), "{chain:?}");
        let now = net.now;
        net.ends[0][first].write(now, 100_000);
        net.wait(Duration::from_secs(1));
        assert_eq!(net.ends[0][first].answer, Some(Ok(())), "{:?}", net.said);
        assert!(net.ends[0][first].chain.may_write(), "{chain:?}");
        net.assert_whole();
    }
}

#[test]
fn an_end_that_does_not_answer_is_given_up() {
    // The other end accepts connections, but sends nothing.
    let mut net = Net::new(&["mux"], &["count"]);
    let first = net.connect();
    net.ends[1].iter_mut().for_each(|end| end.takes = false);
    net.wait(Duration::from_secs(19));
    assert_eq!(net.ends[0][first].answer, None);
    net.wait(Duration::from_secs(2));
    assert_eq!(net.ends[0][first].answer, Some(Err(Failure::TimedOut)), "{:?}", net.said);
    assert!(net.said.iter().any(|line| line.contains("does not answer")), "{:?}", net.said);
    // The other way round: the client has no mux.
    let mut net = Net::new(&["count"], &["mux"]);
    net.connect();
    net.wait(Duration::from_secs(25));
    assert_eq!(live(&net), 0, "{:?}", net.said);
}

#[test]
fn a_connection_stays_until_the_data_of_its_last_flow_has_arrived() {
    let mut net = Net::new(&["mux"], &["mux"]);
    let near = net.connect();
    net.wait(Duration::from_millis(100));
    let [far] = [0, 1].into_iter().filter(|&at| net.ends[1][at].is_there).collect::<Vec<_>>()[..]
    else {
        panic!("one flow");
    };
    let now = net.now;
    // The far end writes no more, and does not read yet.
    net.ends[1][far].chain.shutdown(now, Half::Write);
    net.ends[1][far].takes = false;
    net.wait(Duration::from_millis(100));
    let mut said = 0;
    while net.ends[0][near].chain.may_write() && said < 4_000_000 {
        net.ends[0][near].write(now, 50_000);
        said += 50_000;
        net.wait(Duration::from_millis(20));
    }
    let now = net.now;
    net.ends[0][near].chain.close(now);
    net.wait(Duration::from_secs(3));
    net.ends[1][far].takes = true;
    net.wait(Duration::from_secs(5));
    assert_eq!(net.ends[1][far].read.got, said, "{:?}", net.ends[1][far].failed);
    net.wait(Duration::from_secs(2));
    assert_eq!(live(&net), 0, "then it is closed");
}
