//! Peers that vanish, and live peers that read nothing.
#![allow(clippy::unwrap_used)] // a test may panic

mod common;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_sys::socket::tcp::{ZeroWindow, set_dead_after};

const AFTER: Duration = Duration::from_secs(2);
/// Max time until a connection fails: the limit, the rounding of keepalive times, and delays of a
/// busy machine.
const LATE: Duration = Duration::from_secs(10);

/// Opens a connection in the current namespace, and returns both ends.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    set_dead_after(&client, AFTER).unwrap();
    client.set_nonblocking(true).unwrap();
    (client, server)
}

/// Writes until no byte is accepted for 300 ms: the peer's receive window is zero, and the send
/// buffer is full. Returns the number of bytes written.
fn fill(stream: &mut TcpStream) -> usize {
    let (mut all, mut quiet_since) = (0, Instant::now());
    while quiet_since.elapsed() < Duration::from_millis(300) {
        match stream.write(&[7; 65536]) {
            Ok(taken) => (all, quiet_since) = (all + taken, Instant::now()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
    all
}

/// Drops all outgoing packets from now on.
fn drop_everything() {
    common::sh(
        "nft 'table inet lost { chain o { type filter hook output priority 0; policy drop; }; }'",
    );
}

/// Waits until the connection fails, with the required calls of [`ZeroWindow::look`]. Returns the
/// time until the failure.
fn ends(stream: &TcpStream) -> Duration {
    let (start, mut window) = (Instant::now(), ZeroWindow::default());
    while start.elapsed() < LATE {
        window.look(stream, AFTER).unwrap();
        match stream.take_error().unwrap() {
            Some(error) if error.kind() == ErrorKind::TimedOut => return start.elapsed(),
            Some(error) => panic!("{error}"),
            None => thread::sleep(AFTER / 10),
        }
    }
    panic!("the connection has not failed");
}

#[test]
fn an_idle_peer_that_vanishes_is_detected() {
    if common::is_root() {
        common::in_namespace(|| {
            let (client, _server) = pair();
            drop_everything();
            assert!(ends(&client) >= AFTER / 2);
        });
    }
}

#[test]
fn a_peer_that_vanishes_with_unacknowledged_data_is_detected() {
    if common::is_root() {
        common::in_namespace(|| {
            let (mut client, _server) = pair();
            drop_everything();
            client.write_all(b"lost").unwrap();
            ends(&client);
        });
    }
}

#[test]
fn a_connection_with_a_zero_window_lasts_until_the_peer_vanishes() {
    if common::is_root() {
        common::in_namespace(|| {
            let (mut client, mut server) = pair();
            let sent = fill(&mut client);
            // Without `look`, `TCP_USER_TIMEOUT` would end the connection.
            let (start, mut window) = (Instant::now(), ZeroWindow::default());
            while start.elapsed() < 3 * AFTER {
                window.look(&client, AFTER).unwrap();
                assert!(client.take_error().unwrap().is_none(), "{:?}", start.elapsed());
                thread::sleep(AFTER / 10);
            }
            // The window opens and data moves again; then the window becomes zero again, and the
            // peer vanishes.
            server.read_exact(&mut vec![0; sent]).unwrap();
            fill(&mut client);
            drop_everything();
            ends(&client);
        });
    }
}

#[test]
fn a_connection_lasts_even_if_its_zero_window_is_noticed_late() {
    if common::is_root() {
        common::in_namespace(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _server = listener.accept().unwrap();
            client.set_nonblocking(true).unwrap();
            fill(&mut client);
            thread::sleep(AFTER * 3 / 2);
            set_dead_after(&client, AFTER).unwrap();
            let (start, mut window) = (Instant::now(), ZeroWindow::default());
            while start.elapsed() < 3 * AFTER {
                window.look(&client, AFTER).unwrap();
                assert!(client.take_error().unwrap().is_none(), "{:?}", start.elapsed());
                // The longest interval that is allowed.
                thread::sleep(Duration::from_millis(500));
            }
            drop_everything();
            ends(&client);
        });
    }
}

/// Checks that [`ZeroWindow`] is needed: without it the kernel ends a live connection.
#[test]
fn the_kernel_alone_ends_a_connection_with_a_zero_window() {
    if common::is_root() {
        common::in_namespace(|| {
            let (mut client, _server) = pair();
            fill(&mut client);
            let start = Instant::now();
            while client.take_error().unwrap().is_none() {
                assert!(start.elapsed() < LATE);
                thread::sleep(AFTER / 10);
            }
        });
    }
}
