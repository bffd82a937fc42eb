//! Programs that control the handlers of their flows: one in C with the header, one in Rust with
//! the crate.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{env, thread};

use super::common::free_port;
use super::{CHAIN, VIADUCT, far_end, output, run, text, within};

/// Compiles the program in C, and returns its path.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aware");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-I"]);
        compiler.arg(here.join("../../include")).arg("-o").arg(&out);
        assert!(compiler.arg(here.join("tests/run/aware.c")).status().unwrap().success());
        out
    })
}

fn port_of(at: SocketAddr) -> String {
    at.port().to_string()
}

#[test]
fn queries_of_a_program_that_is_not_wrapped_have_no_effect() {
    let port = port_of(far_end("127.0.0.1:0"));
    let output = Command::new(program()).args([&port, "count", "?"]).output().unwrap();
    assert_eq!(text(&output.stdout), "wrapped 0 watched 0\nanswer 0\n", "{output:?}");
}

#[test]
fn a_program_queries_its_handlers() {
    let port = port_of(far_end("127.0.0.1:0"));
    let program = program().to_str().unwrap();
    // A chain that processes the bytes, one that counts them in the master, and one that is
    // offloaded.
    let passing: [&[&str]; 3] = [&[CHAIN, "+count"], &["+count", "--no-offload"], &["+count"]];
    for via in ["cgroup", "seccomp", "preload"] {
        for chain in passing {
            let words = [chain, &["--via", via, "--", program, &port, "count", "?"]].concat();
            let said = text(&run(&words).stdin(Stdio::null()).output().unwrap().stdout);
            let offloaded = chain == ["+count"];
            assert_eq!(said.contains("flows 1\nwritten 6\n"), !offloaded, "{words:?}: {said}");
            assert!(said.starts_with("wrapped 1"), "{words:?}: {said}");
        }
        let words = [CHAIN, "--via", via, "--", program, &port, "unknown", "?"];
        assert!(text(&output(&words).stdout).contains("answer 0\n"), "{via}");
    }
}

/// Starts a server under `migrate` that answers each message. Returns it, and its port.
fn migrating_server() -> (std::process::Child, String) {
    let port = free_port().to_string();
    let server = "
import socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    c, at = s.accept()
    c.sendall(c.recv(100))
    c.recv(100)
";
    let words = ["+migrate", "--via", "cgroup", "--", "python3", "-c", server, &port];
    let child = run(&words).spawn().unwrap();
    let listens = format!("sport = :{port}");
    let shown = || Command::new("ss").args(["-tlnH", &listens]).output().unwrap().stdout;
    assert!(within(std::time::Duration::from_secs(10), || !shown().is_empty()));
    (child, port)
}

#[test]
fn a_program_gets_events_of_its_handlers_and_is_frozen_if_configured() {
    let (mut server, port) = migrating_server();
    let program = program().to_str().unwrap();
    for chain in ["+migrate", "+migrate:freeze=true"] {
        let words = [chain, "--via", "cgroup", "--", program, &port, "migrate", "retry", "events"];
        let output = output(&words);
        let said = text(&output.stdout);
        assert!(said.contains("paths "), "{output:?}");
        assert!(said.contains("event migrate: disconnected\n"), "{output:?}");
        assert!(said.contains("event migrate: migrated to 127.0.0.1:"), "{output:?}");
        assert_eq!(said.contains("freeze"), chain.ends_with("true"), "{output:?}");
    }
    super::signal(&server, "TERM");
    server.wait().unwrap();
}

/// Name of the test that is the program in Rust; another test runs it under `viaduct run`.
const PROGRAM_IN_RUST: &str = "aware::the_program_in_rust";
const PORT_VARIABLE: &str = "VIADUCT_TEST_PORT";

#[test]
fn the_program_in_rust() {
    let Ok(port) = env::var(PORT_VARIABLE) else { return };
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    stream.write_all(b"hello\n").unwrap();
    assert!(stream.read(&mut [0; 100]).unwrap() > 0);
    assert!(viaduct_aware::is_wrapped());
    let mut events = viaduct_aware::watch(&stream).unwrap().expect("it has handlers");
    let answer = viaduct_aware::control(&stream, "count", b"").unwrap().expect("it is counted");
    assert!(answer.starts_with(b"flows 1\nwritten 6\n"), "{answer:?}");
    assert_eq!(viaduct_aware::control(&stream, "unknown", b"").unwrap(), None);
    let reader = thread::spawn(move || events.next().unwrap());
    drop(stream);
    assert_eq!(reader.join().unwrap(), None, "an event after the flow's end");
}

#[test]
fn a_program_in_rust_queries_its_handlers() {
    let port = port_of(far_end("127.0.0.1:0"));
    let itself = env::current_exe().unwrap();
    for via in ["cgroup", "seccomp", "preload"] {
        let mut command = Command::new("timeout");
        command.args(["20", VIADUCT, "run", CHAIN, "+count", "--via", via, "--"]).arg(&itself);
        command
            .args([OsStr::new("--exact"), OsStr::new(PROGRAM_IN_RUST)])
            .env(PORT_VARIABLE, &port);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{via}: {}", text(&output.stdout));
        assert!(text(&output.stdout).contains("1 passed"), "{via}: {output:?}");
    }
}
