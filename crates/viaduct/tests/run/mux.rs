//! `+mux`: a program's flows to one destination share a connection.

use std::io::{self, BufRead as _, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{output, run, signal, text};

/// Prints its port, and echoes each connection to its end.
const SERVER: &str = "
import socket, sys, threading
s = socket.create_server(('127.0.0.1', 0), backlog=100)
print(s.getsockname()[1], flush=True)
def serve(c):
    try:
        while data := c.recv(65536): c.sendall(data)
    except ConnectionResetError: pass
    c.close()
while True:
    c, at = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
";

/// Opens many connections at once, each with different bytes. One is reset; the others end only
/// their own direction.
const CLIENT: &str = "
import hashlib, socket, struct, sys, threading
to = ('127.0.0.1', int(sys.argv[1]))
all = [socket.create_connection(to) for n in range(20)]
def drive(n, s, bad):
    data = hashlib.sha256(bytes([n])).digest() * 20000
    def send():
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
    threading.Thread(target=send).start()
    got = b''
    while True:
        part = s.recv(65536)
        if not part: break
        got += part
    if got != data: bad.append(n)
bad = []
gone = all.pop()
gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
gone.close()
threads = [threading.Thread(target=drive, args=(n, s, bad)) for n, s in enumerate(all)]
for t in threads: t.start()
for t in threads: t.join()
print('bad', bad)
";

/// Starts a relay to `to` that counts connections. Returns its address and the count.
fn relay(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    thread::spawn(move || {
        for near in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let (near, far) = (near.unwrap(), TcpStream::connect(to).unwrap());
            pass(near.try_clone().unwrap(), far.try_clone().unwrap());
            pass(far, near);
        }
    });
    (at, count)
}

/// Starts the server under `chain`. Returns it, and its address.
fn server(chain: &[&str]) -> (Child, SocketAddr) {
    let words = [chain, &["--", "python3", "-c", SERVER]].concat();
    let mut server = run(&words).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (server, SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap())))
}

#[test]
fn flows_of_a_program_share_a_connection_and_arrive_intact() {
    for chain in [
        &["+mux"][..],
        &["+compress", "+mux", "+migrate"],
        &["--via", "seccomp", "+mux"],
        &["--via", "preload", "+mux"],
    ] {
        let (mut server, at) = server(chain);
        let (at, count) = relay(at);
        for _ in 0..2 {
            let said =
                output(&[chain, &["--", "python3", "-c", CLIENT, &at.port().to_string()]].concat());
            assert_eq!(text(&said.stdout).trim(), "bad []", "{chain:?} {said:?}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2, "not one for each run: {chain:?}");
        signal(&server, "TERM");
        server.wait().unwrap();
    }
}

#[test]
fn mux_rejects_plain_clients_and_fails_without_a_server() {
    let (mut server, at) = server(&["+mux"]);
    let plain = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
try: print(s.recv(100))
except ConnectionResetError: print(b'')
";
    let port = at.port().to_string();
    let said = output(&["+count", "--", "python3", "-c", plain, &port]);
    assert_eq!(text(&said.stdout).trim(), "b''", "{said:?}");
    signal(&server, "TERM");
    server.wait().unwrap();
    let said = output(&["+mux", "--", "python3", "-c", CLIENT, &port]);
    assert!(text(&said.stderr).contains("ConnectionRefusedError"), "{said:?}");
}
