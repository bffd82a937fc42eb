//! Answers to the service manager's watchdog: they stop while the event loop of a proxy hangs.

use std::process::{Command, Stdio};

use viaduct_sys::process::Process;

use crate::common::free_port;
use crate::common::watchdog::Manager;

#[test]
fn the_watchdog_gets_no_answer_while_an_event_loop_hangs() {
    let manager = Manager::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    let listen = format!("127.0.0.1:{}", free_port());
    command.args(["proxy", "--to", "127.0.0.1:9", "--forward", "late", "--listen", &listen]);
    command.arg("--run-dir").arg(std::env::temp_dir());
    command.envs(manager.variables()).stderr(Stdio::null());
    let proxy = Process::spawn(command).unwrap();
    assert!(manager.receives_in_time("READY=1"), "the proxy has not come up");
    // The only loop runs in the main thread.
    manager.check_hang(proxy.id());
}
