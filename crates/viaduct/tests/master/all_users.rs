//! Users of a master with `--all-users`: no user can stop, starve or end the flows of another.

use std::cell::Cell;
use std::io::{self, BufRead as _, BufReader, Lines};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::net::{Shutdown, sockopt};
use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::shared::{Down, RECORD, Up};
use viaduct_sys::socket::seqpacket;
use viaduct_sys::socket::tcp::{self, TcpOptions};

use crate::common::{as_user, free_port, within};

use super::{CHAIN, RunDir, far_end, text};

const OTHER_USER: u32 = 65_534;
const HOSTILE_CALLS: usize = 10_000;
/// Limit on the pending connects of a guest, which is a user other than the master's. The tests
/// give it as an option of the master.
const CALLS: usize = 32;

/// Echoes over one connection, and opens further ones, until a line arrives on standard input.
/// Prints the longest echo in seconds, and the numbers of connects that succeeded and failed.
const VICTIM: &str = "
import select, socket, sys, time
host, port = sys.argv[1].rsplit(':', 1)
to = (host, int(port))
c = socket.create_connection(to); c.settimeout(60); f = c.makefile('rb')
most = new = failed = 0
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    began = time.monotonic(); c.sendall(b'x\\n'); assert f.readline()
    most = max(most, time.monotonic() - began)
    try: socket.create_connection(to, 5).close(); new += 1
    except OSError: failed += 1
print(most, new, failed)
";

/// A run of root that executes [`VICTIM`].
struct Victim(Child, Lines<BufReader<ChildStdout>>);

impl Victim {
    fn start(run_dir: &RunDir, master: &str, to: SocketAddr) -> Victim {
        let run = ["run", "--master", master, "--via", "seccomp", "--", "python3", "-c", VICTIM];
        let mut command = std::process::Command::new("timeout");
        command.args(["--signal=KILL", "120", super::VIADUCT]).args(run).arg(to.to_string());
        command.env("VIADUCT_RUN_DIR", &run_dir.0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        Victim(child, lines)
    }

    /// Ends the program, and checks that every echo was in time and every connect succeeded.
    fn end_unharmed(mut self) {
        drop(self.0.stdin.take());
        let said = self.1.next().unwrap().unwrap();
        let said: Vec<f64> = said.split(' ').map(|number| number.parse().unwrap()).collect();
        let [longest, new, failed] = said[..] else { panic!("{said:?}") };
        assert!(longest < 3.0 && new > 0.0 && failed == 0.0, "{said:?}");
        assert!(self.0.wait().unwrap().success());
    }
}

/// A run of another user that sends arbitrary messages.
struct Hostile(OwnedFd);

impl Hostile {
    fn join(socket_path: &Path) -> Hostile {
        let socket = seqpacket::connect(&socket_path.to_string_lossy()).unwrap();
        let network = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
        seqpacket::send(&socket, &Up::Hello { network }.emit(), None).unwrap();
        assert!(seqpacket::receive(&socket, &mut [0; 4096]).unwrap().0 > 0);
        Hostile(socket)
    }

    fn call(&self, id: u64, to: SocketAddr, socket: impl AsFd) -> io::Result<()> {
        let source = "127.0.0.1:40000".parse().unwrap();
        let (lent, is_bound) = (false, false);
        let up = Up::Call { id, to, source, lent, is_bound, options: [None; 11] };
        seqpacket::send(&self.0, &up.emit(), Some(socket.as_fd()))
    }

    fn receive(&self) -> Option<Down> {
        let mut bytes = [0; RECORD];
        let (length, _) = seqpacket::receive(&self.0, &mut bytes).ok()?;
        Down::parse(&bytes[..length])
    }
}

fn fresh() -> TcpStream {
    tcp::bound("127.0.0.1:0".parse().unwrap(), TcpOptions::default()).unwrap()
}

/// A connection whose other end reads nothing.
fn connected() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [one, listener.accept().unwrap().0]
}

/// A listener that answers no SYN, because its backlog is full, and the connections that fill it.
fn silent() -> (TcpListener, Vec<TcpStream>) {
    let listener = tcp::listen("127.0.0.1:0".parse().unwrap(), 0, TcpOptions::default()).unwrap();
    let at = listener.local_addr().unwrap();
    let fill = (0..4).map(|_| tcp::connect(at, None, TcpOptions::default()).unwrap());
    let filled: Vec<_> = fill.collect();
    let one = || filled.iter().filter(|stream| stream.peer_addr().is_ok()).count() >= 1;
    assert!(within(Duration::from_secs(5), one));
    (listener, filled)
}

/// Passes sockets that close slowly, because they have unsent bytes and SO_LINGER.
fn lingers(socket_path: &Path, closed: SocketAddr) {
    let run = Hostile::join(socket_path);
    for id in 0..3 {
        let [ours, theirs] = connected();
        ioctl_fionbio(&ours, true).unwrap();
        while rustix::io::write(&ours, &[0; 65536]).is_ok() {}
        run.call(id, closed, &ours).unwrap();
        // The master clears SO_LINGER. Setting it repeatedly puts it into effect when the master
        // closes the socket.
        for _ in 0..200 {
            sockopt::set_socket_linger(&ours, Some(Duration::from_secs(20))).unwrap();
        }
        drop(ours);
        assert!(matches!(run.receive(), Some(Down::Refuse { .. })));
        // The other end reads nothing until this test has ended.
        std::mem::forget(theirs);
    }
}

/// Passes sockets, and sets them to blocking while the master uses them.
fn blocks(socket_path: &Path, far: SocketAddr) {
    let run = Hostile::join(socket_path);
    for id in 0..3 {
        let [ours, theirs] = connected();
        let again = ours.try_clone().unwrap();
        let stop = Arc::new(AtomicUsize::new(0));
        let stopped = stop.clone();
        let block = thread::spawn(move || {
            while stopped.load(Ordering::Relaxed) == 0 {
                ioctl_fionbio(&again, false).unwrap();
            }
        });
        run.call(id, far, &ours).unwrap();
        while !matches!(run.receive(), Some(Down::Meet { .. })) {}
        thread::sleep(Duration::from_millis(20));
        stop.store(1, Ordering::Relaxed);
        block.join().unwrap();
        std::mem::forget((ours, theirs));
    }
}

/// Sends more calls than a guest may have pending, half of them to a host that never answers.
/// Checks that all calls beyond the limit are refused.
fn floods(socket_path: &Path, closed: SocketAddr, silent: SocketAddr) {
    let run = Hostile::join(socket_path);
    let theirs = Hostile(run.0.try_clone().unwrap());
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    let receiver = thread::spawn(move || {
        while let Some(down) = theirs.receive() {
            count.fetch_add(usize::from(matches!(down, Down::Refuse { .. })), Ordering::Relaxed);
        }
    });
    let socket = fresh();
    for id in 0..HOSTILE_CALLS {
        let to = if id % 2 == 0 { closed } else { silent };
        run.call(id as u64, to, &socket).unwrap();
    }
    let all = || refused.load(Ordering::Relaxed) >= HOSTILE_CALLS - CALLS;
    assert!(within(Duration::from_secs(30), all), "{refused:?} were refused");
    rustix::net::shutdown(&run.0, Shutdown::Both).unwrap();
    receiver.join().unwrap();
}

/// Sends calls without reading answers. The master stops reading at some point, so that further
/// calls fill the socket.
fn reads_nothing(socket_path: &Path, closed: SocketAddr) {
    let run = Hostile::join(socket_path);
    ioctl_fionbio(&run.0, true).unwrap();
    let socket = fresh();
    let sent = Cell::new(0);
    // The master has stopped reading if the socket is full twice in a row, some time apart.
    let is_full = || {
        while run.call(sent.get(), closed, &socket).is_ok() {
            sent.set(sent.get() + 1);
        }
        thread::sleep(Duration::from_millis(200));
        run.call(sent.get(), closed, &socket).is_err()
    };
    assert!(within(Duration::from_secs(20), is_full));
    assert!(sent.get() < HOSTILE_CALLS as u64, "{sent:?} calls were taken, and no answer read");
}

#[test]
fn hostile_calls_of_one_user_do_not_disturb_flows_of_another() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for two users");
    }
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let calls = CALLS.to_string();
    let limits = ["--user-flows", "64", "--user-calls", &calls];
    let words = [&["+count", "--no-offload", "--all-users"][..], &limits].concat();
    let _master = run_dir.master("guests", &words);
    let victim = Victim::start(&run_dir, "guests", to);
    let socket_path: PathBuf = run_dir.0.join("guests.master");
    let (listener, _filled) = silent();
    let silent = listener.local_addr().unwrap();
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    as_user(OTHER_USER, move || {
        lingers(&socket_path, closed);
        blocks(&socket_path, to);
        floods(&socket_path, closed, silent);
        reads_nothing(&socket_path, closed);
    });

    victim.end_unharmed();
    assert!(counter(&run_dir, "over_limit") > 0, "{}", run_dir.status("guests"));
    // Pending connects end with their run; established flows last as long as their ends.
    let over = || counter(&run_dir, "open") <= 8;
    assert!(within(Duration::from_secs(10), over), "{}", run_dir.status("guests"));
}

#[test]
fn sockets_kept_by_a_guest_leave_no_epoll_registration() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for two users");
    }
    const FLOWS: usize = 20;
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let master = run_dir.master("kept", &["+count", "--no-offload", "--all-users"]);
    let registrations = || registrations(master.0.id());
    let before = registrations();
    let socket_path = run_dir.0.join("kept.master");
    let (send, kept) = std::sync::mpsc::channel();
    as_user(OTHER_USER, move || {
        let run = Hostile::join(&socket_path);
        for id in 0..FLOWS {
            let [ours, theirs] = connected();
            run.call(id as u64, to, &ours).unwrap();
            while !matches!(run.receive(), Some(Down::Meet { .. })) {}
            send.send((ours, theirs)).unwrap();
        }
        std::mem::forget(run);
    });
    let kept: Vec<[TcpStream; 2]> = kept.iter().map(|(ours, theirs)| [ours, theirs]).collect();
    assert_eq!(kept.len(), FLOWS);
    assert!(registrations() >= before + FLOWS);
    kept.iter().for_each(|[_, theirs]| theirs.shutdown(std::net::Shutdown::Write).unwrap());
    let gone = || registrations() == before;
    assert!(within(Duration::from_secs(10), gone), "{} and {before}", registrations());
}

/// Returns the number of descriptors that the epoll instances of process `id` watch.
fn registrations(id: u32) -> usize {
    let infos = std::fs::read_dir(format!("/proc/{id}/fdinfo")).unwrap();
    let texts = infos.map(|info| std::fs::read_to_string(info.unwrap().path()).unwrap_or_default());
    texts.map(|text| text.matches("tfd:").count()).sum()
}

#[test]
fn guest_sockets_passed_to_a_lower_master_do_not_stop_its_flows() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for two users");
    }
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let own = ["+count", CHAIN, "--no-offload"];
    let _lower = run_dir.master("lower", &own);
    // Flows that match the upper master's `--except` go directly to the lower master.
    let (except, closed_too) = (to.to_string(), closed.to_string());
    let above = ["--master", "lower", "--all-users", "--except", &except, "--except", &closed_too];
    let _upper = run_dir.master("upper", &[&own[..], &above].concat());
    let victim = Victim::start(&run_dir, "lower", to);
    let socket_path = run_dir.0.join("upper.master");
    as_user(OTHER_USER, move || {
        lingers(&socket_path, closed);
        blocks(&socket_path, to);
    });
    victim.end_unharmed();
}

/// Returns a counter of the master `guests`.
fn counter(run_dir: &RunDir, name: &str) -> usize {
    let status = run_dir.status("guests");
    let after = status.split(&format!("\"{name}\":")).nth(1).unwrap().trim_start();
    let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

#[test]
fn a_guest_cannot_reach_what_the_master_refuses() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for two users");
    }
    let (run_dir, (to, count)) = (RunDir::new(), far_end());
    let refused = to.to_string();
    let words = ["+count", "--no-offload", "--all-users", "--refuse", &refused];
    let _master = run_dir.master("rules", &words);
    let socket_path = run_dir.0.join("rules.master");
    as_user(OTHER_USER, move || {
        let run = Hostile::join(&socket_path);
        run.call(1, to, fresh()).unwrap();
        assert!(matches!(run.receive(), Some(Down::Refuse { id: 1, why: Failure::Denied })));
    });
    assert_eq!(count.load(Ordering::Relaxed), 0, "a connection has arrived");
}

#[test]
fn runs_beyond_a_users_limit_get_eagain() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for two users");
    }
    let run_dir = RunDir::new();
    let _master = run_dir.master("runs", &["+count", "--all-users", "--user-runs", "2"]);
    let socket_path = run_dir.0.join("runs.master");
    as_user(OTHER_USER, move || {
        let _held = [Hostile::join(&socket_path), Hostile::join(&socket_path)];
        let third = seqpacket::connect(&socket_path.to_string_lossy()).unwrap();
        let mut answer = [0; 4096];
        let (length, _) = seqpacket::receive(&third, &mut answer).unwrap();
        // EAGAIN instead of a welcome.
        assert!(length > 0 && answer[8..12] == 11i32.to_ne_bytes(), "{:?}", &answer[..16]);
    });
    let said = run_dir.output(&["run", "--master", "runs", "--", "true"]);
    assert!(said.status.success(), "{}", text(&said.stderr));
}
