//! A connection as an end of a flow: the byte stream of its main stream.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use bytes::{Buf as _, Bytes};
use mio::Token;
use viaduct_proto::flow;
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Failure, State};

use super::port::{SharedPort, Standing};
use crate::proxy::target::error_of;
use crate::trickles::Flow;

/// The end. Dropped before its client has ended what it says, it ends the connection at once.
#[derive(Debug)]
pub struct Trickle {
    port: SharedPort,
    flow: Flow,
    /// What was read of the stream, and not yet from here.
    rest: Bytes,
    /// Nothing more is written, and what was is to arrive.
    shut: bool,
}

impl Trickle {
    pub(super) fn connect(port: &SharedPort, to: SocketAddr, now: Instant) -> io::Result<Trickle> {
        let flow = port.lock().connect(to, now)?;
        Ok(Trickle { port: port.clone(), flow, rest: Bytes::new(), shut: false })
    }

    /// Has the loop told by `token`.
    pub fn register(&self, token: Token) {
        self.port.lock().register(self.flow, token);
    }

    /// Whether the server has answered. `Err`: it never will.
    pub fn check_connected(&self) -> io::Result<bool> {
        match self.port.lock().standing(self.flow) {
            Standing::Asking | Standing::PlainTcp => Ok(false),
            Standing::There => Ok(true),
            Standing::Refused => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Our address, and the server's, where they are known.
    pub fn names(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.port.lock().names(self.flow)
    }

    /// Reads what is there; `Some(0)` at the end, `None` if nothing is there now.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut port = self.port.lock();
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

    /// Writes what there is room for; `None` if there is none now.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut port = self.port.lock();
        let stream = port.stream(self.flow).ok_or(io::ErrorKind::NotConnected)?;
        if let State::Failed(why) = stream.state(MAIN) {
            return Err(error(why));
        }
        // Nothing waits, and there is no room: nobody reads it any more. What is still said is lost on
        // whoever has answered already.
        if stream.writable(MAIN) == 0 && stream.is_flushed(MAIN) {
            return Ok(Some(pieces.iter().map(|piece| piece.len()).sum()));
        }
        let mut written = 0;
        for piece in pieces {
            let count = stream.write(MAIN, piece);
            written += count;
            if count < piece.len() {
                break;
            }
        }
        Ok((written > 0).then_some(written))
    }

    /// Writes no more.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.shut = true;
        if let Some(stream) = self.port.lock().stream(self.flow) {
            stream.shutdown(MAIN);
        }
        Ok(())
    }

    /// Has it end at once.
    pub fn reset(&mut self) {
        self.shut = false;
    }
}

impl Drop for Trickle {
    fn drop(&mut self) {
        self.port.lock().leave(self.flow, self.shut);
    }
}

/// What a failure of the stream is here.
fn error(why: Failure) -> io::Error {
    error_of(match why {
        Failure::TimedOut => flow::Failure::TimedOut,
        Failure::Reset(_) | Failure::Stalled | Failure::TooLong(_) => flow::Failure::Reset,
    })
}
