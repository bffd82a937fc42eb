//! A Trickles connection as an end of a flow: the byte stream of its main stream.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use bytes::{Buf as _, Bytes};
use mio::Token;
use viaduct_proto::flow;
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Failure, State};
use viaduct_trickles::Flow;

use super::flow_target::TricklesTarget;
use super::port::SharedPort;
use super::slot::SlotState;
use crate::engine::destination::error_of;

/// A Trickles connection as an end of a flow. If it is dropped without a shutdown, it ends
/// immediately.
#[derive(Debug)]
pub struct TricklesConn {
    port: SharedPort,
    flow: Flow,
    /// Bytes that were taken from the stream and that the flow has not read yet.
    rest: Bytes,
    /// True if nothing more is written; written bytes are still delivered.
    shut: bool,
    /// Bytes written before the server answered, if that is permitted. If the server supports only
    /// TCP, they are sent again over TCP.
    said: Option<Vec<u8>>,
}

/// Maximum number of bytes written before the server has answered: the first packets' capacity.
const EARLY: usize = 16 << 10;

impl TricklesConn {
    pub(super) fn connect(
        port: &SharedPort,
        to: SocketAddr,
        target: TricklesTarget,
        now: Instant,
    ) -> io::Result<TricklesConn> {
        let (flow, early) = port.lock().connect(to, target, now)?;
        let said = early.then(Vec::new);
        Ok(TricklesConn { port: port.clone(), flow, rest: Bytes::new(), shut: false, said })
    }

    /// Sets the connection's token in the event loop.
    pub fn register(&self, token: Token) {
        self.port.lock().register(self.flow, token);
    }

    /// Returns whether bytes can be written: the server has answered, or early data is permitted.
    /// `Err` if the server refused.
    pub fn check_connected(&self) -> io::Result<bool> {
        match self.port.lock().state(self.flow) {
            SlotState::Connecting | SlotState::PlainTcp => Ok(self.said.is_some()),
            SlotState::Established => Ok(true),
            SlotState::Refused => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Takes the data to be sent over TCP: the bytes that were written and not received by the
    /// server, and whether the stream ends after them.
    pub fn into_unsent(mut self) -> (Vec<u8>, bool) {
        (self.said.take().unwrap_or_default(), self.shut)
    }

    /// Local and remote address, if known.
    pub fn names(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.port.lock().names(self.flow)
    }

    /// Reads available bytes; `Some(0)` at the end of the stream, `None` if there are none now.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut port = self.port.lock();
        match port.state(self.flow) {
            SlotState::Established => {}
            SlotState::Connecting | SlotState::PlainTcp => return Ok(None),
            SlotState::Refused => return Err(io::ErrorKind::ConnectionRefused.into()),
        }
        let stream = port.stream(self.flow).ok_or(io::ErrorKind::NotConnected)?;
        let mut filled = 0;
        while filled < into.len() {
            if self.rest.is_empty() {
                match stream.read(MAIN) {
                    Some(bytes) => self.rest = bytes,
                    None => break,
                }
            }
            let count = self.rest.len().min(into.len() - filled);
            self.rest.copy_to_slice(&mut into[filled..filled + count]);
            filled += count;
        }
        match stream.state(MAIN) {
            _ if filled > 0 => Ok(Some(filled)),
            State::Open => Ok(None),
            State::Finished => Ok(Some(0)),
            State::Failed(why) => Err(error(why)),
        }
    }

    /// Writes as much as there is room for; `None` if there is no room now.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut port = self.port.lock();
        let left = match (port.state(self.flow), &self.said) {
            (SlotState::Established, _) => {
                self.said = None;
                usize::MAX
            }
            (SlotState::Connecting, Some(said)) => EARLY - said.len(),
            _ => 0,
        };
        if left == 0 {
            return Ok(None);
        }
        let stream = port.stream(self.flow).ok_or(io::ErrorKind::NotConnected)?;
        if let State::Failed(why) = stream.state(MAIN) {
            return Err(error(why));
        }
        // No room although nothing is queued: the peer no longer reads, because it has finished its
        // answer. Further bytes are discarded.
        if stream.writable(MAIN) == 0 && stream.is_flushed(MAIN) {
            return Ok(Some(pieces.iter().map(|piece| piece.len()).sum()));
        }
        let mut written = 0;
        for piece in pieces {
            let count = stream.write(MAIN, &piece[..piece.len().min(left - written)]);
            written += count;
            if let Some(said) = &mut self.said {
                said.extend_from_slice(&piece[..count]);
            }
            if count < piece.len() {
                break;
            }
        }
        Ok((written > 0).then_some(written))
    }

    /// Returns 1 if the server may still consume bytes that were written, otherwise 0.
    pub fn unacknowledged(&self) -> u64 {
        let mut port = self.port.lock();
        if port.state(self.flow) == SlotState::Refused {
            return 0;
        }
        port.stream(self.flow).map_or(0, |stream| {
            let failed = matches!(stream.state(MAIN), State::Failed(_));
            u64::from(!failed && !stream.is_flushed(MAIN))
        })
    }

    /// Ends the write direction.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.shut = true;
        if let Some(stream) = self.port.lock().stream(self.flow) {
            stream.shutdown(MAIN);
        }
        Ok(())
    }

    /// Makes the connection end immediately when dropped.
    pub fn reset(&mut self) {
        self.shut = false;
    }
}

impl Drop for TricklesConn {
    fn drop(&mut self) {
        self.port.lock().leave(self.flow, self.shut);
    }
}

/// Maps a failure of the stream to an error.
fn error(why: Failure) -> io::Error {
    error_of(match why {
        Failure::TimedOut => flow::Failure::TimedOut,
        Failure::Reset(_) | Failure::Stalled | Failure::Missing | Failure::TooLong(_) => {
            flow::Failure::Reset
        }
    })
}
