use super::super::testing::{Net, factories, shell};
use super::exchange;
use crate::flow::{Address, Chain, Failure, Half};
use crate::time::Duration;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Time to pass between steps.
const WHILE: Duration = Duration::from_secs(2);

fn live(net: &Net) -> usize {
    net.connections.iter().filter(|c| c.seats.iter().all(Option::is_some)).count()
}

#[test]
fn a_flow_survives_a_reset_and_a_silent_outage() {
    for chain in
        [&["migrate"][..], &["migrate", "crypt:key=1.key"], &["crypt:key=1.key", "migrate"]]
    {
        for heard in [true, false] {
            let mut net = Net::joined(chain);
            exchange(&mut net);
            let now = net.now;
            let names = net.end(0).chain.getpeername(now);
            net.write(0, 3_000);
            net.write(1, 3_000);
            net.is_up = false;
            net.cut_all(heard);
            net.wait(seconds(30));
            assert!(net.end(0).events.contains(&"migrate: disconnected".to_owned()));
            net.is_up = true;
            net.wait(WHILE);
            net.assert_whole();
            assert_eq!(net.end(0).events[1], "migrate: migrated to 192.0.2.1:40000", "{chain:?}");
            assert!(net.end(1).events[1].starts_with("migrate: migrated to "), "{chain:?}");
            exchange(&mut net);
            assert_eq!(live(&net), 1, "{chain:?}");
            assert_eq!(net.end(0).chain.getpeername(now), names);
            net.shutdown(0);
            net.shutdown(1);
            net.wait(WHILE);
            assert_eq!((net.end(0).finished, net.end(1).finished), (1, 1));
            assert_eq!(live(&net), 0);
            net.assert_whole();
        }
    }
}

#[test]
fn a_flow_migrates_while_bulk_data_is_sent_in_either_direction() {
    for from in [0, 1] {
        let mut net = Net::joined(&["migrate"]);
        exchange(&mut net);
        for round in 0..400 {
            if net.end(from).chain.may_write() {
                net.write(from, 1_400);
            }
            if round == 100 {
                net.cut_all(false);
            }
            net.wait(Duration::from_millis(20));
        }
        net.wait(WHILE);
        net.assert_whole();
        assert!(net.end(from).written.made > 300_000, "{}", net.end(from).written.made);
    }
}

#[test]
fn data_of_a_flow_closed_before_a_cut_arrives_after_it() {
    let mut net = Net::joined(&["migrate"]);
    exchange(&mut net);
    net.write(0, 2_000);
    net.close(0);
    net.cut_all(true);
    net.wait(WHILE);
    assert_eq!(net.end(1).finished, 1);
    net.assert_whole();
    net.close(1);
    net.wait(WHILE);
    assert_eq!(live(&net), 0);
}

#[test]
fn a_lost_last_acknowledgement_is_not_a_reset() {
    for writer in [0, 1] {
        let mut net = Net::joined(&["migrate:within=20s"]);
        exchange(&mut net);
        net.shutdown(1 - writer);
        net.wait(WHILE);
        net.shutdown(writer);
        // The end of the stream arrives, but its acknowledgement is lost.
        net.wait(Duration::from_millis(6));
        net.cut_all(true);
        net.wait(seconds(60));
        assert_eq!((net.end(0).finished, net.end(1).finished, live(&net)), (1, 1, 0));
        assert!(net.end(0).failed.is_empty() && net.end(1).failed.is_empty(), "{:?}", net.said);
    }
}

#[test]
fn data_that_the_other_end_lacks_when_it_vanishes_is_reported() {
    for writer in [0, 1] {
        let mut net = Net::joined(&["migrate:within=20s"]);
        exchange(&mut net);
        net.shutdown(1 - writer);
        net.wait(WHILE);
        assert_eq!(net.end(writer).finished, 1);
        let now = net.now;
        let gone = &mut net.ends[1 - writer][0];
        gone.is_there = false;
        gone.chain = Chain::new(factories(&[], &shell()), 1 - writer, now);
        net.forget();
        net.cut_all(true);
        net.write(writer, 1_000);
        net.shutdown(writer);
        net.wait(seconds(60));
        assert_eq!(net.end(writer).failed, [Failure::Reset], "{writer}");
    }
}

#[test]
fn a_write_to_a_closed_flow_is_reported() {
    let mut net = Net::joined(&["migrate"]);
    exchange(&mut net);
    net.close(0);
    net.wait(WHILE);
    net.write(1, 100);
    net.wait(WHILE);
    assert_eq!(net.end(1).failed, [Failure::Reset]);
    assert_eq!(live(&net), 0);
}

#[test]
fn a_break_is_reported_after_the_data_before_it() {
    for chain in [&["migrate"][..], &["compress", "migrate", "crypt:key=1.key"]] {
        let mut net = Net::joined(chain);
        exchange(&mut net);
        net.write(0, 50_000);
        let now = net.now;
        net.end(0).chain.abort(now);
        net.wait(WHILE);
        let made = net.end(0).written.made;
        assert_eq!(net.end(1).read.got, made, "{chain:?}");
        assert_eq!(net.end(1).failed, [Failure::Reset], "{chain:?}");
        assert_eq!(live(&net), 0, "{chain:?}");
    }
}

#[test]
fn the_flow_is_reset_once_after_the_time_limit() {
    let mut net = Net::joined(&["migrate:within=20s,freeze=true"]);
    exchange(&mut net);
    net.is_up = false;
    net.cut_all(true);
    net.wait(seconds(19));
    assert!(net.end(0).failed.is_empty() && net.end(1).failed.is_empty());
    assert_eq!(net.end(0).events, ["migrate: disconnected", "migrate: freeze"]);
    net.wait(seconds(600));
    assert_eq!(net.end(0).failed, [Failure::Reset]);
    assert!(net.connections.len() < 100, "{} attempts", net.connections.len());
    assert_eq!(net.end(1).failed, [Failure::Reset]);
}

#[test]
fn a_buffer_is_never_exceeded() {
    let mut net = Net::joined(&["migrate:buffer=64k"]);
    exchange(&mut net);
    net.is_up = false;
    net.cut_all(false);
    let mut written = 0;
    while net.end(0).chain.may_write() {
        net.write(0, 1_000);
        written += 1_000;
        assert!(written < 64 << 10);
    }
    assert!(written > 16 << 10, "{written}");
    net.is_up = true;
    net.wait(seconds(10));
    net.assert_whole();
}

#[test]
fn a_third_party_that_knows_the_session_cannot_take_it_over() {
    let mut net = Net::joined(&["migrate"]);
    exchange(&mut net);
    net.cut_all(true);
    net.wait(WHILE);
    // An attacker replays the owner's second connection, which it has recorded.
    let heard = net.heard[1].clone();
    let (served, before) = (net.end(1).read.got, live(&net));
    net.cut = 1;
    let thief = net.ends[0].len();
    let plain = Chain::new(factories(&[], &shell()), 1 << 20, net.now);
    net.ends[0].push(super::super::testing::End::new(plain, true));
    let (now, to) = (net.now, Address::Name("server".into(), 1));
    net.ends[0][thief].chain.connect(now, to);
    net.settle();
    net.ends[0][thief].takes = false;
    assert!(net.ends[0][thief].chain.write(now, heard.into()));
    net.wait(seconds(1));
    assert!(net.said.iter().any(|line| line.contains("no part in the session")), "{:?}", net.said);
    assert_eq!((net.end(1).read.got, live(&net)), (served, before));
    exchange(&mut net);
    net.assert_whole();
}

#[test]
fn an_unknown_session_ends_immediately() {
    let mut net = Net::joined(&["migrate"]);
    exchange(&mut net);
    // The accepting end has been restarted.
    let now = net.now;
    net.ends[1][0].is_there = false;
    let empty = Chain::new(factories(&[], &shell()), 1, now);
    net.ends[1][0].chain = empty;
    net.forget();
    net.cut_all(true);
    net.wait(seconds(1));
    assert_eq!(net.end(0).failed, [Failure::Reset]);
    assert!(net.said.iter().any(|line| line.contains("has forgotten")), "{:?}", net.said);
}

#[test]
fn plain_clients_are_recognised_by_their_first_bytes() {
    let mut net = Net::new(&[], &["migrate"]);
    net.connect();
    net.write(0, 50);
    net.wait(seconds(1));
    assert!(net.ends[1].iter().all(|end| !end.is_there && end.failed == [Failure::Reset]));
    assert!(net.said[0].contains("invalid message"), "{:?}", net.said);
    let mut net = Net::new(&["migrate"], &[]);
    net.connect();
    net.ends[1][0].takes = false;
    net.wait(seconds(60));
    assert_eq!(net.end(0).failed, [Failure::TimedOut]);
    net.end(0).chain.shutdown(crate::time::Instant::ZERO, Half::Write);
}

#[test]
fn pings_of_an_end_that_reads_nothing_do_not_fill_memory() {
    let mut net = Net::joined(&["migrate"]);
    exchange(&mut net);
    let now = net.now;
    let bottom = net.connections[0].seats[1].unwrap().2;
    let chain = &mut net.end(1).chain;
    for size in [1, 1_000, 64 << 10].repeat(50) {
        chain.avail(now, bottom, vec![9; size].into());
        chain.handle_timeout(now);
        let queued = chain.outgoing(bottom).len();
        assert!(queued < 256 << 10, "{queued} bytes wait");
    }
}
