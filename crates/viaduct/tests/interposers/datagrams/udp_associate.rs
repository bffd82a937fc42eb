//! Datagrams through `socks`: all of them go through the proxy's relay.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::world::{self, TALK, far_end, output, text, world};

const VIAS: [&str; 3] = ["cgroup", "seccomp", "preload"];
const PROXY: &str = "+socks:via=127.0.0.1:1080";
/// Start timeout of a proxy, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A proxy, ended on drop.
struct Proxy {
    child: Child,
    /// Lines of its output.
    says: Receiver<String>,
    files: Vec<PathBuf>,
}

impl Proxy {
    /// Starts `relay.py`, a proxy that misbehaves.
    fn ours() -> Proxy {
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("relay.py"), "1080"]).stdout(Stdio::piped());
        let proxy = Proxy::start(command, Vec::new());
        assert_eq!(proxy.next(), "listening");
        proxy
    }

    /// Starts Dante, as packaged in Debian.
    fn dante() -> Proxy {
        let config = "logoutput: /dev/null\ninternal: 127.0.0.1 port = 1080\nexternal: 127.0.0.1\n\
            clientmethod: none\nsocksmethod: none\nuser.unprivileged: nobody\n\
            client pass { from: 127.0.0.0/8 to: 0.0.0.0/0 }\n\
            socks pass { from: 127.0.0.0/8 to: 127.0.0.0/8 command: connect udpassociate }\n\
            socks pass { from: 127.0.0.0/8 to: 127.0.0.0/8 command: udpreply }\n";
        let [file, pid] = ["conf", "pid"].map(|what| {
            std::env::temp_dir().join(format!("viaduct-dante-{}.{what}", std::process::id()))
        });
        fs::write(&file, config).unwrap();
        let mut command = Command::new("danted");
        command.arg("-f").arg(&file).arg("-p").arg(&pid);
        let proxy = Proxy::start(command, vec![file, pid]);
        let listens =
            || text(&world::command("ss", &["-Hltn", "sport = :1080"]).stdout).contains(":1080");
        let until = Instant::now() + START;
        while !listens() {
            assert!(Instant::now() < until, "dante does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        proxy
    }

    fn start(mut command: Command, files: Vec<PathBuf>) -> Proxy {
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let (say, says) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = say.send(line);
                }
            });
        }
        Proxy { child, says, files }
    }

    fn next(&self) -> String {
        self.says.recv_timeout(START).unwrap()
    }

    /// Waits for the end of an association. Returns all lines of the proxy's output so far.
    fn said(&self) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        while said.last().is_none_or(|line| line != "over") {
            said.push(self.next());
        }
        said.extend(self.says.try_iter());
        said
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Dante ends its children when it gets SIGTERM.
        let _ = world::command("kill", &["-TERM", &self.child.id().to_string()]);
        thread::sleep(Duration::from_millis(50));
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// Parses the output of TALK: for each exchange, the answer, the port that the far end has seen,
/// and the answer's source port and destination port.
fn exchanges(said: &str) -> Vec<(String, u16, u16, u16)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, answer, seen, peer, own] = words[..] else { panic!("{said}") };
        let [seen, peer, own] = [seen, peer, own].map(|port| port.parse().unwrap());
        (answer.to_owned(), seen, peer, own)
    };
    said.lines().map(line).collect()
}

fn talk(
    via: &str,
    chain: &[&str],
    ends: [SocketAddr; 2],
) -> (Vec<(String, u16, u16, u16)>, String) {
    let ends = ends.map(|at| at.to_string());
    let program = ["--via", via, "--report", "--", "python3", "-c", TALK, &ends[0], &ends[1]];
    let output = output(&[chain, &program].concat());
    (exchanges(&text(&output.stdout)), text(&output.stderr))
}

#[test]
fn datagrams_pass_the_relay_of_dante() {
    if !world() {
        return;
    }
    let _proxy = Proxy::dante();
    let ends = [(); 2].map(|()| far_end("127.0.0.1:0"));
    for via in VIAS {
        let (all, report) = talk(via, &[PROXY], ends);
        assert_eq!(all.len(), 12, "{via}: {report}");
        for (n, (answer, seen, peer, own)) in all.iter().enumerate() {
            let (asked, of) = if n < 2 { ("to", n) } else { ("on", 0) };
            assert_eq!((&answer[..], *peer), (asked, ends[of].port()), "{via}: {report}");
            assert!(seen != own, "{via}: the far end sees the relay");
        }
        assert!(
            report.contains(&format!("2 passed the handlers by {via}: 24 bytes out")),
            "{report}"
        );
    }
}

#[test]
fn invalid_relayed_datagrams_are_dropped_and_earlier_handlers_apply() {
    if !world() {
        return;
    }
    for ip in ["127.0.0.1:0", "[::1]:0"] {
        let ends = [(); 2].map(|()| far_end(ip));
        for via in VIAS {
            let proxy = Proxy::ours();
            let chain = ["+latency:delay=20ms", PROXY];
            let began = Instant::now();
            let (all, report) = talk(via, &chain, ends);
            assert_eq!(all.len(), 12, "{ip} by {via}: {report}");
            assert!(began.elapsed() >= Duration::from_millis(12 * 40), "{:?}", began.elapsed());
            assert!(all.iter().all(|(_, seen, _, own)| seen != own), "{all:?}");
            // For each answer the relay also sends two fragments, an invalid relay header, an empty
            // datagram, and one from a multicast group.
            let dropped = format!("{} datagrams were not carried by the relay", 12 * 5);
            assert!(report.contains(&dropped), "{ip} by {via}: {report}");
            let said = proxy.said();
            assert_eq!(said.iter().filter(|line| *line == "associated").count(), 1, "{said:?}");
        }
    }
}

#[test]
fn only_the_relay_reaches_the_program() {
    if !world() {
        return;
    }
    let program = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(15)
s.bind(('127.0.0.1', 0))
s.sendto(b'%d' % s.getsockname()[1], ('127.0.0.1', int(sys.argv[1])))
print(s.recv(99).decode())
s.settimeout(0.5)
try:
    while True: print(s.recv(99).decode())
except socket.timeout: print('nothing else')
";
    let _proxy = Proxy::ours();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = far.local_addr().unwrap().port().to_string();
    thread::spawn(move || {
        let mut buffer = [0; 99];
        while let Ok((length, relay)) = far.recv_from(&mut buffer) {
            // The first of the two answers bypasses the relay. It goes to the port of the program's
            // socket. The socket has this port outside of its capture namespace, too, if the port
            // was free there.
            let own: u16 = text(&buffer[..length]).parse().unwrap();
            far.send_to(b"around", ("127.0.0.1", own)).unwrap();
            thread::sleep(Duration::from_millis(50));
            far.send_to(b"by the relay", relay).unwrap();
        }
    });
    for via in VIAS {
        let output = output(&[PROXY, "--via", via, "--", "python3", "-c", program, &port]);
        assert_eq!(text(&output.stdout), "by the relay\nnothing else\n", "{via}: {output:?}");
    }
}

#[test]
fn the_relay_resolves_names() {
    if !world() {
        return;
    }
    // Fake IPs need a route.
    let route = world::command("ip", &["route", "add", "198.18.0.0/15", "dev", "lo"]);
    assert!(route.status.success(), "{route:?}");
    let route = world::command("ip", &["route", "add", "203.0.113.0/24", "dev", "lo"]);
    assert!(route.status.success(), "{route:?}");
    let program = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(15)
query = b'ab\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0' + b'\\4mars\\4test\\0' + b'\\0\\1\\0\\1'
s.sendto(query, ('203.0.113.53', 53))
answer, at = s.recvfrom(512)
mars = socket.inet_ntoa(answer[-4:])
print(at[0], mars.startswith('198.18.'))
for n in range(3):
    s.sendto(b'%d' % n, (mars, int(sys.argv[1])))
    answer, at = s.recvfrom(99)
    print(answer.split()[0].decode(), at == (mars, int(sys.argv[1])))
";
    let port = far_end("127.0.0.1:0").port().to_string();
    for via in VIAS {
        let proxy = Proxy::ours();
        let output =
            output(&[PROXY, "--via", via, "--report", "--", "python3", "-c", program, &port]);
        let expected = "203.0.113.53 True\n0 True\n1 True\n2 True\n";
        assert_eq!(text(&output.stdout), expected, "{via}: {output:?}");
        let said = proxy.said();
        let asked = format!("to name mars.test {port} 1");
        assert_eq!(said.iter().filter(|line| **line == asked).count(), 3, "{said:?}");
        assert!(text(&output.stderr).contains(&format!("udp mars.test:{port}")), "{output:?}");
    }
}

#[test]
fn a_relay_ends_with_its_connection_and_is_replaced() {
    if !world() {
        return;
    }
    let program = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(15)
s.connect(('127.0.0.1', int(sys.argv[1])))
s.send(b'x'); print(s.recv(99).split()[0].decode())
s.send(b'cut'); time.sleep(0.3)
# A datagram that is sent before the end of the association is noticed is lost.
s.settimeout(4)
for _ in range(4):
    s.send(b'y')
    try: print(s.recv(99).split()[0].decode())
    except OSError: continue
    break
";
    let port = far_end("127.0.0.1:0").port().to_string();
    for via in VIAS {
        let proxy = Proxy::ours();
        let output = output(&[PROXY, "--via", via, "--", "python3", "-c", program, &port]);
        assert_eq!(text(&output.stdout), "x\ny\n", "{via}: {output:?}");
        let mut expected = ["associated", "to", "to", "over", "associated", "to", "over"].to_vec();
        while !expected.is_empty() {
            let line = proxy.next();
            let word = line.split(' ').next().unwrap();
            let at = expected.iter().position(|of| *of == word);
            expected.remove(at.unwrap_or_else(|| panic!("{line}: {expected:?}")));
        }
    }
}

#[test]
fn without_a_relay_datagrams_are_dropped_and_that_is_logged() {
    if !world() {
        return;
    }
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let port = far.local_addr().unwrap().port().to_string();
    let program = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(10):
    s.sendto(b'x', ('127.0.0.1', int(sys.argv[1]))); time.sleep(0.03)
";
    for via in VIAS {
        let output = output(&[PROXY, "--via", via, "--", "python3", "-c", program, &port]);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert_eq!(said.matches("the proxy has no relay for them").count(), 1, "{via}: {said}");
        assert!(far.recv(&mut [0; 9]).is_err(), "{via}: a datagram has bypassed the proxy");
    }
    // Datagrams go directly if the user permits it.
    let ends = [(); 2].map(|()| far_end("127.0.0.1:0"));
    for via in VIAS {
        let (all, said) = talk(via, &[PROXY, "--no-strict"], ends);
        assert_eq!(all.len(), 12, "{via}: {said}");
        assert_eq!(
            said.matches("datagrams go direct: the proxy has no relay").count(),
            1,
            "{said}"
        );
    }
    let output = output(&[PROXY, "+count", "--", "python3", "-c", program, &port]);
    let said = text(&output.stderr);
    assert!(said.contains("a handler that has a relay for datagrams must be the last"), "{said}");
    assert!(far.recv(&mut [0; 9]).is_err());
}
