//! Datagrams under `viaduct run`: they pass the handlers, and the delay is the only effect that
//! programs see.
//!
//! Each test has a network namespace of its own, because a run that ends drops the held datagrams
//! of other runs in its namespace.

mod udp_associate;
mod unprivileged;
mod world;

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use world::{TALK, answers, far_end, output, text, world};

const DELAY: &str = "+latency:delay=20ms";

/// Parses the output of TALK: for each exchange, milliseconds, answer, and the answer's source port
/// and destination port.
fn exchanges(said: &str) -> Vec<(f64, String, u16, u16)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [took, answer, seen, peer, own] = words[..] else { panic!("{said}") };
        assert_eq!(seen, own, "the far end sees the port that the program has");
        (took.parse().unwrap(), answer.to_owned(), peer.parse().unwrap(), own.parse().unwrap())
    };
    said.lines().map(line).collect()
}

#[test]
fn latency_delays_each_datagram_both_ways_and_keeps_addresses() {
    if !world() {
        return;
    }
    for ip in ["127.0.0.1:0", "[::1]:0"] {
        let ends = [far_end(ip), far_end(ip)].map(|at| at.to_string());
        let words =
            [DELAY, "--strict", "--report", "--", "python3", "-c", TALK, &ends[0], &ends[1]];
        let output = output(&words);
        let all = exchanges(&text(&output.stdout));
        assert_eq!(all.len(), 12, "{output:?}");
        let port = |n: usize| ends[n].rsplit(':').next().unwrap().parse::<u16>().unwrap();
        for (n, (took, answer, peer, own)) in all.iter().enumerate() {
            // The first two are on an unconnected socket, one to each far end; the others are on a
            // connected socket.
            let (asked, of) = if n < 2 { ("to", n) } else { ("on", 0) };
            assert_eq!((answer.as_str(), *peer), (asked, port(of)), "{output:?}");
            assert!(*own == all[0].3 && *took >= 40.0, "{output:?}");
        }
        let best = all.iter().map(|(took, ..)| *took).fold(f64::MAX, f64::min);
        // With a margin for a busy machine.
        assert!(best < 48.0, "{best}");
        let report = text(&output.stderr);
        assert!(report.contains("2 passed the handlers by cgroup: 24 bytes out"), "{report}");
        assert!(report.contains(&format!(" 1  udp {}", ends[1])), "{report}");
    }
}

#[test]
fn shape_holds_its_rate_each_way() {
    if !world() {
        return;
    }
    let program = "
import socket, sys, time
host, port = sys.argv[1].rsplit(':', 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((host, int(port)))
for n in range(150):
    for _ in range(10): s.send(bytes(1000))
    time.sleep(0.01)
s.send(b'now you')
s.settimeout(2)
got, first = 0, None
while True:
    n = len(s.recv(2000))
    if n < 100: break
    got, last = got + n, time.monotonic()
    first = first or last
print((got - 1000) * 8 / (last - first))
";
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = far.local_addr().unwrap().to_string();
    let blast = thread::spawn(move || {
        let (mut got, mut first, mut last) = (0, None, Instant::now());
        let program = loop {
            let (length, from) = far.recv_from(&mut [0; 2_000]).unwrap();
            if length < 100 {
                break from;
            }
            last = Instant::now();
            first = first.or(Some(last));
            got += length;
        };
        for _ in 0..150 {
            for _ in 0..10 {
                far.send_to(&[0; 1_000], program).unwrap();
            }
            thread::sleep(Duration::from_millis(10));
        }
        // The datagram may be dropped for lack of buffer space, so it is repeated.
        for _ in 0..20 {
            far.send_to(b"end", program).unwrap();
            thread::sleep(Duration::from_millis(30));
        }
        (got - 1_000) as f64 * 8.0 / (last - first.unwrap()).as_secs_f64()
    });
    let output = output(&[
        "+shape:out=2M,in=1M,held=20000",
        "--report",
        "--",
        "python3",
        "-c",
        program,
        &at,
    ]);
    let (out, back) = (blast.join().unwrap(), text(&output.stdout).trim().parse::<f64>());
    let back = back.unwrap_or_else(|_| panic!("{output:?}"));
    assert!((out / 2e6 - 1.0).abs() < 0.05, "2 Mb/s are configured, not {out}");
    assert!((back / 1e6 - 1.0).abs() < 0.05, "1 Mb/s is configured, not {back}");
    assert!(text(&output.stderr).contains("datagrams found no room"), "{output:?}");
}

#[test]
fn count_counts_datagrams_and_without_handlers_they_go_direct() {
    if !world() {
        return;
    }
    let to = far_end("127.0.0.1:0").to_string();
    let said = |chain: &[&str]| {
        let program = ["--report", "--", "python3", "-c", TALK, &to, &to];
        text(&output(&[chain, &program].concat()).stderr)
    };
    for chain in [&["+count"][..], &["+count", "--no-offload"]] {
        let report = said(chain);
        assert!(report.contains("1 passed the handlers by cgroup: 24 bytes out"), "{report}");
    }
    let report = said(&["--via", "cgroup"]);
    assert!(report.contains("went direct") && report.contains(&to), "{report}");
}

#[test]
fn delayed_datagrams_keep_their_order_and_outlive_their_program() {
    if !world() {
        return;
    }
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let at = far.local_addr().unwrap().to_string();
    let program = "
import socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(60): s.sendto(b'%d' % n, (host, int(port)))
s.sendto(b'', (host, int(port)))
s.sendto(bytes(60000), (host, int(port)))
";
    let began = Instant::now();
    let chain = "+latency:delay=700ms";
    assert!(output(&[chain, "--", "python3", "-c", program, &at]).status.success());
    let mut buffer = vec![0; 65_536];
    let mut next = || far.recv(&mut buffer).map(|length| text(&buffer[..length])).unwrap();
    (0..60).for_each(|n| assert_eq!(next(), n.to_string()));
    assert_eq!((next().len(), next().len()), (0, 60_000));
    assert!(began.elapsed() >= Duration::from_millis(700));
}

#[test]
fn a_connected_socket_receives_only_from_its_peer_and_reports_refusals() {
    if !world() {
        return;
    }
    let (far, stranger) =
        (UdpSocket::bind("[::1]:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
    let closed = "9"; // nothing is bound to it in this network namespace
    let port = far.local_addr().unwrap().port().to_string();
    thread::spawn(move || {
        while let Ok((_, from)) = far.recv_from(&mut [0; 9]) {
            stranger.send_to(b"stranger", from).unwrap();
            thread::sleep(Duration::from_millis(50));
            far.send_to(b"friend", from).unwrap();
        }
    });
    let program = "
import socket, sys
port, closed = map(int, sys.argv[1:])
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.settimeout(5)
s.connect(('::1', port)); s.send(b'x'); print(s.recv(99).decode())
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.sendto(b'x', ('::1', port)); print(s.recv(99).decode())
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.settimeout(5)
s.connect(('::1', closed)); s.send(b'x')
try: s.recv(99)
except ConnectionRefusedError: print('refused')
";
    let output = output(&[DELAY, "--", "python3", "-c", program, &port, closed]);
    assert_eq!(text(&output.stdout), "friend\nstranger\nrefused\n", "{output:?}");
}

#[test]
fn a_server_answers_from_its_own_port() {
    if !world() {
        return;
    }
    let program = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True)
data, at = s.recvfrom(99); s.sendto(b'%d' % at[1], at)
";
    let mut command = world::run(&[DELAY, "--", "python3", "-c", program]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to: SocketAddr = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
    let began = Instant::now();
    client.send_to(b"source?", to).unwrap();
    let mut answer = [0; 99];
    let (length, from) = client.recv_from(&mut answer).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(40));
    let own = client.local_addr().unwrap().port().to_string();
    assert_eq!((from, text(&answer[..length])), (to, own));
    assert!(server.wait().unwrap().success());
}

#[test]
fn no_datagram_bypasses_a_killed_master() {
    if !world() {
        return;
    }
    let to = far_end("127.0.0.1:0").to_string();
    let program = "
import os, signal, socket, sys
host, port = sys.argv[1].rsplit(':', 1)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((host, int(port))); s.settimeout(0.2)
s.send(b'x')
os.kill(os.getppid(), signal.SIGKILL)
around = 0
for _ in range(5):
    try: s.send(b'y'); s.recv(99); around += 1
    except OSError: pass
print('over', around)
";
    let began = Instant::now();
    let output = output(&["+latency:delay=5s", "--", "python3", "-c", program, &to]);
    assert_eq!(text(&output.stdout), "over 0\n", "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
    let rules = text(&world::command("nft", &["list", "ruleset"]).stdout);
    assert!(!rules.contains("viaduct"), "rules are left: {rules}");
}

#[test]
fn datagrams_of_nested_runs_pass_both_chains() {
    if !world() {
        return;
    }
    let to = far_end("127.0.0.1:0").to_string();
    let inner = [world::VIADUCT, "run", DELAY, "--", "python3", "-c", TALK, &to, &to];
    let output = output(&[&["+latency:delay=30ms", "--report", "--"], &inner[..]].concat());
    let all = exchanges(&text(&output.stdout));
    assert!(all.len() == 12 && all.iter().all(|(took, ..)| *took >= 100.0), "{output:?}");
    assert!(text(&output.stderr).contains("1 passed the handlers by cgroup: 24 bytes out"));
}

#[test]
fn rules_apply_to_datagrams() {
    if !world() {
        return;
    }
    let to = far_end("127.0.0.1:0").to_string();
    let port = to.rsplit(':').next().unwrap();
    let said = |rules: &[&str]| {
        let words = ["+latency:delay=300ms", "--report", "--strict"];
        let program = ["--", "python3", "-c", TALK, &to, &to];
        let output = output(&[&words, rules, &program].concat());
        (exchanges(&text(&output.stdout)), text(&output.stderr))
    };
    for rules in [["--except", &format!("udp:{port}")], ["--only", "tcp"]] {
        let (all, report) = said(&rules);
        assert!(all.len() == 12 && all.iter().all(|(took, ..)| *took < 300.0), "{rules:?} {all:?}");
        assert!(report.contains("went direct") && !report.contains("passed"), "{report}");
    }
    let (all, report) = said(&["--refuse", &format!("udp:{port}")]);
    assert!(all.is_empty() && report.contains("were refused"), "{report}");
}

#[test]
fn a_handler_that_works_only_on_streams_is_reported_once() {
    if !world() {
        return;
    }
    let to = far_end("127.0.0.1:0").to_string();
    let streams = "compress works only on streams: datagrams";
    for (chain, via, says) in [
        ("+compress", "cgroup", streams),
        ("+compress", "seccomp", streams),
        ("+compress", "preload", streams),
    ] {
        for (strict, fare) in [("--no-strict", "go direct"), ("--strict", "are refused (--strict)")]
        {
            let words = [chain, "--via", via, strict, "--", "python3", "-c", TALK, &to, &to];
            let output = output(&words);
            let all = exchanges(&text(&output.stdout));
            assert_eq!(all.len(), if strict == "--strict" { 0 } else { 12 }, "{output:?}");
            let said = text(&output.stderr);
            assert_eq!(said.matches(&format!("{says} {fare}")).count(), 1, "{words:?} {said}");
        }
    }
}

#[test]
fn without_privilege_datagrams_pass() {
    if !world() {
        return;
    }
    world::global_address();
    for ip in ["127.0.0.1:0", "[::1]:0", "[2001:db8::7]:0"] {
        let ends = [(); 2].map(|()| far_end(ip).to_string());
        for via in ["seccomp", "preload"] {
            let options = [DELAY, "--strict", "--report", "--via", via];
            let program = ["--", "python3", "-c", TALK, &ends[0], &ends[1]];
            let output = output(&[&options[..], &program].concat());
            let all = exchanges(&text(&output.stdout));
            assert_eq!(all.len(), 12, "{ip} {output:?}");
            assert!(all.iter().all(|(took, ..)| *took >= 40.0), "{ip} {via}: {all:?}");
            let report = text(&output.stderr);
            let passed = format!("2 passed the handlers by {via}: 24 bytes out");
            assert!(report.contains(&passed), "{report}");
        }
    }
}

#[test]
fn without_privilege_and_without_a_tun_datagrams_pass() {
    if !world() {
        return;
    }
    world::global_address();
    // Datagrams of other lengths, up to the longest.
    let lengths = "
import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
for n in 0, 1, 1472, 1473, 30000, 65487:
    s.sendto(b'x' * n, (sys.argv[1], int(sys.argv[2])))
    print(n, len(s.recvfrom(70000)[0]) > 0)
";
    for ip in ["127.0.0.1:0", "[::1]:0", "[2001:db8::7]:0"] {
        let far = far_end(ip);
        let [host, port] = [far.ip().to_string(), far.port().to_string()];
        let words = ["+count", "--no-offload", "--strict", "--via", "seccomp", "--"];
        let hidden = "mount -t tmpfs none /dev/net && exec \"$@\"";
        let output = world::command(
            "unshare",
            &[
                &["--mount", "sh", "-c", hidden, "sh", "timeout", "30", world::VIADUCT, "run"][..],
                &words[..],
                &["python3", "-c", lengths, &host, &port],
            ]
            .concat(),
        );
        let said = text(&output.stdout);
        assert_eq!(said.matches("True").count(), 6, "{ip} {output:?}");
    }
}

#[test]
fn without_privilege_ipv6_has_the_kernels_addresses_and_errors() {
    if !world() {
        return;
    }
    let (far, both) = (far_end("[::1]:0"), far_end("127.0.0.1:0"));
    let closed = "9"; // nothing is bound to it in this network namespace
    let program = "
import socket, sys
far, both, closed = map(int, sys.argv[1:])
def new():
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(5)
    return s
s = new(); s.connect(('::1', far)); print(s.getsockname()[0], s.getpeername()[:2] == ('::1', far))
s.send(b'x'); print(s.recvfrom(99)[1][0])
s = new(); s.sendto(b'x', ('::ffff:127.0.0.1', both)); print(s.recvfrom(99)[1][0])
s = new(); s.connect(('::1', closed)); s.send(b'x')
try: s.recv(99)
except ConnectionRefusedError: print('refused')
s = new(); s.bind(('::1', 0))
try: new().bind(s.getsockname())
except OSError as e: print(e.errno)
try: new().bind(('2001:db8::99', 0))
except OSError as e: print(e.errno)
s = new()
try: s.connect(('2001:db8::1', 9)); print('went')
except OSError as e: print(e.errno)
";
    let ports = [far.port(), both.port()].map(|port| port.to_string());
    let words = ["python3", "-c", program, &ports[0], &ports[1], closed];
    let plain = world::command(words[0], &words[1..]);
    assert_eq!(text(&plain.stdout).lines().count(), 7, "{plain:?}");
    let wrapped = output(&[&[DELAY, "--strict", "--via", "seccomp", "--"], &words[..]].concat());
    assert_eq!(text(&wrapped.stdout), text(&plain.stdout), "{wrapped:?}");
}

#[test]
fn without_privilege_a_dual_stack_server_answers_both_families() {
    if !world() {
        return;
    }
    let program = "
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(('::', 0)); print(s.getsockname()[1], flush=True)
for _ in range(2):
    data, at = s.recvfrom(99); s.sendto(b'%s %d' % (at[0].encode(), at[1]), at)
";
    let mut command = world::run(&[DELAY, "--via", "seccomp", "--", "python3", "-c", program]);
    let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    for (own, seen) in [("[::1]", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")] {
        let client = UdpSocket::bind(format!("{own}:0")).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let began = Instant::now();
        let to: SocketAddr = format!("{own}:{}", port.trim()).parse().unwrap();
        client.send_to(b"source?", to).unwrap();
        let mut answer = [0; 99];
        let (length, from) = client.recv_from(&mut answer).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(40));
        let port = client.local_addr().unwrap().port();
        assert_eq!((from, text(&answer[..length])), (to, format!("{seen} {port}")));
    }
    assert!(server.wait().unwrap().success());
}

#[test]
fn shape_limits_iperf_over_udp() {
    if !world() {
        return;
    }
    world::iperf_server();
    let words = ["-c", "127.0.0.1", "-u", "-b", "8M", "-l", "1000", "-t", "2", "-J"];
    let output = output(&[&["+shape:rate=2M", "--", "iperf3"], &words[..]].concat());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rate = answers(&json, &["end", "sum_received", "bits_per_second"]);
    assert!((rate / 2e6 - 1.0).abs() < 0.15, "{rate}");
}
