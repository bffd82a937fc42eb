//! Real gateways in a lab's world: what hosts see.

use std::time::Duration;

use viaduct_lab::gateways::{GatewaySpec, use_binary};
use viaduct_lab::topology::Journal;
use viaduct_lab::topology::programs::Ping;
use viaduct_lab::world::World;

fn world(link: &str) -> World {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    World::new((1200, 1500), &link.parse().unwrap(), 1, &Journal::new()).unwrap()
}

#[test]
fn pings_get_through_a_lossy_link() {
    let mut world = world("rate=100M,delay=5ms,loss=5%");
    world.protect(&GatewaySpec::default().host_mtu(1200)).unwrap();
    let ping = Ping { count: 300, interval: Duration::from_millis(5), size: 100 };
    let report = ping.run(world.a1(), world.b1().v4().into()).unwrap();
    let gateways = world.gateways().unwrap();
    println!(
        "{}\n{:?}\n{:?}",
        report.round_trips_ms.len(),
        gateways.a.status(),
        gateways.b.status()
    );
    for c in [&["-s", "link"][..], &["addr"], &["route"], &["neigh"]] {
        println!("{}", world.dumbbell.gateway_b().run("ip", c).unwrap());
    }
    println!(
        "{}",
        world.dumbbell.gateway_b().run("cat", &["/proc/net/snmp", "/proc/net/netstat"]).unwrap()
    );
    println!(
        "{}",
        world
            .dumbbell
            .gateway_b()
            .run("sh", &["-c", "grep . /proc/sys/net/ipv4/conf/vd*/*"])
            .unwrap()
    );
    assert!(report.round_trips_ms.len() >= 299, "{report:?}");
}
