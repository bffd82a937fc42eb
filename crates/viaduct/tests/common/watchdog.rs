//! Service manager that expects answers to its watchdog, and threads that hang. A debugger's call
//! (ptrace) stops a single thread.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use viaduct_lab::topology::Scratch;

use super::within;

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

/// Socket of a service manager, which receives a service's messages.
pub(crate) struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _scratch: Scratch,
}

/// Thread that hangs.
struct Hang(Child);

impl Manager {
    pub(crate) fn new() -> Manager {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(INTERVAL)).unwrap();
        Manager { socket, path, _scratch: scratch }
    }

    /// Variables in the environment of a service with a watchdog.
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        let interval = INTERVAL.as_micros().to_string();
        [("NOTIFY_SOCKET", self.path.to_string_lossy().into()), ("WATCHDOG_USEC", interval)]
    }

    /// Returns whether the message `what` arrives within ten seconds: on a busy machine the loop
    /// may not run for some intervals.
    pub(crate) fn receives_in_time(&self, what: &str) -> bool {
        within(Duration::from_secs(10), || self.receives(what))
    }

    /// Asserts that the answers stop while `thread` hangs, and then begin again.
    pub(crate) fn check_hang(&self, thread: u32) {
        for _ in 0..3 {
            assert!(self.receives_in_time("WATCHDOG=1"), "the loop runs");
        }
        let hang = Hang::of(thread);
        // Waits until the loop's last iteration is too old.
        std::thread::sleep(INTERVAL);
        self.forget();
        assert!(!self.receives("WATCHDOG=1"), "the loop hangs");
        hang.end();
        assert!(self.receives_in_time("WATCHDOG=1"), "the loop runs again");
    }

    /// Returns whether the next message is `what`; false if there is none within the interval.
    fn receives(&self, what: &str) -> bool {
        let mut text = [0; 100];
        self.socket.recv(&mut text).is_ok_and(|length| text[..length].starts_with(what.as_bytes()))
    }

    /// Discards the messages that have arrived.
    pub(crate) fn forget(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 100]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }
}

impl Hang {
    fn of(thread: u32) -> Hang {
        let mut stopper = Command::new("python3");
        stopper.args(["-c", STOPPER, &thread.to_string()]);
        let mut stopper = stopper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(stopper.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "stopped\n");
        Hang(stopper)
    }

    fn end(mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}
