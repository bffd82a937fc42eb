//! A network namespace with a far end and programs.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use viaduct_sys::netns::Netns;

pub(crate) const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");

/// A Python program that asks two far ends on an unconnected socket, and then the first one ten
/// times on the connected socket. It prints for each exchange: milliseconds, the answer, and the
/// answer's source port and destination port.
pub(crate) const TALK: &str = "
import socket, sys, time
def end(text):
    host, port = text.rsplit(':', 1)
    return host.strip('[]'), int(port)
ends = [end(text) for text in sys.argv[1:]]
s = socket.socket(socket.AF_INET6 if ':' in ends[0][0] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
def ask(send):
    began = time.monotonic()
    send()
    data, peer = s.recvfrom(100)
    took = (time.monotonic() - began) * 1000
    print(took, data.decode(), peer[1], s.getsockname()[1])
for at in ends: ask(lambda: s.sendto(b'to', at))
s.connect(ends[0])
assert s.getpeername()[1] == ends[0][1]
for _ in range(10): ask(lambda: s.send(b'on'))
";

/// Moves this test into a new network namespace. Returns false if that is not permitted.
pub(crate) fn world() -> bool {
    let namespace = match Netns::new() {
        Ok(namespace) => namespace,
        Err(error) => {
            eprintln!("skipped: {error}");
            return false;
        }
    };
    namespace.join().unwrap();
    assert!(command("ip", &["link", "set", "lo", "up"]).status.success());
    true
}

/// Adds an IPv6 address other than the loopback one: 2001:db8::7.
pub(crate) fn global_address() {
    for words in [
        "link add d0 type veth peer name d1",
        "addr add 2001:db8::7/64 dev d0 nodad",
        "link set d0 up",
        "link set d1 up",
    ] {
        let made = command("ip", &words.split(' ').collect::<Vec<_>>());
        assert!(made.status.success(), "{words}: {made:?}");
    }
}

/// Runs a program to its end.
pub(crate) fn command(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap()
}

/// Builds the command `viaduct run` with these words, ended after 30 s.
pub(crate) fn run(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30", VIADUCT, "run"]).args(words);
    command
}

pub(crate) fn output(words: &[&str]) -> Output {
    run(words).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a far end that answers each datagram with its contents and source port.
pub(crate) fn far_end(at: &str) -> SocketAddr {
    let socket = UdpSocket::bind(at).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 100];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let answer = format!("{} {}", text(&buffer[..length]), from.port());
            // The send fails if the program has ended.
            let _ = socket.send_to(answer.as_bytes(), from);
        }
    });
    address
}

/// Starts an iperf3 server for one test, and waits until it listens.
pub(crate) fn iperf_server() {
    let serves = || drop(command("timeout", &["20", "iperf3", "-s", "-1"]));
    // A new thread is in the namespace of its creator.
    thread::spawn(serves);
    let listens = || text(&command("ss", &["-Hltn", "sport = :5201"]).stdout).contains(":5201");
    for _ in 0..200 {
        if listens() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("iperf3 does not listen");
}

/// Returns the number at this path.
pub(crate) fn answers(json: &serde_json::Value, path: &[&str]) -> f64 {
    let found = path.iter().fold(json, |at, key| &at[key]);
    found.as_f64().unwrap_or_else(|| panic!("{path:?} in {json}"))
}
