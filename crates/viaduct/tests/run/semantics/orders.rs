//! Connects, polls and reads of errors in many orders.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use super::{CHAIN, VIADUCT};

/// Number of listeners with a full backlog that accept connections on request.
const LATE: usize = 6;

/// Compiles the connecting program once, and returns its path.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("orders");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/semantics/orders.c");
        let made = Command::new("cc").args(["-Wall", "-o"]).arg(&out).arg(source).status();
        assert!(made.unwrap().success());
        out
    })
}

/// A listener with a full backlog, which drops SYNs, and the connections that fill it.
fn full(loopback: &str) -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind((loopback, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let at = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&at, Duration::from_millis(200)).ok();
    let first = std::iter::from_fn(connect).take(8).collect();
    (listener, first)
}

fn accept_all(listener: TcpListener) {
    thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
}

/// Returns the output of the program, started by the command `words` if there are any: a line for
/// each order of calls.
fn said(words: &[&str], family: &str) -> Vec<String> {
    let loopback = if family == "6" { "::1" } else { "127.0.0.1" };
    let port =
        |listener: &TcpListener| listener.local_addr().as_ref().map(SocketAddr::port).unwrap();
    let open = TcpListener::bind((loopback, 0)).unwrap();
    let open_port = port(&open);
    accept_all(open);
    // Bound, so that no other socket can take the port, but not listening.
    let closed = rustix::net::socket(
        if family == "6" {
            rustix::net::AddressFamily::INET6
        } else {
            rustix::net::AddressFamily::INET
        },
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&closed, &SocketAddr::new(loopback.parse().unwrap(), 0)).unwrap();
    let closed_at: SocketAddr = rustix::net::getsockname(&closed).unwrap().try_into().unwrap();
    let (without_room, _filled) = full(loopback);
    let (late, _first): (Vec<_>, Vec<_>) = (0..LATE).map(|_| full(loopback)).unzip();
    let mut late: Vec<_> = late.into_iter().map(|listener| (port(&listener), listener)).collect();

    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "60"]).args(words).arg(program()).arg(family);
    command.args([open_port, closed_at.port(), port(&without_room)].map(|port| port.to_string()));
    command.args(late.iter().map(|(port, _)| port.to_string()));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some(of) = line.strip_prefix("late ") else {
            said.push(line);
            continue;
        };
        let at = late.iter().position(|(port, _)| port.to_string() == of).unwrap();
        let (_, listener) = late.swap_remove(at);
        // With room in the backlog, the next SYN is answered.
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            accept_all(listener);
        });
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{words:?} {family}: {status}, after {said:#?}");
    said
}

/// Compares the program's output with and without viaduct. The program mostly waits, so the address
/// families run in parallel.
fn as_the_kernel(via: &[&str]) {
    thread::scope(|scope| {
        for family in ["4", "6", "46"] {
            scope.spawn(move || {
                let plain = said(&[], family);
                let words = [&[VIADUCT, "run", CHAIN][..], via, &["--"]].concat();
                let wrapped = said(&words, family);
                let both = plain.iter().zip(&wrapped);
                let differ: Vec<_> = both.filter(|(plain, wrapped)| plain != wrapped).collect();
                let is_alike = differ.is_empty() && plain.len() == wrapped.len();
                assert!(is_alike, "{via:?} {family}: {differ:#?}");
            });
        }
    });
}

#[test]
fn by_cgroup() {
    as_the_kernel(&["--via=cgroup"]);
}

#[test]
fn by_seccomp() {
    as_the_kernel(&["--via=seccomp"]);
}

#[test]
fn by_preload() {
    as_the_kernel(&["--via=preload"]);
}

#[test]
fn by_seccomp_in_strict_mode() {
    as_the_kernel(&["--via=seccomp", "--strict"]);
}

#[test]
fn by_preload_in_strict_mode() {
    as_the_kernel(&["--via=preload", "--strict"]);
}
