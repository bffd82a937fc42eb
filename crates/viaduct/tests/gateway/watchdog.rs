//! Answers to the service manager's watchdog: they stop while a packet thread of a gateway hangs.

use std::fs;
use std::time::Duration;

use viaduct_lab::gateways::{GatewaySpec, Gateways};

use super::common::watchdog::Manager;
use super::common::within;
use super::world;

#[test]
fn the_watchdog_gets_no_answer_while_a_packet_thread_hangs() {
    let (manager, world) = (Manager::new(), world((1500, 1500), "rate=100M,delay=1ms"));
    let spec = GatewaySpec { site: "workers = 2\n".to_owned(), ..GatewaySpec::default() };
    let mut gateways = Gateways::prepare(&world.dumbbell, &spec).unwrap();
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
    for name in ["packets", "packets-1"] {
        manager.check_hang(thread(process, name));
    }
}

/// ID of the thread `name` of a process.
fn thread(process: u32, name: &str) -> u32 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let named = |path: &std::path::PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|text| text.trim_end() == name)
    };
    let thread = threads.find(named).expect("a thread of this name");
    thread.file_name().unwrap().to_str().unwrap().parse().unwrap()
}
