//! Flows that outlive their connection: data in flight is not lost when the connection breaks.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{output, run, signal, text};

/// Serves one client at a time. Mode `answer`: reads all data, and then answers. Mode `ask`: sends
/// a request, ends its direction, and reads all data.
const SERVER: &str = "
import socket, sys
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
def all(c):
    n = 0
    while data := c.recv(65536): n += len(data)
    return n
while True:
    c, at = s.accept()
    if sys.argv[1] == 'ask':
        c.sendall(b'x')
        c.shutdown(socket.SHUT_WR)
    print(all(c), flush=True)
    if sys.argv[1] == 'answer': c.sendall(bytes(3_000_000))
    c.close()
";

const CLIENT: &str = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[2])))
def all():
    n = 0
    while data := s.recv(65536): n += len(data)
    return n
if sys.argv[1] == 'answer':
    s.sendall(b'x')
    s.shutdown(socket.SHUT_WR)
    print(all())
else:
    print(all())
    s.sendall(bytes(3_000_000))
";

/// Starts a relay to `to` that breaks the first connection, in both directions, after `limit`
/// bytes. Returns the relay's address.
fn cutting_relay(to: SocketAddr, limit: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (n, near) in listener.incoming().enumerate() {
            let ends = Arc::new([near.unwrap(), TcpStream::connect(to).unwrap()]);
            let most = if n == 0 { limit } else { usize::MAX };
            for from in [0, 1] {
                let ends = ends.clone();
                thread::spawn(move || pass(&ends, from, most));
            }
        }
    });
    at
}

fn pass(ends: &[TcpStream; 2], from: usize, mut most: usize) {
    let (mut near, mut far) = (&ends[from], &ends[1 - from]);
    let mut data = [0; 16 << 10];
    while let Ok(length @ 1..) = near.read(&mut data)
        && length <= most
        && far.write_all(&data[..length]).is_ok()
    {
        most -= length;
    }
    match most > 1 << 30 {
        true => drop(far.shutdown(Shutdown::Write)),
        false => ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both))),
    }
}

#[test]
fn a_half_closed_flow_survives_a_cut() {
    for chain in ["+migrate", "+stripe", "+mux +migrate"] {
        for mode in ["answer", "ask"] {
            let chain: Vec<&str> = chain.split(' ').collect();
            let words = [&chain[..], &["--", "python3", "-c", SERVER, mode]].concat();
            let mut server = run(&words).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
            let port = lines.next().unwrap().unwrap().parse().unwrap();
            let at = cutting_relay(SocketAddr::from(([127, 0, 0, 1], port)), 500_000);
            let port = at.port().to_string();
            let words = [&chain[..], &["--", "python3", "-c", CLIENT, mode, &port]].concat();
            let said = output(&words);
            let heard = lines.next().unwrap().unwrap();
            let right = if mode == "answer" { ["3000000", "1"] } else { ["1", "3000000"] };
            assert_eq!([text(&said.stdout).trim(), &heard], right, "{chain:?} {mode} {said:?}");
            signal(&server, "TERM");
            server.wait().unwrap();
        }
    }
}

/// Sends data until it fails.
const TALKER: &str = "
import socket
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
c, at = s.accept()
try:
    while True: c.sendall(bytes(1_000_000))
except OSError: print('broken', flush=True)
s.accept()
";

#[test]
fn a_broken_end_is_not_waited_for() {
    for chain in ["+migrate", "+stripe:within=1m"] {
        let words = [chain, "--", "python3", "-c", TALKER];
        let mut server = run(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap();
        // The client ends with much unread data.
        let client = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.recv(1)
";
        let said = output(&[chain, "--", "python3", "-c", client, &port]);
        let began = Instant::now();
        assert_eq!(lines.next().unwrap().unwrap(), "broken", "{chain} {said:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{chain} {:?}", began.elapsed());
        signal(&server, "TERM");
        server.wait().unwrap();
    }
}
