//! Programs whose first bytes go in the first packet: this saves a round trip if the server
//! supports Trickles, and loses or repeats no byte if it does not.

use std::process::Stdio;
use std::time::{Duration, Instant};

use viaduct_sys::process::Process;

use super::{VIADUCT, curl, done, url};
use crate::common::within;
use crate::world::World;

/// Link with a round trip of 300 ms.
const FAR: &str = "rate=50M,delay=150ms,queue=300kB";
const TRIP: f64 = 0.3;

/// Returns the times of sequential requests by programs under one run.
fn times(world: &World, by: &str, path: &str, count: usize) -> Vec<f64> {
    let one = format!("curl --noproxy '*' -sS -o /dev/null -w '%{{time_total}}\\n' {path}");
    let script = vec![one; count].join("; ");
    let mut command = world.net.a1().command(VIADUCT);
    command.args(["run", by, "--run-dir"]).arg(world.dir.join("runs"));
    command.args(["--", "sh", "-c", &script]).stderr(Stdio::piped());
    let said = String::from_utf8(done(command).stdout).unwrap();
    said.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_small_answer_of_a_known_server_takes_one_round_trip() {
    let Some(world) = World::new("early", FAR) else { return };
    world.file("small", &[b'x'; 600]);
    let _server = world.serve("auto");
    let small = url(world.v4(), "small");
    // On a busy machine a program may write only after its first packet has left. At least one of
    // several programs must be in time.
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let known = times(&world, "+trickles:way=tcp", &small, 5);
    assert!(known[0] >= 2.0 * TRIP, "the server is not known yet: {known:?}");
    assert!(best(&known[1..]) < 1.7 * TRIP, "{known:?}");
    let always = times(&world, "+trickles:way=udp,early=always", &small, 4);
    assert!(best(&always) < 1.7 * TRIP, "{always:?}");
    let never = times(&world, "+trickles:way=tcp,early=never", &small, 2);
    assert!(never.iter().all(|time| *time >= 2.0 * TRIP), "{never:?}");
}

#[test]
fn early_data_arrives_intact_and_once_at_a_server_without_trickles() {
    let Some(world) = World::new("early-tcp", "rate=50M,delay=5ms,queue=300kB") else { return };
    // Answers each connection, after its end of stream, with the bytes that were received.
    let echo = "
import socket
listener = socket.create_server(('', 80))
while True:
    client, _ = listener.accept()
    heard = b''
    while data := client.recv(65536): heard += data
    client.sendall(heard)
    client.close()
";
    let mut command = world.net.b1().command("python3");
    command.args(["-c", echo]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Process::spawn(command).unwrap();
    assert!(within(Duration::from_secs(10), || world.connect_plain().is_ok()));
    let client = format!(
        "
import socket, sys
for size in (0, 1, 5000, 300000):
    said = bytes(n * 7 % 251 for n in range(size))
    server = socket.create_connection(('{}', 80), timeout=20)
    server.sendall(said)
    server.shutdown(socket.SHUT_WR)
    heard = b''
    while data := server.recv(65536): heard += data
    assert heard == said, (size, len(heard))
print('alike')
",
        world.v4()
    );
    for by in ["+trickles:way=tcp,early=always", "+trickles:early=always", "+trickles"] {
        let mut command = world.net.a1().command(VIADUCT);
        command.args(["run", by, "--run-dir"]).arg(world.dir.join("runs"));
        command.args(["--", "python3", "-c", &client]).stderr(Stdio::piped());
        assert_eq!(done(command).stdout, b"alike\n", "{by}");
    }
    // A closed port is reported, although with another error than ECONNREFUSED.
    let closed = format!("http://{}:81/", world.v4());
    let start = Instant::now();
    let refused = curl(&world, &["+trickles:way=tcp,early=always"], &[&closed]).output().unwrap();
    assert!(
        !refused.status.success() && start.elapsed() < Duration::from_millis(1_500),
        "{refused:?}"
    );
}
