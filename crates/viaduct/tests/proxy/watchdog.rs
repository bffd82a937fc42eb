//! Answers to the service manager's watchdog: they stop while an event loop hangs. A debugger's
//! call (ptrace) stops the loop's thread alone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{free_port, within};

/// The watchdog's interval. Three answers are sent in each interval. A loop counts as hung after
/// half an interval.
const INTERVAL: Duration = Duration::from_millis(1_500);

/// Stops the thread whose ID is the argument, prints a line, and lets the thread continue at the
/// end of input.
const STOPPER: &str = "
import ctypes, sys
thread, ptrace = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT = 0x4206, 0x4207
assert ptrace(SEIZE, thread, None, None) == 0, ctypes.get_errno()
assert ptrace(INTERRUPT, thread, None, None) == 0, ctypes.get_errno()
print('stopped', flush=True)
sys.stdin.read()
";

/// Proxy, and the socket of a service manager, which receives the watchdog's messages.
struct Service {
    manager: UnixDatagram,
    process: Child,
}

impl Service {
    fn start() -> Service {
        let name = format!("viaduct-manager-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_read_timeout(Some(INTERVAL)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let listen = format!("127.0.0.1:{}", free_port());
        command.args(["proxy", "--to", "127.0.0.1:9", "--forward", "late", "--listen", &listen]);
        command.arg("--run-dir").arg(std::env::temp_dir());
        command.env("NOTIFY_SOCKET", format!("@{name}")).stderr(Stdio::null());
        command.env("WATCHDOG_USEC", INTERVAL.as_micros().to_string());
        let process = command.spawn().unwrap();
        let service = Service { manager, process };
        assert!(service.hears_in_time("READY=1"), "the proxy has not come up");
        service
    }

    /// Returns whether a message is `what`, within ten seconds: on a busy machine the loop may not
    /// run for some intervals.
    fn hears_in_time(&self, what: &str) -> bool {
        within(Duration::from_secs(10), || self.hears(what))
    }

    /// Returns whether the next message is `what`; false if there is none within the interval.
    fn hears(&self, what: &str) -> bool {
        let mut text = [0; 100];
        self.manager.recv(&mut text).is_ok_and(|length| text[..length].starts_with(what.as_bytes()))
    }

    /// Discards the messages that have arrived.
    fn forget(&self) {
        self.manager.set_nonblocking(true).unwrap();
        while self.manager.recv(&mut [0; 100]).is_ok() {}
        self.manager.set_nonblocking(false).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_watchdog_gets_no_answer_while_an_event_loop_hangs() {
    let service = Service::start();
    for _ in 0..3 {
        assert!(service.hears_in_time("WATCHDOG=1"), "the loop runs");
    }
    // The only loop runs in the main thread.
    let mut stopper = Command::new("python3");
    stopper.args(["-c", STOPPER, &service.process.id().to_string()]);
    let mut stopper = stopper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(stopper.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "stopped\n");
    // Waits until the loop's last turn is old.
    std::thread::sleep(INTERVAL);
    service.forget();
    assert!(!service.hears("WATCHDOG=1"), "the loop hangs");
    stopper.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(stopper.wait().unwrap().success());
    assert!(service.hears_in_time("WATCHDOG=1"), "the loop runs again");
}
