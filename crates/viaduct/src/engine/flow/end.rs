//! End of a flow: its connection, and the bytes sent to it before the payload.

use std::io::{self, IoSlice};

use crate::engine::conn::Conn;
use crate::engine::liveness::{DeadPeerLimits, Liveness};

/// Name of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client = 0,
    Server = 1,
}

/// An end of a flow. The client's end has no connection while the flow is an early connection; the
/// server's has none until the client has named its destination.
#[derive(Debug, Default)]
pub(super) struct FlowEnd {
    pub(super) conn: Option<Conn>,
    /// Bytes to send before any payload.
    pub(super) preface_out: Vec<u8>,
    /// Length of the part of `preface_out` that is meant for the next hop, before any of it
    /// is sent.
    pub(super) for_hop: usize,
    /// True if the end of stream follows the preface, without any payload.
    pub(super) ends_after_preface: bool,
    /// True if the end broke during its preface or request, so that the relay or chain has
    /// not noticed.
    pub(super) is_broken: bool,
    /// True if the end is registered for writability.
    pub(super) is_room_watched: bool,
    /// Liveness of the peer.
    pub(super) liveness: Liveness,
}

impl FlowEnd {
    /// Writes the preface; false if some of it must wait.
    pub(super) fn send_preface(&mut self) -> io::Result<bool> {
        while let Some(conn) = &mut self.conn
            && !self.preface_out.is_empty()
        {
            match conn.write(&[IoSlice::new(&self.preface_out)])? {
                Some(sent) => drop(self.preface_out.drain(..sent)),
                None => return Ok(false),
            }
        }
        Ok(self.preface_out.is_empty())
    }

    /// Writes the preface like [`send_preface`](FlowEnd::send_preface), and the end of stream if it
    /// follows the preface. Records a failure.
    pub(super) fn send_preface_or_break(&mut self) -> io::Result<bool> {
        let is_sent = self.send_preface().inspect_err(|_| self.is_broken = true)?;
        if self.ends_after_preface
            && is_sent
            && let Some(conn) = &mut self.conn
            && conn.check_connected()?
        {
            conn.shutdown().inspect_err(|_| self.is_broken = true)?;
            self.ends_after_preface = false;
        }
        Ok(is_sent)
    }

    /// Checks whether the peer is still alive.
    pub(super) fn check_liveness(&mut self, silence: DeadPeerLimits) {
        if let Some(stream) = self.conn.as_ref().and_then(Conn::tcp) {
            self.liveness.check(stream, silence);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::engine::flow_socket::FlowSocket;

    #[test]
    fn an_end_gets_its_preface_and_then_the_end_of_stream() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let preface_out = b"hello".to_vec();
        let mut end = FlowEnd { preface_out, ends_after_preface: true, ..FlowEnd::default() };
        assert!(!end.send_preface_or_break().unwrap(), "there is no connection yet");
        end.conn = Some(Conn::Tcp(FlowSocket::from(stream).into()));
        assert!(end.send_preface_or_break().unwrap() && !end.ends_after_preface);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"hello");
        assert!(!end.is_broken);
    }
}
