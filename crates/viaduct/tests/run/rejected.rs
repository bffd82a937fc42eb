//! Clients that do not speak the protocol of a chain are reset, and never see a regular end of
//! stream.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::{output, run, signal, text};

/// Sends much data to each client, and reads nothing.
const SERVER: &str = "
import socket
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
kept = []
while True:
    c, at = s.accept()
    kept.append(c)
    try: c.sendall(bytes(100_000))
    except OSError: pass
";

#[test]
fn a_flow_aborted_by_a_handler_is_reset() {
    for chain in ["+compress", "+migrate", "+mux"] {
        let chain: Vec<&str> = chain.split(' ').collect();
        let words = [&chain[..], &["--", "python3", "-c", SERVER]].concat();
        let mut server = run(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap();
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stranger.write_all(&[9; 100]).unwrap();
        let end = stranger.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{chain:?}");
        signal(&server, "TERM");
        server.wait().unwrap();
    }
}

/// A SOCKS5 proxy that answers each request with "TTL expired".
fn tired_proxy() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut words = [0; 64];
            for answer in [&[5, 0][..], &[5, 6, 0, 1, 0, 0, 0, 0, 0, 0]] {
                if stream.read(&mut words).is_ok_and(|length| length > 0) {
                    stream.write_all(answer).unwrap();
                }
            }
        }
    });
    port
}

#[test]
fn a_failure_reply_of_a_socks_proxy_fails_the_connect_immediately() {
    let chain = format!("+socks:via=127.0.0.1:{}", tired_proxy());
    // On a non-blocking socket the connect itself cannot return the error.
    let program = "
import errno, select, socket
s = socket.socket()
s.setblocking(False)
s.connect_ex(('192.0.2.1', 80))
select.select([], [s], [], 10)
print(errno.errorcode.get(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
";
    for via in ["cgroup", "seccomp"] {
        let began = Instant::now();
        let said = output(&[&chain, "--via", via, "--", "python3", "-c", program]);
        let (said, took) = (text(&said.stdout), began.elapsed());
        assert!(said.starts_with('E') && took < Duration::from_secs(8), "{via} {said} {took:?}");
    }
}
