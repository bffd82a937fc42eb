//! A stream of a tunnel, as an end of a flow.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use bytes::{Buf as _, Bytes, BytesMut};
use mio::Token;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::tunnel::StreamId;

use super::peer::SharedPeer;
use super::time;

/// Readiness of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Readable.
    pub readable: bool,
    /// Writable.
    pub writable: bool,
}

/// An end of a stream. Dropping it before both directions have ended resets the stream.
#[derive(Debug)]
pub struct TunnelStream {
    peer: SharedPeer,
    slot: usize,
    /// True if the stream counts as connected once the peer has accepted it; false if it counts as
    /// connected as soon as bytes can be sent.
    waits: bool,
    /// Bytes that were read from the tunnel, but not yet by the flow.
    rest: Bytes,
    /// True if the direction towards the peer has ended.
    shut: bool,
    /// True if the direction from the peer has ended.
    ended: bool,
}

impl TunnelStream {
    pub(super) fn open(
        peer: &SharedPeer,
        to: Address,
        source: SocketAddr,
        waits: bool,
    ) -> TunnelStream {
        let slot = peer.lock().open(to, source);
        let mut stream = TunnelStream::arrived(peer, slot);
        stream.waits = waits;
        stream
    }

    pub(super) fn arrived(peer: &SharedPeer, slot: usize) -> TunnelStream {
        let peer = peer.clone();
        TunnelStream { peer, slot, waits: false, rest: Bytes::new(), shut: false, ended: false }
    }

    /// Sets the stream's token in the event loop.
    pub fn register(&self, token: Token) {
        let mut peer = self.peer.lock();
        peer.slots[self.slot].token = Some(token);
        peer.queue_ready(self.slot, Readiness { readable: true, writable: true });
    }

    /// Returns whether the stream counts as connected, which may be before the peer has answered.
    pub fn check_connected(&self) -> io::Result<bool> {
        let peer = self.peer.lock();
        let slot = &peer.slots[self.slot];
        match slot.broken {
            Some(why) => Err(error(why)),
            None => Ok(slot.accepted || (slot.id.is_some() && !self.waits)),
        }
    }

    /// Reports to the peer that the stream has reached its destination.
    pub fn accept(&self) {
        let mut peer = self.peer.lock();
        if let Some(id) = peer.slots[self.slot].id {
            peer.tunnel.accept(id);
        }
    }

    /// Reads available bytes into `into`; `Some(0)` at the end of the stream, `None` if no bytes
    /// are available now.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let id = self.id()?;
        let mut peer = self.peer.lock();
        let mut filled = 0;
        while filled < into.len() {
            if self.rest.is_empty() {
                match peer.tunnel.read(id) {
                    Some(bytes) => self.rest = bytes,
                    None => break,
                }
            }
            let count = self.rest.len().min(into.len() - filled);
            self.rest.copy_to_slice(&mut into[filled..filled + count]);
            filled += count;
        }
        if filled > 0 {
            peer.tunnel.consumed(time(), id, filled);
            return Ok(Some(filled));
        }
        self.ended = peer.slots[self.slot].finished;
        Ok(self.ended.then_some(0))
    }

    /// Writes all of `pieces`; returns `None`, and writes nothing, if enough bytes are already
    /// queued.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let id = self.id()?;
        let tunnel = &mut self.peer.lock().tunnel;
        if !tunnel.may_write(id) {
            return Ok(None);
        }
        let length = pieces.iter().map(|piece| piece.len()).sum();
        let mut bytes = BytesMut::with_capacity(length);
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        match tunnel.write(time(), id, bytes.freeze()) {
            true => Ok(Some(length)),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Number of written bytes that the reader at the far end has not consumed.
    pub fn unacknowledged(&self) -> u64 {
        let peer = self.peer.lock();
        let stats = peer.slots[self.slot].id.and_then(|id| peer.tunnel.stream_stats(id));
        stats.map_or(0, |of| of.queued + of.outstanding)
    }

    /// Ends the write direction.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.shut = true;
        let id = self.id()?;
        self.peer.lock().tunnel.shutdown(id);
        Ok(())
    }

    /// Resets the stream for the reason `why`.
    pub fn reset(&mut self, why: Failure) {
        if let Ok(id) = self.id() {
            self.peer.lock().tunnel.reset(id, why);
        }
    }

    /// ID of the stream; an error if the stream has failed, or is not yet open.
    fn id(&self) -> io::Result<StreamId> {
        let peer = self.peer.lock();
        let slot = &peer.slots[self.slot];
        match (slot.broken, slot.id) {
            (Some(why), _) => Err(error(why)),
            (None, id) => id.ok_or_else(|| io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        if !(self.shut && self.ended) {
            self.reset(Failure::Reset);
        }
        self.peer.lock().leave(self.slot);
    }
}

/// Maps a failure at the far end to an error.
fn error(why: Failure) -> io::Error {
    let kind = match why {
        Failure::Refused => io::ErrorKind::ConnectionRefused,
        Failure::TimedOut => io::ErrorKind::TimedOut,
        Failure::Reset => io::ErrorKind::ConnectionReset,
        Failure::Unreachable | Failure::Full => io::ErrorKind::HostUnreachable,
        Failure::Denied => io::ErrorKind::PermissionDenied,
    };
    kind.into()
}
