//! Data that one end has sent before it resets the connection arrives at the other end through
//! every handler, followed by a reset and not by a FIN.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use super::{output, run, signal, text};

/// Reads only the beginning of a request, sends its answer, and closes with unread data, so the
/// kernel sends a reset.
const SERVER: &str = "
import socket
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
while True:
    c, at = s.accept()
    c.recv(10)
    c.sendall(bytes(20_000))
    c.close()
";

/// Reads slowly.
const CLIENT: &str = "
import socket, sys, time
for i in range(10):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    s.sendall(bytes(50_000))
    n, end = 0, 'end'
    try:
        while data := s.recv(3000):
            n += len(data)
            time.sleep(0.001)
    except ConnectionResetError: end = 'reset'
    print(n, end)
";

#[test]
fn data_before_a_reset_arrives_through_every_chain() {
    let key = std::env::temp_dir().join(format!("viaduct-last-words-{}", std::process::id()));
    std::fs::write(&key, format!("{:064}\n", 7)).unwrap();
    let crypt = format!("+crypt:key={}", key.display());
    let chains = [
        "+count",
        "+shape:rate=8M",
        "+latency:delay=20ms",
        "+congestion",
        "+compress",
        &crypt,
        "+mux",
        "+migrate",
        "+stripe",
        "+latency:delay=5ms +migrate",
        "+mux +migrate",
        &format!("+compress +mux {crypt}"),
    ];
    let mut lost = Vec::new();
    for chain in chains {
        let chain: Vec<&str> = chain.split(' ').collect();
        let words = [&chain[..], &["--", "python3", "-c", SERVER]].concat();
        let mut server = run(&words).stdout(Stdio::piped()).spawn().unwrap();
        let port = BufReader::new(server.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let said = output(&[&chain[..], &["--", "python3", "-c", CLIENT, &port]].concat());
        if text(&said.stdout) != "20000 reset\n".repeat(10) {
            lost.push(format!("{chain:?}: {said:?}"));
        }
        signal(&server, "TERM");
        server.wait().unwrap();
    }
    std::fs::remove_file(key).unwrap();
    assert!(lost.is_empty(), "{lost:#?}");
}

/// Clients that send data and immediately reset, and a server that prints the number of clients
/// from which it received all data and then a reset. The argument N starts the server for N
/// clients, N and a port start N clients, and +N starts both.
const HASTY: &str = "
import socket, struct, sys, threading
def serve(l, n):
    whole = 0
    for i in range(n):
        c, at = l.accept()
        c.settimeout(10)
        got, how = 0, 'end'
        try:
            while data := c.recv(4096): got += len(data)
        except ConnectionResetError: how = 'reset'
        except OSError as error: how = repr(error)
        whole += got == 100 and how == 'reset'
    print(whole, flush=True)
def ask(port, n):
    for i in range(n):
        s = socket.create_connection(('127.0.0.1', port))
        s.sendall(bytes(100))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        s.close()
if len(sys.argv) > 2: ask(int(sys.argv[2]), int(sys.argv[1]))
else:
    l = socket.create_server(('127.0.0.1', 0), backlog=100)
    if sys.argv[1][0] == '+':
        t = threading.Thread(target=ask, args=(l.getsockname()[1], int(sys.argv[1])))
        t.start()
    else: print(l.getsockname()[1], flush=True)
    serve(l, int(sys.argv[1]))
";

#[test]
fn data_of_a_client_before_an_immediate_reset_arrives() {
    const CONNECTIONS: &str = "40";
    let mut lost = Vec::new();
    for via in ["cgroup", "seccomp", "preload"] {
        let chain = ["+count", "--no-offload", "--via", via, "--", "python3", "-c", HASTY];
        // First only the clients are wrapped; then clients and server are, by one `viaduct run`.
        let mut server = std::process::Command::new("python3");
        let mut server =
            server.args(["-c", HASTY, CONNECTIONS]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = said.next().unwrap().unwrap();
        let client = output(&[&chain[..], &[CONNECTIONS, &port]].concat());
        let heard = said.next().map(Result::unwrap);
        if heard.as_deref() != Some(CONNECTIONS) {
            lost.push(format!("{via}, the server outside: {heard:?}, {client:?}"));
        }
        let _ = server.kill();
        server.wait().unwrap();
        let both = output(&[&chain[..], &["+40"]].concat());
        if text(&both.stdout).trim() != CONNECTIONS {
            lost.push(format!("{via}, both in one run: {both:?}"));
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}
