//! End of a flow: a source and sink of bytes.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, OnceLock};

use mio::event::Source as _;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use viaduct_proto::flow::Failure;
use viaduct_sys::socket::tcp;

use super::destination::error_of;
use super::flow_socket::FlowSocket;
use super::trickles::TricklesConn;
use crate::tunnel::TunnelStream;

/// Interest in readable bytes, and in urgent ones.
const TO_READ: Interest = Interest::READABLE.add(Interest::PRIORITY);

/// An end of a flow.
#[derive(Debug)]
pub enum Conn {
    Tcp(FlowSocket<TcpStream>),
    /// A loopback connection to a parent master, which forwards the flow.
    Loopback(FlowSocket<TcpStream>, Arc<ParentConn>),
    Tunnel(TunnelStream),
    Trickles(TricklesConn),
    /// No connection: the flow uses another flow's connection, or its handlers have not connected
    /// yet. An end in this state never becomes connected, and nothing can be read from it or
    /// written to it.
    Pending,
}

/// Addresses and result of a connection through a parent master, as far as the master has reported
/// them. The addresses of the loopback socket are not the flow's.
#[derive(Debug)]
pub struct ParentConn {
    /// Address of the far end: the destination of the flow or, if the connection is inbound, its
    /// client.
    pub peer: SocketAddr,
    /// Local address, as the far end sees it.
    pub own: OnceLock<SocketAddr>,
    /// Reason why the far end cannot be reached.
    pub refused: OnceLock<Failure>,
}

impl ParentConn {
    /// State of a new connection, for a flow to `peer`.
    pub fn of(peer: SocketAddr) -> Arc<ParentConn> {
        Arc::new(ParentConn { peer, own: OnceLock::new(), refused: OnceLock::new() })
    }

    /// State of an established connection.
    fn between(own: SocketAddr, peer: SocketAddr) -> Arc<ParentConn> {
        Arc::new(ParentConn { peer, own: own.into(), refused: OnceLock::new() })
    }
}

impl Conn {
    /// Returns the end of a flow for an inbound connection from `client` to `own`. If the socket's
    /// peer has another address than `client`, the connection came through a parent master.
    pub fn of(
        stream: FlowSocket<std::net::TcpStream>,
        client: SocketAddr,
        own: SocketAddr,
    ) -> Conn {
        let is = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical() == client.ip());
        let stream = stream.into();
        if is {
            Conn::Tcp(stream)
        } else {
            Conn::Loopback(stream, ParentConn::between(own, client))
        }
    }

    /// Returns whether another user's process shares the socket. The bytes of such a socket are
    /// copied, never spliced.
    pub fn is_lent(&self) -> bool {
        matches!(self, Conn::Tcp(stream) | Conn::Loopback(stream, _) if stream.is_lent())
    }

    /// TCP connection of this end, if it has one. Two of these can be spliced.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => Some(stream),
            Conn::Tunnel(_) | Conn::Trickles(_) | Conn::Pending => None,
        }
    }

    /// Addresses of the connection: the local one as the far end sees it, and the far end's.
    pub fn names(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Conn::Tcp(stream) => stream.local_addr().ok().zip(stream.peer_addr().ok()),
            Conn::Loopback(_, ends) => ends.own.get().map(|own| (*own, ends.peer)),
            Conn::Trickles(conn) => conn.names(),
            Conn::Tunnel(_) | Conn::Pending => None,
        }
    }

    /// Socket to register. `None` for an end without a socket: its transport gets `token`, and
    /// reports the end's readiness under that token.
    fn socket(&mut self, token: Token) -> Option<&mut FlowSocket<TcpStream>> {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => return Some(stream),
            Conn::Tunnel(stream) => stream.register(token),
            Conn::Trickles(conn) => conn.register(token),
            Conn::Pending => {}
        }
        None
    }

    /// Registers for readability and writability, under `token`.
    pub fn register(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        let Some(socket) = self.socket(token) else { return Ok(()) };
        socket.register(registry, token, TO_READ | Interest::WRITABLE)
    }

    /// Registers for readability only: the end is assumed writable until a write blocks.
    pub fn register_to_read(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        let Some(socket) = self.socket(token) else { return Ok(()) };
        socket.register(registry, token, TO_READ)
    }

    /// Changes the registration to readability and writability, under `token`.
    pub fn reregister(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        let Some(socket) = self.socket(token) else { return Ok(()) };
        socket.reregister(registry, token, TO_READ | Interest::WRITABLE)
    }

    /// Ends the registration.
    pub fn deregister(&mut self, registry: &Arc<Registry>) -> io::Result<()> {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => stream.deregister(registry),
            Conn::Tunnel(_) | Conn::Trickles(_) | Conn::Pending => Ok(()),
        }
    }

    /// Returns whether the end is connected by now. `Err` if it has failed.
    pub fn check_connected(&self) -> io::Result<bool> {
        let stream = match self {
            Conn::Tcp(stream) => stream,
            Conn::Loopback(stream, ends) => match ends.refused.get() {
                // A parent reports only the kernel's timeouts as such. An error with an error
                // number is passed on unchanged.
                Some(Failure::TimedOut) => return Err(rustix::io::Errno::TIMEDOUT.into()),
                Some(&why) => return Err(error_of(why)),
                None => stream,
            },
            Conn::Tunnel(stream) => return stream.check_connected(),
            Conn::Trickles(conn) => return conn.check_connected(),
            Conn::Pending => return Ok(false),
        };
        match stream.peer_addr() {
            Ok(_) => Ok(true),
            // Connected, and reset already: received bytes are read first, and then the reset.
            Err(_) if tcp::unread(stream).is_ok_and(|bytes| bytes > 0) => Ok(true),
            // Either the connect failed, or the wake-up was spurious.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                stream.take_error()?.map_or(Ok(false), Err)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads available bytes; `Some(0)` at the end of the stream, `None` if there are none now.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => unless_blocked(|| stream.read(into)),
            Conn::Tunnel(stream) => stream.read(into),
            Conn::Trickles(conn) => conn.read(into),
            Conn::Pending => Ok(None),
        }
    }

    /// Writes as much of `pieces` as possible; `None` if nothing can be written now.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => {
                unless_blocked(|| stream.write(pieces))
            }
            Conn::Tunnel(stream) => stream.write(pieces),
            Conn::Trickles(conn) => conn.write(pieces),
            Conn::Pending => Ok(None),
        }
    }

    /// Number of written bytes that the peer has not acknowledged yet, as far as known.
    pub fn unacknowledged(&self) -> u64 {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => {
                tcp::sending(stream).map_or(0, |sending| sending.held)
            }
            Conn::Tunnel(stream) => stream.unacknowledged(),
            Conn::Trickles(conn) => conn.unacknowledged(),
            Conn::Pending => 0,
        }
    }

    /// Shuts down the write direction. Also succeeds if the peer has already closed the connection.
    pub fn shutdown(&mut self) -> io::Result<()> {
        let stream = match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => stream,
            Conn::Tunnel(stream) => return stream.shutdown(),
            Conn::Trickles(conn) => return conn.shutdown(),
            Conn::Pending => return Ok(()),
        };
        match stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the end close by a reset, with the reason where the transport can carry one.
    pub fn reset(&mut self, why: Failure) {
        match self {
            Conn::Tcp(stream) | Conn::Loopback(stream, _) => drop(tcp::reset_on_close(&*stream)),
            Conn::Tunnel(stream) => stream.reset(why),
            Conn::Trickles(conn) => conn.reset(),
            Conn::Pending => {}
        }
    }

    /// Accepts this end, because the other end of the flow is connected. This concerns only streams
    /// that a tunnel's peer has opened.
    pub fn accept(&self) {
        if let Conn::Tunnel(stream) = self {
            stream.accept();
        }
    }
}

/// Calls `what`, and repeats the call if a signal interrupts it; returns `None` if the call would
/// block.
fn unless_blocked(mut what: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match what() {
            Ok(moved) => return Ok(Some(moved)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_parents_timeout_is_the_kernels() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let refused_by = |why| {
            let ends = ParentConn::of(to);
            ends.refused.set(why).unwrap();
            let stream = std::net::TcpStream::connect(to).unwrap();
            let conn = Conn::Loopback(FlowSocket::from(stream).into(), ends);
            conn.check_connected().unwrap_err().raw_os_error()
        };
        let timed_out = Errno::TIMEDOUT.raw_os_error();
        assert_eq!(refused_by(Failure::TimedOut), Some(timed_out));
        assert_eq!(refused_by(Failure::Unreachable), None);
    }
}
