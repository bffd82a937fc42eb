//! Nested runs: a flow passes the chains of both, or the inner run reports why that is not
//! possible.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{CHAIN, TELL, VIADUCT, far_end, output, run, text};

/// Runs a program that connects, under two nested runs with these options. Both runs print reports.
fn above(outer: &[&str], inner: &[&str]) -> std::process::Output {
    let to = far_end("127.0.0.1:0").to_string();
    let program = ["--report", "--", "python3", "-c", TELL, &to];
    let outer = [&[CHAIN], outer, &["--report", "--", VIADUCT, "run", CHAIN], inner].concat();
    output(&[outer.as_slice(), &program].concat())
}

#[test]
fn flows_of_nested_runs_pass_both_chains() {
    for via in ["cgroup", "seccomp", "preload"] {
        let output = above(&[], &["--via", via]);
        assert!(text(&output.stdout).contains("hello"), "{output:?}");
        let report = text(&output.stderr);
        for via in ["cgroup", via] {
            let passed = format!("1 passed the handlers by {via}: 6 bytes out");
            assert!(report.contains(&passed), "{passed}: {report}");
        }
        assert_eq!(report.matches("1 passed the handlers").count(), 2, "{report}");
    }
}

/// Answers one client with the client's port.
const LISTENS: &str = "
import socket, sys
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
c, at = s.accept()
c.sendall(b'%d\\n' % at[1]); c.close()
";

#[test]
fn inbound_connections_of_nested_runs_pass_both_chains() {
    // An inner run by cgroup hides its programs from an outer run by cgroup, unless the outer one
    // is strict.
    for (outer, via, passes) in [
        (&[CHAIN][..], "cgroup", 1),
        (&[CHAIN, "--strict"], "auto", 2),
        (&[CHAIN], "seccomp", 2),
        (&[CHAIN], "preload", 2),
    ] {
        let words = ["--report", "--", VIADUCT, "run", CHAIN, "--via", via, "--report", "--"];
        let words = [outer, &words[..], &["python3", "-c", LISTENS]].concat();
        let mut command = run(&words);
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", line.trim().parse().unwrap())).unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert_eq!(said.trim(), client.local_addr().unwrap().port().to_string(), "{via}");
        let report = text(&server.wait_with_output().unwrap().stderr);
        assert_eq!(report.matches("1 inbound").count(), passes, "{via}: {report}");
    }
}

/// Waits three seconds for a client.
const PATIENT: &str = "
import socket, sys
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
s.settimeout(3)
try: print('came', s.accept()[1])
except TimeoutError: pass
";

#[test]
fn silent_inbound_connections_are_reset_after_the_arrival_wait() {
    for via in ["cgroup", "seccomp"] {
        let words = ["+migrate", "--via", via, "--arrival-wait", "1s", "--report"];
        let mut command = run(&[&words[..], &["--", "python3", "-c", PATIENT]].concat());
        let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port: u16 = lines.next().unwrap().unwrap().parse().unwrap();
        let begun = Instant::now();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let said = client.read(&mut [0; 1]);
        assert!(said.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{via}");
        let took = begun.elapsed();
        assert!((900..2_500).contains(&took.as_millis()), "{via}: {took:?}");
        let report = text(&server.wait_with_output().unwrap().stderr);
        assert!(report.contains("1 inbound were rejected"), "{via}: {report}");
        assert!(lines.next().is_none(), "a connection has reached the program");
    }
}

#[test]
fn an_inner_run_that_the_outer_run_cannot_capture_is_refused() {
    let output = above(&["--strict"], &["--via", "cgroup"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("would bypass another viaduct run"), "{output:?}");
    for outer in ["seccomp", "preload"] {
        for inner in [&["--via", "auto"][..], &["--via", "cgroup"], &["--via", "seccomp"]] {
            let output = above(&["--via", outer], inner);
            assert_eq!(output.status.code(), Some(125), "{inner:?} above {outer}: {output:?}");
            let why = text(&output.stderr);
            assert!(why.contains("another"), "{why}");
        }
        let strict = above(&["--via", outer], &["--via", "preload", "--strict"]);
        assert_eq!(strict.status.code(), Some(125), "{strict:?}");
        assert!(text(&strict.stderr).contains("another"), "{strict:?}");
    }
}
