//! Signals that arrive while a program waits for a connect.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{CHAIN, VIADUCT, output, run, text};

const VIAS: [&str; 3] = ["--via=cgroup", "--via=seccomp", "--via=preload"];

/// A listener with a full backlog, which drops SYNs until a connection is accepted; the connections
/// that fill it; and its address.
fn full() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let at = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&at, Duration::from_millis(200)).ok();
    let first = std::iter::from_fn(connect).take(8).collect();
    (listener, first, at)
}

#[test]
fn a_signal_handler_runs_during_a_pending_connect() {
    let (_listener, _first, at) = full();
    let program = "
import signal, socket, sys
def alarm(*_): print('alarm', flush=True); sys.exit(9)
signal.signal(signal.SIGALRM, alarm)
signal.alarm(1)
socket.socket().connect(('127.0.0.1', int(sys.argv[1])))
";
    for via in VIAS {
        let said = output(&[CHAIN, via, "--", "python3", "-c", program, &at.port().to_string()]);
        assert_eq!(
            (text(&said.stdout).trim(), said.status.code()),
            ("alarm", Some(9)),
            "{via} {said:?}"
        );
    }
}

#[test]
fn signals_do_not_break_a_pending_connect() {
    let program = "
import signal, socket, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
print('begins', flush=True)
s = socket.socket()
s.connect(('127.0.0.1', int(sys.argv[1])))
signal.setitimer(signal.ITIMER_REAL, 0)
print('there', s.getpeername()[1], flush=True)
";
    for via in VIAS {
        let (listener, _first, at) = full();
        let port = at.port().to_string();
        let mut command = run(&[CHAIN, via, "--", "python3", "-c", program, &port]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "begins");
        std::thread::sleep(Duration::from_millis(300));
        // With room in the backlog, the next SYN is answered.
        let come = std::thread::spawn(move || while listener.accept().is_ok() {});
        assert_eq!(lines.next().unwrap().unwrap(), format!("there {port}"), "{via}");
        assert!(child.wait().unwrap().success());
        drop(come);
    }
}

#[test]
fn a_blocking_send_obeys_its_timeout_and_signals() {
    // For 3 s, datagrams to a neighbour that does not answer are queued, and take buffer
    // space. Under these rules, the master checks each send that has an address, and performs the
    // send for the program.
    let program = "
import signal, socket, struct, time
def full(s):
    begun = time.monotonic()
    while True:
        s.sendto(b'x' * 500, ('192.0.2.9', 9))
        if time.monotonic() - begun > 2.5: return 'not full'
def timed(s):
    begun = time.monotonic()
    try: what = full(s)
    except OSError as error: what = type(error).__name__
    print(what, 0.2 < time.monotonic() - begun < 1.5, flush=True)
def opened():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return s
limited = opened()
limited.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 0, 400000))
timed(limited)
def alarm(*_): raise InterruptedError
signal.signal(signal.SIGALRM, alarm)
signal.setitimer(signal.ITIMER_REAL, 0.4)
timed(opened())
";
    let network = "ip link add v0 type veth peer v1 && ip link set v1 up && ip link set v0 up
        ip addr add 192.0.2.1/24 dev v0 && ip link set lo up && exec \"$@\"";
    let said = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", network, "sh", "timeout", "--signal=KILL", "20"]);
        let said = command.args(words).args(["python3", "-c", program]).output().unwrap();
        (text(&said.stdout), text(&said.stderr))
    };
    let kernel = said(&[]);
    assert_eq!(kernel.0, "BlockingIOError True\nInterruptedError True\n", "{kernel:?}");
    for via in VIAS {
        let rules = ["--only", "tcp", "--refuse", "udp:53"];
        let through = said(&[&[VIADUCT, "run", CHAIN, via], &rules[..], &["--"]].concat());
        assert_eq!(through.0, kernel.0, "{via} {through:?}");
    }
}
