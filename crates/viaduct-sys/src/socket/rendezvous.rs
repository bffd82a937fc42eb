//! Rendezvous: the socket to which a wrapped program's connect is redirected, and at which the
//! connect waits.
//!
//! A program must not see its connect complete before the far end has answered, and must keep its
//! own socket. Its connect is therefore redirected to a port of ours that drops SYNs, where the
//! connect stays in progress as long as needed. When the far end has answered, we connect from that
//! port *to the program*: two connects that cross form one connection (simultaneous open, RFC 9293,
//! 3.5). No other program can connect to the port.
//!
//! ```text
//!   program   connect ── SYN ──▶ ╳ Rendezvous                   far end
//!                in progress        │ ─────────── SYN ────────────▶ │
//!                                   │ ◀───────── SYN-ACK ────────── │
//!             socket  ◀──── SYN ─── │ Rendezvous::connect_to
//!                     ─ SYN-ACK ──▶ │  or, on a refusal, Pending::refuse
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use crate::socket::tcp::{self, MIRRORED, Mirrored, TcpOptions};

/// The rendezvous ports, one for each address family.
#[derive(Debug)]
pub struct Rendezvous {
    v4: SinkListener,
    /// `None` without IPv6.
    v6: Option<SinkListener>,
}

/// A listener whose SYNs are dropped.
#[derive(Debug)]
struct SinkListener {
    listener: TcpListener,
    /// Connection that fills the listener's accept queue, if it has no filter.
    _filler: Option<TcpStream>,
}

const OPTIONS: TcpOptions = TcpOptions {
    transparent: false,
    send_buffer: None,
    receive_buffer: None,
    save_syn: false,
    shared: true,
    inside: true,
    mirrored: Mirrored([None; MIRRORED]),
};

impl Rendezvous {
    /// Opens ports of the kernel's choice. Errors: no loopback interface, or no free port.
    pub fn open() -> io::Result<Rendezvous> {
        let v6 = sink_listener(Ipv6Addr::LOCALHOST.into()).ok();
        Ok(Rendezvous { v4: sink_listener(Ipv4Addr::LOCALHOST.into())?, v6 })
    }

    /// Returns the address to which IPv4 connects are redirected, or, if `v4` is false, IPv6
    /// connects.
    pub fn at(&self, v4: bool) -> Option<SocketAddr> {
        let listener = if v4 { Some(&self.v4) } else { self.v6.as_ref() };
        listener.and_then(|at| at.listener.local_addr().ok())
    }

    /// Connects to the program's socket at `program`, which is connecting to the rendezvous port.
    /// The returned stream is connected. If the program has ended meanwhile, a read fails. Errors:
    /// a recent connection between the same two addresses still exists (`TIME-WAIT`).
    pub fn connect_to(&self, program: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.bound_socket(program.is_ipv4())?;
        tcp::connect_bound(&socket, program)?;
        Ok(socket)
    }

    /// Opens a socket for [`tcp::connect_bound`] to a program: an IPv4 socket, or an IPv6 socket if
    /// `v4` is false. While the socket is open, no other process can bind the port. Errors: the
    /// machine lacks the address family.
    pub fn bound_socket(&self, v4: bool) -> io::Result<TcpStream> {
        let at = self.at(v4).ok_or(io::ErrorKind::AddrNotAvailable)?;
        tcp::bound(at, OPTIONS)
    }
}

/// Opens a listener that drops SYNs. Without a listener the kernel would answer them with a reset.
fn sink_listener(ip: IpAddr) -> io::Result<SinkListener> {
    let listener = tcp::listen_on_free_port(ip, 0, OPTIONS)?;
    // On newer kernels (6.18) a filter on a TCP socket requires CAP_NET_ADMIN.
    let filler = match tcp::drop_syns(&listener) {
        Ok(()) => None,
        Err(_) => Some(fill(&listener)?),
    };
    Ok(SinkListener { listener, _filler: filler })
}

/// Fills the only slot of a listener with a backlog of 0: the kernel drops further SYNs.
fn fill(listener: &TcpListener) -> io::Result<TcpStream> {
    tcp::connect(listener.local_addr()?, None, TcpOptions::default())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connect_stays_in_progress_until_the_rendezvous_connects_to_it() {
        let rendezvous = Rendezvous::open().unwrap();
        for v4 in [true, false] {
            let Some(at) = rendezvous.at(v4) else { continue };
            let mut program = tcp::connect(at, None, TcpOptions::default()).unwrap();
            assert!(program.peer_addr().is_err(), "there is no answer yet");
            let mut met = rendezvous.connect_to(program.local_addr().unwrap()).unwrap();
            program.set_nonblocking(false).unwrap();
            program.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            met.write_all(b"there").unwrap();
            let mut words = [0; 5];
            program.read_exact(&mut words).unwrap();
            assert_eq!((&words, program.peer_addr().unwrap()), (b"there", at));
        }
    }

    #[test]
    fn a_full_listener_accepts_no_connection_and_can_still_connect_to_its_peer() {
        let listener = tcp::listen((Ipv4Addr::LOCALHOST, 0).into(), 0, OPTIONS).unwrap();
        let filler = Some(fill(&listener).unwrap());
        let at = listener.local_addr().unwrap();
        let rendezvous = Rendezvous { v4: SinkListener { listener, _filler: filler }, v6: None };
        for _ in 0..100 {
            let program = tcp::connect(at, None, TcpOptions::default()).unwrap();
            assert!(program.peer_addr().is_err(), "there is no answer yet");
            let _met = rendezvous.connect_to(program.local_addr().unwrap()).unwrap();
            assert_eq!(program.peer_addr().unwrap(), at);
        }
    }

    #[test]
    fn uninvited_connections_are_not_accepted() {
        let rendezvous = Rendezvous::open().unwrap();
        let at = rendezvous.at(true).unwrap();
        let came = TcpStream::connect_timeout(&at, Duration::from_millis(100));
        assert_eq!(came.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
