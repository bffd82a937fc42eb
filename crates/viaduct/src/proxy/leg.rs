//! End of a flow: a source and sink of bytes.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use mio::event::Source as _;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use viaduct_proto::flow::Failure;
use viaduct_sys::socket::tcp;

use super::below::Ends;
use super::conn::Conn;
use super::target::error_of;
use super::trickles::Trickle;
use super::tunnels::Session;

/// Bytes, and urgent ones.
const TO_READ: Interest = Interest::READABLE.add(Interest::PRIORITY);

/// An end of a flow.
#[derive(Debug)]
pub enum Leg {
    /// A TCP connection.
    Tcp(Conn<TcpStream>),
    /// A connection to a parent master, which carries the flow on.
    Below(Conn<TcpStream>, Arc<Ends>),
    /// A session of a tunnel.
    Session(Session),
    /// A connection of Trickles.
    Trickles(Trickle),
    /// No connection of its own: the flow uses another flow's. Nothing is ever read from it.
    Elsewhere,
}

impl Leg {
    /// Returns a connection between these two ends, which may have come by a parent master.
    pub fn of(stream: Conn<std::net::TcpStream>, client: SocketAddr, own: SocketAddr) -> Leg {
        let is = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical() == client.ip());
        let stream = stream.into();
        if is { Leg::Tcp(stream) } else { Leg::Below(stream, Ends::between(own, client)) }
    }

    /// Returns whether another user's process shares the socket. Its bytes are copied then,
    /// never spliced.
    pub fn is_lent(&self) -> bool {
        matches!(self, Leg::Tcp(stream) | Leg::Below(stream, _) if stream.is_lent())
    }

    /// The TCP connection, if there is one: two of them can be spliced.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => Some(stream),
            Leg::Session(_) | Leg::Trickles(_) | Leg::Elsewhere => None,
        }
    }

    /// Addresses of the connection: its own, as the far end sees it, and the far end's.
    pub fn names(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Leg::Tcp(stream) => stream.local_addr().ok().zip(stream.peer_addr().ok()),
            Leg::Below(_, ends) => ends.own.get().map(|own| (*own, ends.peer)),
            Leg::Trickles(trickle) => trickle.names(),
            Leg::Session(_) | Leg::Elsewhere => None,
        }
    }

    /// Registers for readability and writability, by `token`.
    pub fn register(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => {
                stream.register(registry, token, TO_READ | Interest::WRITABLE)
            }
            Leg::Session(session) => {
                session.register(token);
                Ok(())
            }
            Leg::Trickles(trickle) => {
                trickle.register(token);
                Ok(())
            }
            Leg::Elsewhere => Ok(()),
        }
    }

    /// Registers for readability alone: an end is assumed writable until a write blocks.
    pub fn register_to_read(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => stream.register(registry, token, TO_READ),
            Leg::Session(_) | Leg::Trickles(_) | Leg::Elsewhere => self.register(registry, token),
        }
    }

    /// Registers for writability as well, or by another token.
    pub fn reregister(&mut self, registry: &Arc<Registry>, token: Token) -> io::Result<()> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => {
                stream.reregister(registry, token, TO_READ | Interest::WRITABLE)
            }
            Leg::Session(_) | Leg::Trickles(_) | Leg::Elsewhere => self.register(registry, token),
        }
    }

    /// Ends the registration.
    pub fn deregister(&mut self, registry: &Arc<Registry>) -> io::Result<()> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => stream.deregister(registry),
            Leg::Session(_) | Leg::Trickles(_) | Leg::Elsewhere => Ok(()),
        }
    }

    /// Returns whether the end is connected by now. `Err`: it failed.
    pub fn check_connected(&self) -> io::Result<bool> {
        let stream = match self {
            Leg::Tcp(stream) => stream,
            Leg::Below(stream, ends) => match ends.refused.get() {
                Some(&why) => return Err(error_of(why)),
                None => stream,
            },
            Leg::Session(session) => return session.check_connected(),
            Leg::Trickles(trickle) => return trickle.check_connected(),
            Leg::Elsewhere => return Ok(false),
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

    /// Reads available bytes; `Some(0)` at the end, `None` if there are none now.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => unless_blocked(|| stream.read(into)),
            Leg::Session(session) => session.read(into),
            Leg::Trickles(trickle) => trickle.read(into),
            Leg::Elsewhere => Ok(None),
        }
    }

    /// Writes as much of `pieces` as possible; `None` if nothing can be written now.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => unless_blocked(|| stream.write(pieces)),
            Leg::Session(session) => session.write(pieces),
            Leg::Trickles(trickle) => trickle.write(pieces),
            Leg::Elsewhere => Ok(None),
        }
    }

    /// Number of written bytes that the peer has not acknowledged yet, as far as known.
    pub fn unacknowledged(&self) -> u64 {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => {
                tcp::sending(stream).map_or(0, |sending| sending.held)
            }
            Leg::Session(session) => session.unacknowledged(),
            Leg::Trickles(trickle) => trickle.unacknowledged(),
            Leg::Elsewhere => 0,
        }
    }

    /// Ends the write direction, also if the peer has gone already.
    pub fn shutdown(&mut self) -> io::Result<()> {
        let stream = match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => stream,
            Leg::Session(session) => return session.shutdown(),
            Leg::Trickles(trickle) => return trickle.shutdown(),
            Leg::Elsewhere => return Ok(()),
        };
        match stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the end close by a reset, with the reason where the transport can carry one.
    pub fn reset(&mut self, why: Failure) {
        match self {
            Leg::Tcp(stream) | Leg::Below(stream, _) => drop(tcp::reset_on_close(&*stream)),
            Leg::Session(session) => session.reset(why),
            Leg::Trickles(trickle) => trickle.reset(),
            Leg::Elsewhere => {}
        }
    }

    /// Accepts the peer's session, if this end is one: the other end of the flow is connected.
    pub fn accept(&self) {
        if let Leg::Session(session) = self {
            session.accept();
        }
    }
}

/// Result of `what`, with interruptions retried; `None` if it would block.
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
