//! A client whose address changes during a transfer, as when its host moves to another network.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{curl, url};
use crate::common::random;
use crate::world::World;

/// Link on which the transfer takes four seconds.
const LINK: &str = "rate=8M,delay=10ms,queue=60kB";
const BYTES: usize = 4_000_000;
/// Time limit of a transfer without a change of address.
const PLAIN: Duration = Duration::from_secs(5);
/// Maximum cost of the change: time until the silence is detected, and the transport starts again
/// at the new address.
const CHANGE: Duration = Duration::from_secs(2);

/// Changes the address of the client's host from `from` to `to`. Routers then drop packets from or
/// to the old address.
fn move_to(world: &World, from: &str, to: &str) {
    let rules = format!(
        "add table ip old; delete table ip old; add table ip old; \
         add chain ip old gone {{ type filter hook forward priority 0; }}; \
         add rule ip old gone ip saddr {from} drop; add rule ip old gone ip daddr {from} drop"
    );
    world.net.gateway_a().run("nft", &[&rules]).unwrap();
    world
        .net
        .a1()
        .ip(&[
            format!("addr del {from}/24 dev eth0"),
            format!("addr add {to}/24 dev eth0"),
            "route replace default via 10.1.1.1".to_owned(),
        ])
        .unwrap();
}

#[test]
fn a_transfer_survives_a_change_of_address() {
    let Some(world) = World::new("moved", LINK) else { return };
    let big = random(BYTES);
    world.file("big.bin", &big);
    let _server = world.serve("auto");
    let mut addresses = ["10.1.1.2", "10.1.1.3"];
    for way in ["tcp", "udp", "auto"] {
        let mut fetch =
            curl(&world, &[&format!("+trickles:way={way}")], &[&url(world.v4(), "big.bin")]);
        let begun = Instant::now();
        let fetch: Child = fetch.stdout(Stdio::piped()).spawn().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(1_500));
                move_to(&world, addresses[0], addresses[1]);
            });
            let got = fetch.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&got.stderr).into_owned();
            assert!(
                got.status.success() && got.stdout == big,
                "{way}: {}: {said}",
                got.stdout.len()
            );
        });
        let took = begun.elapsed();
        println!("{way}: {took:?}");
        assert!(took < PLAIN + CHANGE, "{way}: {took:?}");
        addresses.swap(0, 1);
    }
}
