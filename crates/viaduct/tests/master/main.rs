//! `viaduct master` as its users see it: several programs share a master, masters are nested, and
//! no flow bypasses the chain when a master is killed.
#![allow(clippy::unwrap_used)] // a test may panic

mod all_users;
#[path = "../common/mod.rs"]
mod common;
mod killed;

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{UnprivilegedUser, free_port, until, within};

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
const CHAIN: &str = "+latency:delay=1ms";
const VIAS: [&str; 3] = ["cgroup", "seccomp", "preload"];

/// A directory for masters' sockets and keys, removed on drop.
struct RunDir(PathBuf);

impl RunDir {
    fn new() -> RunDir {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("viaduct-master-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        RunDir(path)
    }

    /// Builds a `viaduct` command with these words, ended after 30 s.
    fn viaduct(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "30", VIADUCT]).args(words);
        command.env("VIADUCT_RUN_DIR", &self.0);
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.viaduct(words).output().unwrap()
    }

    /// Starts a master, and waits until it is up.
    fn master(&self, name: &str, words: &[&str]) -> Master {
        let mut command = Command::new(VIADUCT);
        command.args(["master", "--name", name]).args(words).env("VIADUCT_RUN_DIR", &self.0);
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let socket = self.0.join(format!("{name}.sock"));
        assert!(within(Duration::from_secs(10), || socket.exists()), "{name} is not up");
        Master(child)
    }

    /// Status of a master, as JSON.
    fn status(&self, name: &str) -> String {
        let seen = self.output(&["status", "--name", name, "--json"]);
        assert!(seen.status.success(), "{seen:?}");
        text(&seen.stdout)
    }

    /// Creates a key of this name. Returns a `crypt` handler that uses it.
    fn crypt(&self, name: &str) -> String {
        let path = self.0.join(name).display().to_string();
        assert!(self.output(&["key", "new", "--out", &path]).status.success());
        format!("+crypt:key={path}")
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A master, or another long-running process: stopped on drop, and killed if it does not end.
struct Master(Child);

impl Master {
    fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.signal("TERM");
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while let Ok(None) = self.0.try_wait()
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a server that answers each line with that line and its peer's address. Returns its own
/// address, and the count of connections.
fn far_end() -> (SocketAddr, &'static AtomicUsize) {
    let count: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let address = (Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()).into();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || {
                let peer = stream.peer_addr().unwrap();
                for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                    let Ok(line) = line else { return };
                    let _ = stream.write_all(format!("{line} {peer}\n").as_bytes());
                }
            });
        }
    });
    (address, count)
}

/// A Python program that connects to the address of its first argument, from the address of its
/// second if present, and prints the ports of its socket and the answer to a line. Its exit status
/// is 7.
const TELL: &str = "
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.socket()
if sys.argv[2:]:
    s.bind((sys.argv[2], 0))
    print('bound', s.getsockname()[1])
s.connect((host, int(port)))
s.sendall(b'hello\\n')
s.shutdown(socket.SHUT_WR)
print(s.getpeername()[1], s.getsockname()[1], s.makefile().read())
sys.exit(7)
";

#[test]
fn programs_of_every_interposer_share_a_master() {
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let mut master = run_dir.master("all", &["+count", CHAIN]);
    for via in VIAS {
        let to = to.to_string();
        let words = ["run", "--master", "all", "--via", via, "--report", "--"];
        let said = run_dir.output(&[&words[..], &["python3", "-c", TELL, &to]].concat());
        assert_eq!(said.status.code(), Some(7), "{via} {said:?}");
        let words = text(&said.stdout);
        let words: Vec<&str> = words.split_whitespace().collect();
        let [peer, own, "hello", seen] = words[..] else { panic!("{via} {said:?}") };
        assert_eq!((peer, own), (to.rsplit(':').next().unwrap(), seen.rsplit(':').next().unwrap()));
        let report = text(&said.stderr);
        assert!(report.contains(&format!("1 passed the handlers by {via}")), "{report}");
    }
    assert!(run_dir.status("all").contains("flows 3\\nwritten 18\\n"), "{}", run_dir.status("all"));
    let page = text(&run_dir.output(&["status", "--name", "all"]).stdout);
    assert!(page.starts_with("master all  up "), "{page}");
    // The master ends on SIGTERM, and leaves no files.
    master.signal("TERM");
    assert!(master.0.wait().unwrap().success());
    assert!(!run_dir.0.join("all.master").exists() && !run_dir.0.join("all.sock").exists());
}

#[test]
fn several_workers_of_a_master_divide_the_flows_by_host() {
    let (run_dir, (to, count)) = (RunDir::new(), far_end());
    let mut master = run_dir.master("all", &["--workers", "3", "+count", CHAIN]);
    // Each loop has a thread of its own, which puts the loop's number into its name.
    let tasks = format!("/proc/{}/task", master.0.id());
    let names = || -> Vec<_> {
        let threads = fs::read_dir(&tasks).unwrap();
        threads.filter_map(|thread| fs::read(thread.ok()?.path().join("comm")).ok()).collect()
    };
    let is_named = |n| names().contains(&format!("flows-{n}\n").into_bytes());
    until("each loop has its thread", || (0..3).all(is_named));
    for host in 1..=8 {
        let to = format!("127.0.0.{host}:{}", to.port());
        let said = run_dir.output(&["run", "--master", "all", "--", "python3", "-c", TELL, &to]);
        assert_eq!(said.status.code(), Some(7), "{said:?}");
    }
    assert_eq!(count.load(Ordering::Relaxed), 8);
    let page = run_dir.status("all");
    assert!(page.contains("flows 8\\nwritten 48\\n"), "{page}");
    master.signal("TERM");
    assert!(master.0.wait().unwrap().success());
    let words = ["master", "--name", "x", "--workers", "2", "+mux"];
    let refused = run_dir.output(&words);
    assert!(text(&refused.stderr).contains("--workers: 2 are not possible with"), "{refused:?}");
}

#[test]
fn the_bound_address_is_kept_through_nested_masters() {
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let (_site, to) = (run_dir.master("site", &[CHAIN]), to.to_string());
    for above in [&[][..], &[CHAIN]] {
        let words = [&["run", "--master", "site"], above].concat();
        let program = ["--", "python3", "-c", TELL, &to, "127.0.0.9"];
        let said = run_dir.output(&[&words[..], &program].concat());
        let said = text(&said.stdout);
        assert!(said.contains("hello 127.0.0.9:"), "{above:?} {said}");
        // The port is kept as well, unless there is another master in between.
        let port = said.split_whitespace().nth(1).unwrap();
        let is_kept = said.contains(&format!("hello 127.0.0.9:{port}\n"));
        assert!(is_kept || !above.is_empty(), "{said}");
    }
}

#[test]
fn rules_of_the_master_and_of_the_run_both_apply() {
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let _master = run_dir.master("ruled", &[CHAIN, "--refuse", "tcp:1"]);
    let to = to.to_string();
    for (options, to, says) in [
        (&[][..], "127.0.0.1:1", "1 were refused"),
        (&["--refuse", &to], &to, "1 were refused"),
        (&["--except", &to], &to, "1 went direct"),
        (&["--only", &to], &to, "1 passed the handlers"),
    ] {
        let words = [&["run", "--master", "ruled", "--report"], options].concat();
        let said = run_dir.output(&[&words[..], &["--", "python3", "-c", TELL, to]].concat());
        assert!(text(&said.stderr).contains(says), "{options:?} {said:?}");
    }
}

#[test]
fn datagrams_do_not_bypass_a_strict_master() {
    let (run_dir, far) = (RunDir::new(), UdpSocket::bind("127.0.0.1:0").unwrap());
    far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let send = format!("echo x > /dev/udp/127.0.0.1/{}", far.local_addr().unwrap().port());
    for (name, words, comes) in
        [("lax", &[CHAIN][..], true), ("strict", &[CHAIN, "--strict"], false)]
    {
        let _master = run_dir.master(name, words);
        for via in VIAS {
            let run = ["run", "--master", name, "--via", via, "--", "bash", "-c", &send];
            let output = run_dir.output(&run);
            assert_eq!(far.recv(&mut [0; 9]).is_ok(), comes, "{via}: {output:?}");
        }
    }
}

#[test]
fn a_masters_name_is_unique_and_an_unknown_one_is_reported() {
    let run_dir = RunDir::new();
    let master = run_dir.master("one", &[CHAIN]);
    let again = run_dir.output(&["master", "--name", "one", CHAIN]);
    assert!(!again.status.success() && text(&again.stderr).contains("one"), "{again:?}");
    let none = run_dir.output(&["run", "--master", "none", "--", "true"]);
    assert_eq!(none.status.code(), Some(125));
    assert!(text(&none.stderr).contains("viaduct master --name none"), "{none:?}");
    let long = run_dir.0.join("d".repeat(120)).display().to_string();
    let long = run_dir.output(&["master", "--name", "two", CHAIN, "--run-dir", &long]);
    assert!(text(&long.stderr).contains("choose another directory"), "{long:?}");
    // A killed master leaves its socket, which does not prevent a new master with the same name.
    master.signal("KILL");
    drop(master);
    let killed = run_dir.output(&["run", "--master", "one", "--", "true"]);
    assert!(text(&killed.stderr).contains("has been killed"), "{killed:?}");
    let _another = run_dir.master_again("one", &[CHAIN]);
    assert!(run_dir.output(&["run", "--master", "one", "--", "true"]).status.success());
}

#[test]
fn masters_nest_under_every_interposer() {
    let (run_dir, (to, _)) = (RunDir::new(), far_end());
    let _system = run_dir.master("system", &["+count", CHAIN]);
    let _user = run_dir.master("user", &["--master", "system", "+count", CHAIN]);
    let to = to.to_string();
    for via in VIAS {
        let chain = ["run", "--master", "user", "--via", via, "+count", CHAIN, "--report", "--"];
        let said = run_dir.output(&[&chain[..], &["python3", "-c", TELL, &to]].concat());
        assert_eq!(said.status.code(), Some(7), "{via} {said:?}");
        let words = text(&said.stdout);
        let words: Vec<&str> = words.split_whitespace().collect();
        let [peer, own, "hello", seen] = words[..] else { panic!("{via} {said:?}") };
        assert_eq!((peer, own), (to.rsplit(':').next().unwrap(), seen.rsplit(':').next().unwrap()));
        let report = text(&said.stderr);
        assert!(
            report.contains(&format!("1 passed the handlers by {via}: 6 bytes out")),
            "{report}"
        );
        // A connect to a closed port fails as it would have without viaduct.
        let said = run_dir.output(&[&chain[..], &["python3", "-c", TELL, "127.0.0.1:1"]].concat());
        assert!(text(&said.stderr).contains("ConnectionRefusedError"), "{via} {said:?}");
    }
    for name in ["system", "user"] {
        let status = run_dir.status(name);
        assert!(status.contains("flows 6\\nwritten 18\\n"), "{name}: {status}");
    }
}

#[test]
fn an_unprivileged_user_nests_above_the_systems_master() {
    let ((run_dir, user), (to, _)) = ((RunDir::new(), UnprivilegedUser::new("above")), far_end());
    let _system = run_dir.master("system", &["+count", CHAIN, "--all-users"]);
    let _closed = run_dir.master("closed", &["+count", CHAIN]);
    let to = to.to_string();
    let run = |master: &str, words: &[&str]| {
        let mut command = user.command("timeout");
        command.args(["--signal=KILL", "30"]).arg(user.viaduct());
        command.args(["run", "--master", master, "--run-dir"]).arg(&run_dir.0).args(words);
        command.args(["--", "python3", "-c", TELL, &to]).output().unwrap()
    };
    for (n, via) in ["auto", "seccomp", "preload"].into_iter().enumerate() {
        for chain in [&[][..], &["+count", CHAIN]] {
            let said = run("system", &[&["--via", via], chain].concat());
            assert_eq!(said.status.code(), Some(7), "{via} {said:?}");
        }
        let flows = format!("flows {}\\n", 2 * (n + 1));
        assert!(run_dir.status("system").contains(&flows), "{}", run_dir.status("system"));
    }
    let said = run("closed", &[CHAIN]);
    assert!(text(&said.stderr).contains("only the master's user and root may use it"), "{said:?}");
    assert!(run_dir.status("closed").contains("flows 0\\n"), "{}", run_dir.status("closed"));
}

#[test]
fn rules_of_nested_masters_apply_to_the_flows_that_each_carries() {
    let (run_dir, (to, count)) = (RunDir::new(), far_end());
    let to = to.to_string();
    let _system = run_dir.master("rules", &["+count", CHAIN, "--refuse", "tcp:1"]);
    let _around = run_dir.master("around", &["+count", CHAIN, "--except", &to]);
    let run = |master: &str, options: &[&str], to: &str| {
        let words = [&["run", "--master", master, "--report", "+count", CHAIN], options].concat();
        text(&run_dir.output(&[&words[..], &["--", "python3", "-c", TELL, to]].concat()).stderr)
    };
    // The run's rules come first, then those of the shared master. Three cases: the run refuses the
    // flow; the run excepts it, so that only the shared master processes it; the run has no rule,
    // and the shared master refuses it.
    let said = run("rules", &["--refuse", &to], &to);
    assert!(said.contains("1 were refused"), "{said}");
    assert_eq!(count.load(Ordering::Relaxed), 0);
    run("rules", &["--except", &to], &to);
    assert!(
        run_dir.status("rules").contains("flows 1\\nwritten 6\\n"),
        "{}",
        run_dir.status("rules")
    );
    let said = run("rules", &[], "127.0.0.1:1");
    assert!(said.contains("1 failed") && said.contains("127.0.0.1:1 (denied)"), "{said}");
    // The shared master `around` excepts the flow, which only the run processes.
    let said = run("around", &[], &to);
    assert!(said.contains("1 passed the handlers"), "{said}");
    assert!(run_dir.status("around").contains("flows 0\\n"), "{}", run_dir.status("around"));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

/// Starts a program that listens at `port`, as [`SERVE`] does, and checks that the program sees its
/// client's port.
fn greeted(mut command: Command, port: u16) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(b"hello\n").unwrap();
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    let own = client.local_addr().unwrap().port();
    assert_eq!(said, "hello\n", "{command:?}");
    assert_eq!(lines.next().unwrap().unwrap(), format!("client {own}"), "{command:?}");
    (server, lines)
}

#[test]
fn inbound_connections_pass_both_masters() {
    let run_dir = RunDir::new();
    let _system = run_dir.master("below", &["+count", CHAIN]);
    for (n, via) in VIAS.into_iter().enumerate() {
        let port = free_port();
        let at = port.to_string();
        let words = ["run", "--master", "below", "--via", via, "+count", CHAIN, "--"];
        let command = run_dir.viaduct(&[&words[..], &["python3", "-c", SERVE, &at]].concat());
        let (mut server, _lines) = greeted(command, port);
        let flows = format!("flows {}\\n", n + 1);
        assert!(run_dir.status("below").contains(&flows), "{}", run_dir.status("below"));
        signal(server.id(), "TERM");
        server.wait().unwrap();
    }
}

/// Listens at the port of its first argument. Prints each client's port, reads one line, sends it
/// back, and closes.
const SERVE: &str = "
import socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('up', flush=True)
while True:
    c, at = s.accept()
    print('client', at[1], flush=True)
    c.sendall(c.makefile().readline().encode()); c.close()
";

/// Echoes each connection.
const ECHO: &str = "
import socket, sys, threading
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('up', flush=True)
def serve(c):
    while data := c.recv(100): c.sendall(data)
    c.close()
while True:
    c, at = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
";
/// Keeps five connections open at once, until a line arrives on standard input.
const FIVE: &str = "
import socket, sys
all = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for n in range(5)]
for n, s in enumerate(all): s.sendall(b'%d' % n)
print(b''.join(s.recv(100) for s in all).decode(), flush=True)
input()
";

#[test]
fn mux_flows_reach_programs_under_shared_masters() {
    let run_dir = RunDir::new();
    let _below = run_dir.master("below", &[CHAIN]);
    let _one = run_dir.master("one", &["+mux"]);
    let _two = run_dir.master("two", &["--master", "below", "+mux"]);
    for (name, via) in
        [("one", "cgroup"), ("one", "seccomp"), ("two", "seccomp"), ("two", "cgroup")]
    {
        let at = free_port().to_string();
        let words = ["run", "--master", name, "--via", via, "--", "python3", "-c", ECHO, &at];
        let mut command = run_dir.viaduct(&words);
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        let mut command = run_dir.viaduct(&["run", "+mux", "--", "python3", "-c", FIVE, &at]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "01234", "{name} {via}");
        let status = run_dir.status(name);
        assert!(status.contains("5 flows on one connection"), "{name} {via} {status}");
        drop(client.stdin.take());
        client.wait().unwrap();
        signal(server.id(), "TERM");
        server.wait().unwrap();
    }
}

/// Figure 4: two programs of a user, each with `migrate` and `crypt`, above a system-wide
/// master in which flows to one destination share a congestion estimate.
#[test]
fn figure_4_a_users_handlers_above_a_system_wide_master() {
    let run_dir = RunDir::new();
    let key = run_dir.crypt("site.key");
    let chain = ["+migrate", key.as_str()];
    let _system = run_dir.master("system", &["+congestion"]);
    let big: Vec<u8> =
        (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(run_dir.0.join("big"), &big).unwrap();
    // The far end, with the same chain: socat takes uploads, and a web server serves files.
    let (up, down) = (free_port(), free_port());
    let directory = run_dir.0.display().to_string();
    let came = run_dir.0.join("came").display().to_string();
    let listen = format!("TCP-LISTEN:{up},bind=127.0.0.1,reuseaddr");
    let takes = ["socat", "-u", &listen, &format!("CREATE:{came}")];
    let serves = [
        "python3",
        "-m",
        "http.server",
        &down.to_string(),
        "--bind",
        "127.0.0.1",
        "-d",
        &directory,
    ]
    .map(str::to_owned);
    let serves: Vec<&str> = serves.iter().map(String::as_str).collect();
    let far = |program: &[&str]| {
        let words = [&["run"], &chain[..], &["--"], program].concat();
        let mut command = run_dir.viaduct(&words);
        Master(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let servers = [far(&takes), far(&serves)];
    for port in [up, down] {
        assert!(within(Duration::from_secs(10), || listens(port)), "{port}");
    }
    // The near end: curl and socat, each in a separate run above the system-wide master.
    let near = |via: &str, program: &[&str]| {
        let words =
            [&["run", "--master", "system", "--via", via], &chain[..], &["--"], program].concat();
        run_dir.viaduct(&words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let file = run_dir.0.join("big").display().to_string();
    let got = run_dir.0.join("got").display().to_string();
    let url = format!("http://127.0.0.1:{down}/big");
    let share = |flows: &str| {
        let there = || run_dir.status("system").contains(&format!("127.0.0.1: {flows} share"));
        assert!(within(Duration::from_secs(10), there), "{flows}: {}", run_dir.status("system"));
    };
    // The upload stays open until the slow download has started.
    let to = format!("TCP:127.0.0.1:{up}");
    let stays = "(cat \"$0\"; cat) | socat -u - \"$1\"";
    let mut socat = near("preload", &["sh", "-c", stays, &file, &to]);
    share("1 flows");
    let curl = near("seccomp", &["curl", "-sS", "--limit-rate", "1M", "-o", &got, &url]);
    share("2 flows");
    drop(socat.stdin.take());
    for program in [curl, socat] {
        let ended = program.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }
    assert!(fs::read(got).unwrap() == big, "the download differs");
    assert!(within(Duration::from_secs(10), || fs::read(&came).is_ok_and(|came| came == big)));
    for server in &servers {
        server.signal("TERM");
    }
}

/// Returns whether a listener exists at an IPv4 port, without connecting to it.
fn listens(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| line.contains(&format!(":{port:04X} 00000000:0000 0A")))
}

fn child_of(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

fn kill_child_of(pid: u32) {
    signal(child_of(pid), "KILL");
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.unwrap().success());
}
