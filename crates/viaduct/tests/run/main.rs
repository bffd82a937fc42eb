//! `viaduct run` as its caller sees it: the program behaves as if it ran unwrapped, and its flows
//! pass the handlers.
#![allow(clippy::unwrap_used)] // a test may panic

mod addresses;
mod aware;
mod before_reset;
#[path = "../common/mod.rs"]
mod common;
mod dead_after;
mod descriptors;
mod escapes;
mod inherited;
mod interrupted;
mod migrate;
mod mux;
mod negotiate;
mod nested;
mod other_users;
mod rejected;
mod semantics;
mod sockets;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{free_port, within};

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
/// A chain that cannot be offloaded to the kernel, so that bytes go through the master.
const CHAIN: &str = "+latency:delay=1ms";

/// Builds the command `viaduct run` with these words, ended after 20 s.
fn run(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "20", VIADUCT, "run"]).args(words);
    command
}

fn output(words: &[&str]) -> Output {
    run(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a server that answers each line with that line and the address of its sender, and the end
/// of the stream with the line `end`.
fn far_end(at: &str) -> SocketAddr {
    let listener = TcpListener::bind(at).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let peer = stream.peer_addr().unwrap();
                for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                    let Ok(line) = line else { return };
                    let _ = stream.write_all(format!("{line} {peer}\n").as_bytes());
                }
                let _ = stream.write_all(b"end\n");
            });
        }
    });
    address
}

/// A Python program that connects to the address of its first argument and prints its socket's
/// ports and the answer to a line.
const TELL: &str = "
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_connection((host.strip('[]'), int(port)))
peer, own = s.getpeername()[1], s.getsockname()[1]
s.sendall(b'hello\\n')
s.shutdown(socket.SHUT_WR)
print(peer, own, s.makefile().read())
";

#[test]
fn the_exit_status_is_that_of_the_program() {
    let code = |words: &[&str]| output(words).status.code();
    assert_eq!(code(&["--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["--", "true"]), Some(0));
    assert_eq!(code(&["--", "no-such-program"]), Some(127));
    assert_eq!(code(&["--", "/etc/passwd"]), Some(126));
    // The caller can distinguish failures of viaduct from those of the program.
    for wrong in
        [&["+nonsense", "--", "true"][..], &["--only", "x", "--", "true"], &["--nonsense"], &[]]
    {
        assert_eq!(code(wrong), Some(125), "{wrong:?}");
    }
    assert_eq!(code(&["--help"]), Some(0));
    // The error names the right form, in a single line.
    let says = |words: &[&str], right: &str| {
        let said = text(&output(words).stderr);
        assert!(said.lines().count() == 1 && said.contains(right), "{words:?} {said}");
    };
    says(&["+count", "curl", "-O"], "as in viaduct run +count -- curl");
    says(&["-key=x", "--", "true"], "as in +crypt -key=site.key");
    // A shell sees that the program was killed by a signal.
    let line = format!("{VIADUCT} run -- sh -c 'kill -TERM $$'; echo $?");
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "143");
}

#[test]
fn standard_streams_and_signals_are_those_of_the_program() {
    let mut child = Command::new(VIADUCT)
        .args([
            "run",
            "--",
            "sh",
            "-c",
            "trap 'echo got it; exit 3' USR1; echo ready; cat; sleep 9",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"through\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "through");
    signal(&child, "USR1");
    drop(stdin);
    assert_eq!(lines.next().unwrap().unwrap(), "got it");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_run_stops_and_continues_with_its_program() {
    let mut command = Command::new(VIADUCT);
    command.args(["run", "--", "sh", "-c", "kill -STOP $$; exit 5"]).process_group(0);
    let mut child = command.spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    let stopped = || std::fs::read_to_string(&stat).unwrap().contains(") T ");
    assert!(within(Duration::from_secs(5), stopped));
    signal(&child, "CONT");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn socket_addresses_are_those_that_the_far_end_sees() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let to = far_end(at);
        let output = output(&[CHAIN, "--", "python3", "-c", TELL, &to.to_string()]);
        let said = text(&output.stdout);
        let words: Vec<&str> = said.split_whitespace().collect();
        let [peer, own, "hello", seen, "end"] = words[..] else { panic!("{output:?}") };
        assert_eq!(peer, to.port().to_string());
        assert_eq!(own, seen.rsplit(':').next().unwrap());
    }
}

#[test]
fn connect_errors_equal_the_kernels() {
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    for (to, errno) in [(closed.to_string(), "ECONNREFUSED"), ("[100::1]:9".into(), "unreachable")]
    {
        for blocking in ["True", "False"] {
            let program = format!(
                "
import errno, select, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.socket(socket.AF_INET6 if '[' in host else socket.AF_INET)
s.setblocking({blocking})
e = s.connect_ex((host.strip('[]'), int(port)))
if e == errno.EINPROGRESS:
    select.select([], [s], [], 10)
    e = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
print('unreachable' if e in (errno.ENETUNREACH, errno.EHOSTUNREACH) else errno.errorcode[e])
"
            );
            let said = output(&[CHAIN, "--", "python3", "-c", &program, &to]);
            assert_eq!(text(&said.stdout).trim(), errno, "{to} {said:?}");
        }
    }
}

#[test]
fn rules_select_flows_and_the_report_counts_them() {
    let to = far_end("127.0.0.1:0").to_string();
    let report = |options: &[&str]| {
        let program = ["--report", "--", "python3", "-c", TELL, &to];
        let words: Vec<&str> = [CHAIN].iter().chain(options).chain(&program).copied().collect();
        let output = output(&words);
        (output.status.success(), text(&output.stderr))
    };
    let cases: [(&[&str], bool, &str); 5] = [
        (&[], true, "passed the handlers"),
        (&["--only", "tcp:1-2"], true, "went direct"),
        (&["--except", "127.0.0.0/8"], true, "went direct"),
        (&["--refuse", &to], false, "were refused"),
        (&["--only", &to], true, "passed the handlers"),
    ];
    for via in ["--via=cgroup", "--via=seccomp", "--via=preload"] {
        for (options, succeeds, says) in cases {
            let (succeeded, said) = report(&[options, &[via]].concat());
            assert_eq!(succeeded, succeeds, "{via} {options:?} {said}");
            let lines = [format!("viaduct: 1 {says}"), format!("1  tcp {to}")];
            assert!(lines.iter().all(|line| said.contains(line)), "{via} {options:?} {said}");
        }
    }
    let wrong = output(&["--only", "10.0.0.0/99", "--", "true"]);
    assert!(text(&wrong.stderr).contains("--only 10.0.0.0/99"), "{wrong:?}");
}

#[test]
fn an_offloaded_chain_leaves_the_program_its_socket() {
    let to = far_end("127.0.0.1:0").to_string();
    let said = output(&["+count", "--report", "--", "python3", "-c", TELL, &to]);
    assert!(said.status.success());
    let report = text(&said.stderr);
    assert!(report.contains("1 were offloaded to the kernel: 6 bytes out"), "{report}");
}

#[test]
fn an_offloaded_flow_that_outlives_its_program_is_reported() {
    // The far end reads nothing, so data is still in flight when the program has ended, as over a
    // long path.
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = far.local_addr().unwrap().to_string();
    let program = "
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_connection((host, int(port)))
s.setblocking(False)
try:
    while True: s.send(b'x' * 65536)
except BlockingIOError: pass
";
    let said = output(&["+count", "--report", "--", "python3", "-c", program, &to]);
    assert!(said.status.success());
    let report = text(&said.stderr);
    assert!(report.contains("1 were offloaded to the kernel"), "{report}");
    assert!(report.contains("1 not closed yet") && report.contains(&to), "{report}");
}

#[test]
fn crypt_admits_only_clients_with_the_key() {
    let keys = std::env::temp_dir().join(format!("viaduct-run-{}", std::process::id()));
    std::fs::create_dir_all(&keys).unwrap();
    let key = |name: &str| {
        let path = keys.join(name).display().to_string();
        let made = Command::new(VIADUCT).args(["key", "new", "--out", &path]).output().unwrap();
        assert!(made.status.success());
        format!("+crypt:key={path}")
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let port = free_port();
    let server = "
import socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('up', flush=True)
while True:
    c, at = s.accept()
    print('client', at[1], c.getpeername()[1], flush=True)
    c.sendall(c.recv(100)); c.close()
";
    let words = ["+compress", &ours, "--", "python3", "-c", server, &port.to_string()];
    let mut server = run(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");

    let client = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(b'secret'); print(s.getsockname()[1], s.makefile().read())
";
    let client = |chain: &[&str]| {
        let rest = ["--", "python3", "-c", client, &port.to_string()];
        let words: Vec<&str> = chain.iter().chain(&rest).copied().collect();
        output(&words)
    };
    let said = text(&client(&["+compress", &ours]).stdout);
    let own = said.strip_suffix(" secret\n").unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!(lines.next().unwrap().unwrap(), format!("client {own} {own}"));
    let wrong = client(&["+compress", &theirs]);
    assert!(text(&wrong.stderr).contains("ConnectionRefusedError"), "{wrong:?}");
    assert!(text(&wrong.stderr).contains("crypt"), "{wrong:?}");
    // A client without the handler cannot reach the program.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    plain.write_all(b"secret, in the clear and long enough to be taken for a message").unwrap();
    assert!(!matches!(plain.read(&mut [0; 64]), Ok(1..)));
    signal(&server, "TERM");
    server.wait().unwrap();
    assert!(lines.next().is_none(), "no other connection has reached the program");
    std::fs::remove_dir_all(&keys).unwrap();
}

#[test]
fn a_program_whose_master_is_killed_sees_a_reset() {
    let to = far_end("127.0.0.1:0").to_string();
    let program = "
import os, signal, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_connection((host, int(port)))
s.sendall(b'x\\n'); s.recv(100)
os.kill(os.getppid(), signal.SIGKILL)
try: print('read', s.recv(100))
except ConnectionResetError: print('reset')
";
    let began = Instant::now();
    let said = output(&[CHAIN, "--", "python3", "-c", program, &to]);
    assert_eq!(text(&said.stdout).trim(), "reset", "{said:?}");
    assert!(began.elapsed() < Duration::from_secs(10) && said.status.signal().is_none());
}

#[test]
fn signals_reach_the_program_after_its_master_is_killed() {
    let program = "trap 'echo got it; exit 3' TERM; sleep 0.3; kill -KILL $PPID; echo ready; \
        while :; do sleep 0.1; done";
    let mut command = run(&[CHAIN, "--", "sh", "-c", program]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains("the master has ended"));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn handlers_are_listed_and_explained() {
    let list = text(&output(&["--list"]).stdout);
    for name in [
        "+count",
        "+shape",
        "+latency",
        "+crypt",
        "+compress",
        "+migrate",
        "+stripe",
        "+route",
        "+mux",
    ] {
        assert!(list.contains(name), "{list}");
    }
    let crypt = text(&output(&["--help", "crypt"]).stdout);
    assert!(crypt.contains("key=FILE") && crypt.contains("Both ends"), "{crypt}");
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}
