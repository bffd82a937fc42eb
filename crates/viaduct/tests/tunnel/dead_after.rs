//! Silently vanished ends of links and of flows.

use super::*;
use crate::common::{VANISH, fill};

const DEAD_AFTER: Duration = Duration::from_secs(3);
/// Time within which both ends of the tunnel must have detected the loss: twice the limit, plus a
/// margin for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(12);
/// Drops packets between the two ends of the tunnel.
const CUT: &str = "add table inet lost; \
    add chain inet lost i { type filter hook input priority 0; iifname west drop; }; \
    add chain inet lost o { type filter hook output priority 0; oifname west drop; }";

fn world(carrier: &str) -> World {
    World::new("delay=1ms", &format!("{carrier} --dead-after 3s"))
}

/// Sends five bytes in each direction.
fn echo((client, server): &(TcpStream, TcpStream)) {
    let mut got = [0; 5];
    for (mut from, mut to) in [(client, server), (server, client)] {
        from.write_all(b"there").unwrap();
        to.read_exact(&mut got).unwrap();
    }
}

/// Waits until a proxy resets `stream`. At `since` the proxy has lost its peer, or the other end of
/// the flow.
fn ends(stream: &mut TcpStream, since: Instant, what: &str) {
    stream.set_read_timeout(Some(NOTICED_WITHIN)).unwrap();
    let read = stream.read(&mut [0]);
    let error = read.map_err(|error| error.kind());
    assert_eq!(error, Err(ErrorKind::ConnectionReset), "{what}: {:?}", since.elapsed());
    assert!(since.elapsed() < NOTICED_WITHIN, "{what}: {:?}", since.elapsed());
}

/// Prepares a flow with `prepare`, cuts the tunnel, continues with `then`, and checks that both
/// ends of the flow are reset by their own end of the tunnel.
fn is_noticed(
    what: &str,
    prepare: impl Fn(&mut TcpStream),
    then: impl Fn(&mut (TcpStream, TcpStream)),
) {
    for carrier in CARRIERS {
        let world = world(carrier);
        let listener = world.listen(world.addresses()[0]);
        let mut flow = world.pair(&listener);
        echo(&flow);
        prepare(&mut flow.0);
        world.chain.hops()[1].run("nft", &[CUT]).unwrap();
        let cut = Instant::now();
        then(&mut flow);
        ends(&mut flow.0, cut, &format!("{what}, {carrier}, near end"));
        assert!(cut.elapsed() > DEAD_AFTER / 2, "{what}, {carrier}: {:?}", cut.elapsed());
        // Data that arrived while the reader was stopped is read first.
        flow.1.set_read_timeout(Some(NOTICED_WITHIN)).unwrap();
        let ended = std::io::copy(&mut flow.1, &mut std::io::sink());
        let ended = ended.map_err(|error| error.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset), "{what}, {carrier}, far end");
        for proxy in [&world.near, &world.far] {
            assert!(proxy.log().contains("is gone"), "{what}, {carrier}: {}", proxy.log());
        }
        let table = ["delete", "table", "inet", "lost"];
        world.chain.hops()[1].run("nft", &table).unwrap();
        // The link is dialled again automatically.
        echo(&world.pair(&listener));
    }
}

#[test]
fn an_idle_link_whose_other_end_vanished_is_given_up() {
    is_noticed("idle", |_| {}, |_| {});
}

#[test]
fn a_link_with_unacknowledged_data_whose_other_end_vanished_is_given_up() {
    let say = |(client, server): &mut (TcpStream, TcpStream)| {
        client.write_all(b"lost").unwrap();
        server.write_all(b"lost").unwrap();
    };
    is_noticed("unacknowledged", |_| {}, say);
}

#[test]
fn a_link_with_a_shut_window_whose_other_end_vanished_is_given_up() {
    is_noticed(
        "shut",
        |client| {
            fill(client);
        },
        |_| {},
    );
}

#[test]
fn a_link_whose_other_end_hangs_is_given_up() {
    for carrier in CARRIERS {
        let mut world = world(carrier);
        let listener = world.listen(world.addresses()[0]);
        let (mut client, _server) = world.pair(&listener);
        let far = Pid::from_raw(world.far.process().id().cast_signed()).unwrap();
        kill_process(far, Signal::STOP).unwrap();
        let stopped = Instant::now();
        fill(&mut client);
        ends(&mut client, stopped, carrier);
        kill_process(far, Signal::CONT).unwrap();
    }
}

#[test]
fn a_stopped_reader_is_kept_until_it_vanishes() {
    for carrier in CARRIERS {
        let world = world(carrier);
        let listener = world.listen(world.addresses()[0]);
        let [mut idle, mut unacknowledged, mut shut] = [0; 3].map(|_| world.pair(&listener));
        echo(&idle);
        echo(&unacknowledged);
        let sent = fill(&mut shut.0);
        // With TCP_USER_TIMEOUT alone, the far end would give up while the window is shut.
        thread::sleep(2 * DEAD_AFTER);
        shut.1.read_exact(&mut vec![0; sent]).unwrap();
        fill(&mut shut.0);
        echo(&idle);
        assert!(!world.near.log().contains("is gone"), "{}", world.near.log());

        world.chain.server().run("nft", &[VANISH]).unwrap();
        let vanished = Instant::now();
        unacknowledged.0.write_all(b"lost").unwrap();
        for (what, flow) in
            [("idle", &mut idle), ("data", &mut unacknowledged), ("shut", &mut shut)]
        {
            ends(&mut flow.0, vanished, &format!("{what}, {carrier}"));
        }
        assert!(!world.near.log().contains("is gone"), "the tunnel broke: {}", world.near.log());
    }
}
