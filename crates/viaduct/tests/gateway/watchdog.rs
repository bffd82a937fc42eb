//! Answers to the service manager's watchdog: they stop while the packet thread of a gateway hangs.

use std::fs;
use std::time::Duration;

use viaduct_lab::gateways::{GatewaySpec, Gateways};

use super::common::watchdog::Manager;
use super::common::within;
use super::world;

#[test]
fn the_watchdog_gets_no_answer_while_the_packet_thread_hangs() {
    let (manager, world) = (Manager::new(), world((1500, 1500), "rate=100M,delay=1ms"));
    let mut gateways = Gateways::prepare(&world.dumbbell, &GatewaySpec::default()).unwrap();
    for (name, value) in manager.variables() {
        gateways.a.set_variable(name, &value);
    }
    gateways.b.start().unwrap();
    gateways.a.start().unwrap();
    // Answers that are not read would block the gateway.
    let is_up = || {
        manager.forget();
        gateways.a.status().is_ok_and(|status| status.peer().up)
    };
    assert!(within(Duration::from_secs(15), is_up), "{}", gateways.a.log());
    let process = gateways.a.pid().unwrap().as_raw_nonzero().get().cast_unsigned();
    manager.check_hang(packet_thread(process));
}

/// ID of the packet thread of a gateway.
fn packet_thread(process: u32) -> u32 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let named = |path: &std::path::PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "packets\n")
    };
    let thread = threads.find(named).expect("a thread of this name");
    thread.file_name().unwrap().to_str().unwrap().parse().unwrap()
}
