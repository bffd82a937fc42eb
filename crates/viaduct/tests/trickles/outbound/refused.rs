//! Closed ports, and servers without Trickles: the connect fails or falls back as soon as an answer
//! arrives, not at a timeout.

use std::process::Stdio;
use std::time::Duration;

use viaduct_sys::process::Process;

use super::{VIADUCT, done};
use crate::common::within;
use crate::world::World;

const LINK: &str = "rate=50M,delay=5ms,queue=300kB";
/// Firewall rules: two reject packets, one drops datagrams silently.
const RULES: &str = "
    table inet fw {
        chain in {
            type filter hook input priority 0;
            tcp dport 82 reject with icmpx type port-unreachable
            tcp dport 83 reject with icmpx type admin-prohibited
            udp dport 84 drop
        }
    }";

/// Returns the results of connects to these ports, with the milliseconds that each took.
fn connects(world: &World, by: &str, to: &str, ports: &[u16]) -> Vec<(String, u64)> {
    let script = format!(
        "
import errno, socket, time
for port in {ports:?}:
    start = time.monotonic()
    try:
        socket.create_connection(('{to}', port), timeout=8).close()
        said = 'open'
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error))
    print(said, int(1000 * (time.monotonic() - start)))
"
    );
    let mut command = world.net.a1().command(VIADUCT);
    command.args(["run", by, "--run-dir"]).arg(world.dir.join("runs"));
    command.args(["--", "python3", "-c", &script]).stderr(Stdio::piped());
    let said = String::from_utf8(done(command).stdout).unwrap();
    let line = |line: &str| {
        let (said, millis) = line.split_once(' ').unwrap();
        (said.to_owned(), millis.parse().unwrap())
    };
    said.lines().map(line).collect()
}

#[test]
fn closed_and_rejected_ports_are_refused_immediately() {
    let Some(world) = World::new("refused", LINK) else { return };
    // Disables the kernel's rate limits of ICMP errors.
    let limits = [("net/ipv4/icmp_ratelimit", "0"), ("net/ipv6/icmp/ratelimit", "0")];
    world.net.b1().set_sysctls(&limits).unwrap();
    world.net.b1().run("nft", &[RULES]).unwrap();
    let mut command = world.net.b1().command("python3");
    command.args(["-m", "http.server", "80", "--bind", "::"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Process::spawn(command).unwrap();
    assert!(within(Duration::from_secs(10), || world.connect_plain().is_ok()));
    for to in [world.v4(), world.v6()] {
        for by in ["+trickles", "+trickles:way=tcp", "+trickles:way=udp"] {
            // Port 81 is closed. A firewall rejects 82 and 83; the errors are those that the
            // kernel's TCP would return.
            let found = connects(&world, by, &to.to_string(), &[81, 82, 83, 80]);
            println!("{to} {by}: {found:?}");
            let said: Vec<&str> = found.iter().map(|(said, _)| &said[..]).collect();
            assert_eq!(said[..2], ["ECONNREFUSED"; 2], "{to} {by}: {found:?}");
            assert!(
                ["EHOSTUNREACH", "EACCES", "ECONNREFUSED"].contains(&said[2]),
                "{by}: {found:?}"
            );
            assert_eq!(said[3], "open", "{to} {by}: {found:?}");
            assert!(found.iter().all(|(_, millis)| *millis < 1_500), "{to} {by}: {found:?}");
        }
        // The datagram gets no answer. After TCP's reset, the wait for an answer is short: twice
        // the time of the reset, plus 200 ms. The connect to port 81 takes the time that a run's
        // first connect needs for its rules.
        let found = connects(&world, "+trickles", &to.to_string(), &[81, 84]);
        assert_eq!(found[1].0, "ECONNREFUSED", "{to}: {found:?}");
        assert!((200..2_000).contains(&found[1].1), "{to}: {found:?}");
    }
}

#[test]
fn a_udp_only_server_is_reached_although_its_tcp_port_refuses() {
    let Some(world) = World::new("udp-alone", LINK) else { return };
    world.file("small", b"small");
    // Encrypted only: the server has no TCP listener, and accepts no packets in TCP's format.
    let key = super::encrypted::identity(&world, "identity");
    let file = world.dir.join("identity");
    let only = ["--identity", file.to_str().unwrap(), "--encrypted-only"];
    let _server = world.serve_with("udp", &only, || world.status_is_there());
    let by = format!("+trickles:key={key}");
    let found = connects(&world, &by, &world.v4().to_string(), &[80, 81]);
    let said: Vec<&str> = found.iter().map(|(said, _)| &said[..]).collect();
    assert_eq!(said, ["open", "ECONNREFUSED"], "{found:?}");
    assert!(found.iter().all(|(_, millis)| *millis < 1_500), "{found:?}");
}
