//! Ends that negotiate their handlers while they connect: with each other, with plain peers, and
//! through a middlebox.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_sys::capture::ring::{Direction, Ring, RingConfig};
use viaduct_sys::netns::Netns;

use crate::common::free_port;

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
/// Answers each message with "heard" and the message.
const SERVER: &str = "
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET
s = socket.create_server((sys.argv[2], int(sys.argv[1])), family=family)
print('up', flush=True)
while True:
    try:
        c, at = s.accept()
        c.sendall(b'heard ' + c.recv(100))
        c.close()
    except ConnectionError: pass
";
const CLIENT: &str = "
import socket, sys
s = socket.create_connection((sys.argv[2], int(sys.argv[1])))
s.sendall(b'hello')
print(s.makefile().read())
";

/// Builds a command that runs a program under `viaduct run` with these words, or without viaduct if
/// there are no words.
fn program(words: &str, text: &str, at: SocketAddr) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30"]);
    if !words.is_empty() {
        command.args([VIADUCT, "run"]).args(words.split(' ')).arg("--");
    }
    command.args(["python3", "-c", text, &at.port().to_string(), &at.ip().to_string()]);
    command
}

/// A server, ended on drop.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    fn start(words: &str) -> Server {
        Server::start_at("127.0.0.1", words)
    }

    fn start_at(ip: &str, words: &str) -> Server {
        let at = SocketAddr::new(ip.parse().unwrap(), free_port());
        let mut command = program(words, SERVER, at);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Server { child, at }
    }

    /// Ends the server. Returns its log of rejected clients.
    fn end(mut self) -> String {
        kill(&self.child);
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(&self.child);
        let _ = self.child.wait();
    }
}

/// Sends SIGTERM to `timeout`, which forwards it to its command.
fn kill(child: &Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
}

fn client(words: &str, at: SocketAddr) -> (String, String) {
    let Output { stdout, stderr, .. } = program(words, CLIENT, at).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    (text(stdout), text(stderr))
}

/// Creates a key in a file of its own. Returns a `crypt` handler with that key.
fn crypt(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("viaduct-agree-{}-{name}", std::process::id()));
    let path = path.display().to_string();
    let made = Command::new(VIADUCT).args(["key", "new", "--out", &path]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    format!("+crypt:key={path}")
}

#[test]
fn common_handlers_apply_and_missing_required_ones_fail_the_flow() {
    let crypt = crypt("both");
    let chain = format!("+compress {crypt}");
    let server = Server::start(&format!("--prefer {chain}"));
    let heard = |words: &str| client(words, server.at).0 == "heard hello";
    assert!(heard(&format!("--prefer {chain}")));
    assert!(heard(&format!("--require {chain}")));
    assert!(heard(&format!("--require {crypt} +compress")), "not in the client's order");
    assert!(heard("--prefer +compress") && heard("--require +compress +count"));
    assert!(heard("--prefer +stripe"), "no handlers in common");
    assert!(heard(""), "a plain client");
    let (said, why) = client("--require +stripe +compress", server.at);
    assert!(said.is_empty() && why.contains("no stripe"), "{why}");
    assert!(why.contains("it has compress, crypt"), "{why}");
}

#[test]
fn negotiation_covers_ipv6_and_further_connections_of_a_flow() {
    let chain = format!("{} +stripe +compress", crypt("more"));
    let server = Server::start_at("::1", &format!("--require {chain}"));
    assert_eq!(client(&format!("--require {chain}"), server.at).0, "heard hello");
    let (said, why) = client("--prefer +compress", server.at);
    // The reset arrives when the connection is established, or just before the program's connect
    // has returned.
    let broken = ["ConnectionResetError", "ConnectionRefusedError"];
    assert!(said.is_empty() && broken.iter().any(|error| why.contains(error)), "{why}");
}

#[test]
fn a_plain_server_gets_a_plain_flow_or_none_if_handlers_are_required() {
    let server = Server::start("");
    assert_eq!(client("--prefer +compress", server.at).0, "heard hello");
    let (said, why) = client("--require +compress", server.at);
    assert!(said.is_empty() && why.contains("does not negotiate"), "{why}");
}

#[test]
fn a_server_with_required_handlers_resets_plain_clients_and_logs_it_once() {
    let server = Server::start("--require=compress +compress +stripe");
    for _ in 0..3 {
        let (said, why) = client("", server.at);
        assert!(said.is_empty() && why.contains("ConnectionResetError"), "{why}");
    }
    assert_eq!(client("--prefer +compress", server.at).0, "heard hello");
    let said = server.end();
    assert_eq!(said.matches("refused: a connection from 127.0.0.1").count(), 1, "{said}");
    assert!(said.contains("required: compress"), "{said}");
}

#[test]
fn chains_that_cannot_be_negotiated_are_refused_at_the_start() {
    for (words, why) in [
        ("--prefer +count", "nothing can be negotiated"),
        ("--require=crypt +compress", "crypt is required"),
        ("--prefer +socks:via=127.0.0.1:1 +compress", "connects to another host"),
        ("--prefer --via seccomp +compress", "needs root"),
    ] {
        let (said, error) = client(words, ([127, 0, 0, 1], 1).into());
        assert!(said.is_empty() && error.contains(why), "{words}: {error}");
    }
}

#[test]
fn without_syn_options_a_greeting_negotiates() {
    let chain = format!("+compress {}", crypt("greet"));
    let server = Server::start(&format!("--require --greet {chain}"));
    for via in ["seccomp", "preload", "cgroup --greet"] {
        let words = format!("--via {via} --require {chain}");
        assert_eq!(client(&words, server.at).0, "heard hello", "{words}");
    }
    let (said, _) = client("--via seccomp --require +compress", server.at);
    assert!(said.is_empty());
    assert!(client("", server.at).0.is_empty(), "a plain client");
    let said = server.end();
    assert!(said.contains("no crypt, which is required here"), "{said}");
    let plain = Server::start("");
    let (said, why) = client("--via seccomp --require +compress", plain.at);
    assert!(said.is_empty() && why.contains("does not negotiate"), "{why}");
}

/// Echoes each connection.
const MANY_SERVER: &str = "
import socket, sys, threading
s = socket.create_server((sys.argv[2], int(sys.argv[1])))
print('up', flush=True)
def serve(c):
    try:
        while data := c.recv(100): c.sendall(data)
    except OSError: pass
    c.close()
while True:
    c, at = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
";
/// Opens five connections at once. Prints the echoes, and the number of established connections to
/// the server's port.
const MANY_CLIENT: &str = "
import socket, sys
port = int(sys.argv[1])
all = [socket.create_connection((sys.argv[2], port)) for n in range(5)]
for n, s in enumerate(all): s.sendall(b'%d' % n)
print(b''.join(s.recv(100) for s in all).decode(), end=' ')
lines = [line.split() for line in open('/proc/net/tcp')][1:]
print(sum(l[2].endswith(':%04X' % port) and l[3] == '01' for l in lines))
";

/// Waits until the previous client has disconnected. Its master may outlive it for a moment.
fn wait_until_disconnected(to: SocketAddr) {
    // Compares the remote address and the state. The local address comes first, and begins with 01
    // as well.
    let established = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[2].ends_with(&format!(":{:04X}", to.port())) && fields[3] == "01"
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::read_to_string("/proc/net/tcp").unwrap().lines().any(established) {
        assert!(Instant::now() < deadline, "a connection to {to} is left");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn flows_share_a_connection_if_both_ends_negotiate_mux() {
    let key = crypt("mux");
    let chain = format!("+mux {key}");
    for (server, clients) in [
        (format!("--prefer {chain}"), [format!("--prefer {chain}"), format!("--require {chain}")]),
        (
            format!("--require --greet {chain}"),
            [format!("--require --greet {chain}"), format!("--via seccomp --require {chain}")],
        ),
    ] {
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = program(&server, MANY_SERVER, at);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let _server = Server { child, at };
        for words in clients {
            wait_until_disconnected(at);
            let output = program(&words, MANY_CLIENT, at).output().unwrap();
            // The five flows of the program share one connection between the handlers, and have one
            // each to the server.
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, "01234 6\n", "{words}: {output:?}");
        }
        if server.contains("--prefer") {
            // Without mux at the client there are five connections from it, and five to the server.
            wait_until_disconnected(at);
            let words = format!("--prefer {key}");
            let output = program(&words, MANY_CLIENT, at).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "01234 10\n", "{output:?}");
        }
    }
}

/// Packet of a connection: true if it goes to the server; its flags without PSH; true if it has
/// data.
type Packet = (bool, u8, bool);

/// Returns the packets of the first connection to `port` on the tap, up to the first with data, and
/// whether one of them had the option that offers handlers.
fn until_data(tap: &mut Ring, port: u16) -> (Vec<Packet>, bool) {
    const PSH: u8 = 8;
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut seen, mut other, mut offered) = (Vec::new(), None, false);
    while Instant::now() < deadline {
        let Some(frame) = tap.next() else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        if frame.direction() != Direction::Outgoing || frame.len() < 40 || frame[9] != 6 {
            continue;
        }
        let of = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (from, to) = (of(20), of(22));
        let (goes, with) = if to == port { (true, from) } else { (false, to) };
        if from != port && to != port || with != *other.get_or_insert(with) {
            continue;
        }
        let headers = 20 + usize::from(frame[32] >> 4) * 4;
        let data = usize::from(of(2)) > headers;
        offered |= frame[20..headers].windows(4).any(|at| at == [253, 16, b'V', b'a']);
        seen.push((goes, frame[33] & !PSH, data));
        if data {
            return (seen, offered);
        }
    }
    panic!("no data was seen: {seen:?}");
}

#[test]
fn negotiation_costs_no_round_trip() {
    // In a network namespace of its own, because packets of other tests would fill the tap.
    Netns::new().unwrap().join().unwrap();
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.unwrap().success());
    let captured = |words: &str| {
        let server = Server::start(words);
        let mut tap = Ring::open("lo", RingConfig { max_packet: 2048, bytes: 1 << 20 }).unwrap();
        assert_eq!(client(words, server.at).0, "heard hello");
        until_data(&mut tap, server.at.port())
    };
    let (plain, offered) = captured("");
    assert!(!offered);
    assert_eq!(plain.len(), 4, "SYN, SYN-ACK, ACK, data: {plain:?}");
    for words in ["--require +compress", "--prefer +compress"] {
        let (agreed, offered) = captured(words);
        assert!(offered, "{words}");
        assert_eq!(agreed, plain, "{words}");
    }
}

#[test]
fn a_stripped_option_is_refused_if_handlers_are_required() {
    // A middlebox on the path removes the option from SYNs.
    let script = format!(
        "ip link set lo up
        nft 'table ip strip {{ chain in {{ type filter hook input priority raw;
            tcp dport 7 tcp flags syn reset tcp option 253; }}; }}'
        run() {{ timeout --signal=KILL 20 {VIADUCT} run $1 -- python3 -c \"$2\" 7 127.0.0.1; }}
        timeout --signal=KILL 20 {VIADUCT} run --prefer +compress -- \
            python3 -c \"$SERVER\" 7 127.0.0.1 > up & server=$!
        until grep -q up up; do sleep 0.05; done
        run '--prefer +compress' \"$CLIENT\"
        run '--require +compress' \"$CLIENT\" 2>&1 | grep -o 'does not negotiate, or a \
        middlebox'
        run '--require=compress +compress +stripe' \"$CLIENT\" 2>&1 | grep -o \
        'ConnectionRefusedError'
        kill $server"
    );
    let directory = std::env::temp_dir().join(format!("viaduct-strip-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let output = Command::new("timeout")
        .args(["60", "unshare", "--net", "sh", "-c", &script])
        .envs([("SERVER", SERVER), ("CLIENT", CLIENT)])
        .current_dir(&directory)
        .output()
        .unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let [plain, why, error, ..] = lines[..] else { panic!("{output:?}") };
    assert_eq!(plain, "heard hello", "a preferred chain does not fall back to a plain flow");
    assert_eq!(why, "does not negotiate, or a middlebox");
    assert_eq!(error, "ConnectionRefusedError");
}
