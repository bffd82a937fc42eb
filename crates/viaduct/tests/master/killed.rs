//! State that a killed master leaves, and a successor of the master.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::common::{free_port, within_some};

use super::{
    CHAIN, Master, RunDir, SERVE, VIAS, child_of, far_end, greeted, kill_child_of, signal, text,
};

impl RunDir {
    /// Starts a successor of a killed master.
    pub(super) fn master_again(&self, name: &str, words: &[&str]) -> Master {
        std::fs::remove_file(self.0.join(format!("{name}.sock"))).unwrap();
        self.master(name, words)
    }
}

/// Connects to the address of its first argument, and kills the process with the ID of its second
/// argument, or its own parent if this is 0. Prints the outcome of this connection and of further
/// ones.
const KILL: &str = "
import errno, os, select, signal, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
to = (host, int(port))
s = socket.create_connection(to)
s.sendall(b'x\\n'); s.recv(100); s.settimeout(10)
os.kill(int(sys.argv[2]) or os.getppid(), signal.SIGKILL)
try: print('read', s.recv(100))
except OSError as e: print(errno.errorcode[e.errno])
n = socket.socket(); n.settimeout(10)
print('fails' if n.connect_ex(to) not in (0, errno.EAGAIN) else 'went')
n = socket.socket(); n.setblocking(False)
e = n.connect_ex(to)
if e == errno.EINPROGRESS:
    e = n.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if select.select([], [n], [], 10)[1] else 0
print('fails' if e else 'went')
";

#[test]
fn a_killed_master_resets_its_flows_and_none_bypasses_it() {
    for via in VIAS {
        for (shared, chain) in [
            (false, &[CHAIN][..]),
            (true, &["--master", "gone"]),
            (true, &["--master", "gone", "+count", CHAIN]),
        ] {
            let (run_dir, (to, count)) = (RunDir::new(), far_end());
            let to = to.to_string();
            let master = shared.then(|| run_dir.master("gone", &[CHAIN]));
            let pid = master.as_ref().map_or(0, |master| master.0.id()).to_string();
            let program = ["--via", via, "--", "python3", "-c", KILL, &to, &pid];
            let said = run_dir.output(&[&["run"], chain, &program].concat());
            let words = text(&said.stdout);
            assert_eq!(words, "ECONNRESET\nfails\nfails\n", "{via} shared {shared}: {said:?}");
            assert_eq!(
                count.load(Ordering::Relaxed),
                1,
                "{via} shared {shared}: a connection has arrived"
            );
        }
    }
}

#[test]
fn listening_programs_are_unreachable_once_their_master_is_killed() {
    for shared in [false, true] {
        let run_dir = RunDir::new();
        let master = shared.then(|| run_dir.master("serves", &["+count", CHAIN]));
        let chain: &[&str] = if shared { &["--master", "serves"] } else { &[CHAIN] };
        let port = free_port();
        let at = port.to_string();
        let words = [&["run"], chain, &["--", "python3", "-c", SERVE, &at]].concat();
        let command = run_dir.viaduct(&words);
        let (mut server, mut lines) = greeted(command, port);
        match &master {
            Some(master) => {
                assert!(run_dir.status("serves").contains("flows 1\\n"));
                master.signal("KILL");
            }
            // The program is a child of the wrapper's child.
            None => kill_child_of(child_of(server.id())),
        }
        // Clients that connect now do not reach the program: they fail immediately, or are reset.
        let alone = |port| match TcpStream::connect(("127.0.0.1", port)) {
            Err(_) => true,
            Ok(mut stream) => {
                let _ = stream.write_all(b"x\n");
                !matches!(stream.read(&mut [0]), Ok(1))
            }
        };
        assert!((0..5).all(|_| alone(port)), "shared {shared}");
        signal(server.id(), "TERM");
        server.wait().unwrap();
        assert!(lines.next().is_none(), "a connection has reached the program");
    }
}

/// For each input line, opens a connection to its first argument, and prints the outcome.
const AGAIN: &str = "
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
for line in sys.stdin:
    try:
        s = socket.create_connection((host, int(port)), timeout=10)
        s.sendall(b'x\\n'); s.recv(100)
        print('went', flush=True)
    except OSError: print('fails', flush=True)
";

#[test]
fn a_successor_with_the_same_rules_serves_programs_of_a_killed_master() {
    for via in VIAS {
        for own in [&[][..], &["+count", CHAIN]] {
            let (run_dir, (to, _)) = (RunDir::new(), far_end());
            let chain = ["+count", CHAIN, "--except", "192.0.2.0/24"];
            let killed = |master: Master| {
                master.signal("KILL");
                drop(master);
            };
            let master = run_dir.master("again", &chain);
            let (run, to) = (["run", "--master", "again"], to.to_string());
            let program = ["--via", via, "--", "python3", "-c", AGAIN, &to];
            let mut run = run_dir.viaduct(&[&run, own, &program].concat());
            run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut run = run.spawn().unwrap();
            let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
            let mut input = run.stdin.take().unwrap();
            let mut connects = || {
                input.write_all(b"now\n").unwrap();
                lines.next().unwrap().unwrap()
            };
            assert_eq!(connects(), "went");
            killed(master);
            assert_eq!(connects(), "fails", "{via} {own:?}");
            let other = run_dir.master_again("again", &[CHAIN]);
            thread::sleep(Duration::from_secs(1));
            assert_eq!(connects(), "fails", "{via} {own:?}: by other rules");
            killed(other);
            let _same = run_dir.master_again("again", &chain);
            let went =
                within_some(Duration::from_secs(10), || (connects() == "went").then_some(()));
            assert!(went.is_some(), "{via} {own:?}");
            let status = run_dir.status("again");
            assert!(status.contains("flows 1\\n"), "{status}");
            drop(input);
            assert!(run.wait().unwrap().success());
        }
    }
}
