//! Gateways with several workers, which divide the lanes among them.

use std::collections::HashSet;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use viaduct_lab::gateways::{GatewaySpec, GatewayStatus};
use viaduct_lab::load::{PairDatagram, Pairs, lost_share};
use viaduct_lab::upgrade::upgrade;
use viaduct_lab::world::World;

use super::{eventually, world};

/// Maximum share of lost packets with repairs. The link loses 2 %.
const LOSS: f64 = 0.005;

/// The tests of this file run one after another: with all of their threads at once on a few
/// processors, copies would be read too late.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// World with a lossy link and many pairs of addresses, and gateways with two workers.
fn lossy_world() -> (World, Pairs) {
    let mut world = world((1500, 1500), "rate=100M,delay=5ms,loss=2%");
    let pairs = Pairs::new(&world).unwrap();
    let site = "workers = 2\n".to_owned();
    world.protect(&GatewaySpec { site, ..GatewaySpec::default() }).unwrap();
    (world, pairs)
}

/// Share of the packets of a worker's lanes that were lost.
fn loss(sent: &[PairDatagram], worker: u8) -> f64 {
    lost_share(sent.iter().filter(|of| of.lane % 2 == worker))
}

/// Number of workers, of panicked workers, of lanes, and of lanes that are down.
fn counts(status: &GatewayStatus) -> [usize; 4] {
    let peer = &status.peers[0];
    [status.workers, status.workers_dead, peer.lanes, peer.lanes_down]
}

#[test]
fn losses_are_recovered_in_the_lanes_of_all_workers() {
    let _alone = alone();
    let (mut world, pairs) = lossy_world();
    // The other gateway has a single worker, and wants one lane.
    let gateways = world.gateways().unwrap();
    gateways.b.stop().unwrap();
    let text = fs::read_to_string(gateways.b.config()).unwrap();
    fs::write(gateways.b.config(), text.replace("workers = 2\n", "")).unwrap();
    gateways.b.start().unwrap();
    gateways.wait_until_up().unwrap();
    for (gateway, workers) in [(&gateways.a, 2), (&gateways.b, 1)] {
        let are_up = || counts(&gateway.status().unwrap()) == [workers, 0, 16, 0];
        eventually(gateway, "all lanes", are_up);
    }
    // The gateways learn the losses of the link.
    pairs.stream(Duration::from_millis(2_000)).unwrap();
    let before = world.receiver().unwrap().recovered;
    let sent = pairs.stream(Duration::from_millis(2_000)).unwrap();
    let lanes: HashSet<_> = sent.iter().map(|packet| packet.lane).collect();
    assert!(lanes.len() > 12, "most lanes have packets");
    thread::sleep(Duration::from_millis(300));
    let gateways = world.gateways().unwrap();
    let [a, b] = [&gateways.a, &gateways.b].map(|gateway| gateway.status().unwrap());
    let counters = || format!("{:?} {:?} {:?}", a.shell(), a.peer().sender, b.peer().receiver);
    for worker in 0..2 {
        let loss = loss(&sent, worker);
        assert!(loss < LOSS, "{loss} of the packets of worker {worker}: {}", counters());
    }
    let recovered = b.peer().receiver.recovered - before;
    assert!(recovered as f64 > 0.01 * sent.len() as f64, "{recovered}");
    assert!(a.peer().sender.protected >= sent.len() as u64, "{:?}", a.peer().sender);
    assert_eq!((b.peer().session.forged, b.peer().receiver.garbled), (0, 0));
}

#[test]
fn a_worker_that_panics_costs_its_lanes_a_handshake_and_the_others_nothing() {
    let _alone = alone();
    let (mut world, pairs) = lossy_world();
    let gateways = world.gateways().unwrap();
    gateways.a.stop().unwrap();
    gateways.a.set_variable("VIADUCT_PANIC_WORKER", "1@4s");
    gateways.a.start().unwrap();
    gateways.wait_until_up().unwrap();
    pairs.stream(Duration::from_millis(1_500)).unwrap();
    let (sent, dead_at) = thread::scope(|scope| {
        let sent = scope.spawn(|| pairs.stream(Duration::from_millis(4_500)).unwrap());
        let a = &world.running().unwrap().a;
        let status = || counts(&a.status().unwrap());
        eventually(a, "the panic", || status()[1] == 1);
        let dead_at = Instant::now();
        eventually(a, "the other worker has all lanes", || status() == [2, 1, 16, 0]);
        (sent.join().unwrap(), dead_at)
    });
    let spared = loss(&sent, 0);
    let [a, b] = [&world.running().unwrap().a, &world.running().unwrap().b];
    let [a, b] = [a.status().unwrap(), b.status().unwrap()];
    let counters = format!("{:?} {:?} {:?}", a.shell(), a.peer().sender, b.peer().receiver);
    assert!(spared < LOSS, "{spared} of the packets in other lanes: {counters}");
    // The status shows the panic some time after it happened.
    let (from, to) = (dead_at - Duration::from_millis(500), dead_at + Duration::from_secs(1));
    let other_times: Vec<_> =
        sent.iter().copied().filter(|of| of.at < from || of.at > to).collect();
    let lost = loss(&other_times, 1);
    assert!(lost < LOSS, "{lost} of the packets in the dead worker's lanes");
    assert!(sent.iter().any(|of| of.at > to), "packets follow");
    // The other workers continue until the gateway is restarted.
    let gateway = &world.gateways().unwrap().a;
    assert!(gateway.log().contains("a packet thread panicked"), "{}", gateway.log());
    let text = fs::read_to_string(gateway.config()).unwrap();
    fs::write(gateway.config(), text.replace("workers = 2", "workers = 1")).unwrap();
    gateway.signal(Signal::HUP).unwrap();
    eventually(gateway, "a refused reload", || gateway.log().contains("workers has changed"));
    assert_eq!(gateway.status().unwrap().workers_dead, 1);
}

#[test]
fn the_lanes_of_all_workers_continue_in_another_process() {
    let _alone = alone();
    let (mut world, pairs) = lossy_world();
    let gateways = world.gateways().unwrap();
    let are_up = || counts(&gateways.a.status().unwrap()) == [2, 0, 16, 0];
    eventually(&gateways.a, "all lanes", are_up);
    // The gateways learn the losses of the link.
    pairs.stream(Duration::from_millis(2_000)).unwrap();
    let handshakes = || gateways.b.status().unwrap().peer().session.handshakes;
    let before = handshakes();
    let new = upgrade(gateways.directory(), &["--name", "site-a"]).unwrap();
    let status = gateways.a.status().unwrap();
    assert_eq!((status.pid, counts(&status)), (new.id(), [2, 0, 16, 0]));
    let sent = pairs.stream(Duration::from_millis(2_000)).unwrap();
    for worker in 0..2 {
        let lost = loss(&sent, worker);
        assert!(lost < LOSS, "worker {worker}: {lost}");
    }
    assert_eq!(handshakes(), before, "the sessions have continued");
    new.end().unwrap();
}
