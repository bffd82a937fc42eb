//! A QUIC connection as a link.

use std::collections::BTreeSet;
use std::io;

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, ConnectionEvent, ConnectionHandle, Dir, Event, ReadError,
    ReadableError, StreamEvent, StreamId, VarInt,
};
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::Lane;
use viaduct_proto::tunnel::record::{RecordError, Refusal, Secure};

use super::congestion::{Pacer, quantum};
use super::lanes::{Lanes, lane_of};
use super::{Endpoint, SEGMENTS};
use crate::tunnel::link::Credentials;
use crate::tunnel::tls::LABEL;

/// Bounds of two numbers of bytes: those given to the QUIC library when it has nothing left to
/// send, and those that may meanwhile wait in the lanes. Within the bounds, both are the size of
/// the pacer's burst. Streams are scheduled before their bytes are given to the library, so only
/// few bytes may wait in the library: at 130 Mb/s, 16 KB delay all later data by a millisecond.
const AHEAD: (usize, usize) = (8 << 10, 32 << 10);

/// A link over QUIC.
#[derive(Debug)]
pub(in crate::tunnel) struct QuicLink {
    pub(super) handle: ConnectionHandle,
    pub(super) connection: Connection,
    dialled: bool,
    /// Record layer under the sites' keys; `None` until the connection is established.
    pub(in crate::tunnel) secure: Option<Secure>,
    lanes: Lanes,
    readable: BTreeSet<StreamId>,
    pacer: Pacer,
    /// Time at which the pacer allows more bytes.
    held: Option<Instant>,
    /// True if the connection has reported to the endpoint that it is drained.
    drained: bool,
    /// True if the last bytes given to the library are still unsent, because the connection cannot
    /// send.
    stuck: bool,
    /// Bytes received on the first lane before the link was assigned to a tunnel.
    pub(in crate::tunnel) plain_in: Vec<u8>,
}

/// Callback for received bytes of a lane; `None` at the end of the lane.
pub(in crate::tunnel) type Deliver<'a> = &'a mut dyn FnMut(Lane, Option<&[u8]>);

impl QuicLink {
    pub(super) fn new(handle: ConnectionHandle, connection: Connection, dialled: bool) -> QuicLink {
        QuicLink {
            handle,
            connection,
            dialled,
            secure: None,
            lanes: Lanes::default(),
            readable: BTreeSet::new(),
            pacer: Pacer::default(),
            held: None,
            drained: false,
            stuck: false,
            plain_in: Vec::new(),
        }
    }

    /// Lifts the limits of an unauthenticated connection. After this the peer may open `streams`
    /// streams besides the first, and send as many bytes as the tunnel's flow control allows.
    pub(in crate::tunnel) fn trust(&mut self, streams: u32) {
        let streams = VarInt::from_u32(streams.saturating_add(1));
        self.connection.set_max_concurrent_streams(Dir::Bi, streams);
        self.connection.set_receive_window(VarInt::MAX);
    }

    /// Returns whether this end has dialled the link.
    pub(super) fn is_dialled(&self) -> bool {
        self.dialled
    }

    /// Handles the event of a received datagram.
    pub(in crate::tunnel) fn handle_event(&mut self, event: ConnectionEvent) {
        self.connection.handle_event(event);
    }

    /// Time at which the connection must be driven.
    pub(in crate::tunnel) fn poll_timeout(&mut self, endpoint: &Endpoint) -> Option<Instant> {
        let theirs = self.connection.poll_timeout().map(|at| endpoint.clock.ours(at));
        theirs.into_iter().chain(self.held).min()
    }

    /// Queues frames of a lane.
    pub(in crate::tunnel) fn push(&mut self, lane: Lane, frames: &[u8]) {
        self.lanes.push(lane, frames);
    }

    /// Ends a lane: no more frames follow.
    pub(in crate::tunnel) fn end(&mut self, lane: Lane) {
        self.lanes.end(lane);
    }

    /// Handles timers and events of the connection. Errors: the connection is lost.
    pub(in crate::tunnel) fn settle(
        &mut self,
        endpoint: &mut Endpoint,
        credentials: Credentials<'_>,
        now: Instant,
    ) -> io::Result<()> {
        let theirs = endpoint.clock.theirs(now);
        if self.connection.poll_timeout().is_some_and(|at| at <= theirs) {
            self.connection.handle_timeout(theirs);
        }
        self.exchange_events(endpoint);
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.begin_handshake(credentials)?,
                Event::ConnectionLost { reason } => return Err(lost(reason)),
                Event::Stream(StreamEvent::Readable { id }) => drop(self.readable.insert(id)),
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                    while let Some(id) = self.connection.streams().accept(Dir::Bi) {
                        self.readable.insert(id);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Exchanges events between the connection and the endpoint.
    pub(super) fn exchange_events(&mut self, endpoint: &mut Endpoint) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            self.drained |= event.is_drained();
            if let Some(event) = endpoint.inner.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
    }

    /// Begins the sites' handshake, bound to this connection.
    fn begin_handshake(&mut self, credentials: Credentials<'_>) -> io::Result<()> {
        let mut binding = [0; 32];
        let exported =
            self.connection.crypto_session().export_keying_material(&mut binding, LABEL, &[]);
        exported.map_err(|_| io::Error::other("the connection has no keys to bind to"))?;
        let mut first = Vec::new();
        self.secure = Some(credentials.begin_in(&binding, self.dialled, &mut first)?);
        if !first.is_empty() {
            self.push(0, &first);
        }
        Ok(())
    }

    /// Reads the available bytes. Until the link is assigned to a tunnel, only the first lane is
    /// read, and its bytes are stored.
    pub(in crate::tunnel) fn receive(
        &mut self,
        mut deliver: Option<Deliver<'_>>,
    ) -> io::Result<()> {
        for id in std::mem::take(&mut self.readable) {
            let Some(lane) = lane_of(id) else { return Err(io::Error::other("too many streams")) };
            if lane > 0 && deliver.is_none() {
                self.readable.insert(id);
                continue;
            }
            let mut pieces = Vec::new();
            let ended = self.read(id, &mut pieces)?;
            for piece in pieces {
                match (&mut deliver, lane) {
                    (Some(deliver), 0) => {
                        self.open(&piece, &mut |bytes| deliver(0, Some(bytes)))?;
                    }
                    (Some(deliver), _) => deliver(lane, Some(&piece)),
                    (None, _) => {
                        let mut plain = std::mem::take(&mut self.plain_in);
                        let opened = self.open(&piece, &mut |bytes| plain.extend_from_slice(bytes));
                        self.plain_in = plain;
                        opened?;
                    }
                }
            }
            match (&mut deliver, ended) {
                (_, true) if lane == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                (Some(deliver), true) => deliver(lane, None),
                _ => {}
            }
        }
        Ok(())
    }

    /// Decrypts bytes of the first lane: passes the plaintext to `deliver`, and answers the
    /// handshake.
    fn open(&mut self, bytes: &[u8], deliver: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Some(secure) = &mut self.secure else {
            return Err(io::Error::other("bytes before the connection was established"));
        };
        let mut answer = Vec::new();
        secure.inbox().extend_from_slice(bytes);
        secure.open(&mut answer, deliver).map_err(io::Error::other)?;
        if !answer.is_empty() {
            self.push(0, &answer);
        }
        Ok(())
    }

    /// Reads all available bytes of a stream. Returns whether the stream has ended.
    fn read(&mut self, id: StreamId, pieces: &mut Vec<Bytes>) -> io::Result<bool> {
        let mut stream = self.connection.recv_stream(id);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream) => return Ok(false),
            Err(error) => return Err(io::Error::other(error)),
        };
        let ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => pieces.push(chunk.bytes),
                Ok(None) | Err(ReadError::Reset(_)) => break true,
                Err(ReadError::Blocked) => break false,
            }
        };
        // Flow-control updates are sent with the next transmit.
        let _ = chunks.finalize();
        Ok(ended)
    }

    /// Sends as many bytes as the pacer and the congestion window allow.
    pub(in crate::tunnel) fn flush(
        &mut self,
        endpoint: &mut Endpoint,
        now: Instant,
    ) -> io::Result<()> {
        self.held = None;
        while self.transmit(endpoint, now) || self.feed()? {}
        Ok(())
    }

    /// Sends one burst, if the pacer allows it; returns whether there may be more to send.
    fn transmit(&mut self, endpoint: &mut Endpoint, now: Instant) -> bool {
        let mtu = self.connection.current_mtu();
        let rate = self.connection.congestion_state().metrics().pacing_rate;
        let budget = rate.map(|bits| self.pacer.poll(now, bits as f64 / 8.0, mtu.into()));
        let most = match budget {
            None => SEGMENTS,
            Some(Ok(bytes)) => SEGMENTS.min((bytes / u64::from(mtu)) as usize),
            Some(Err(at)) => {
                self.held = Some(at);
                return false;
            }
        };
        endpoint.send.clear();
        let theirs = endpoint.clock.theirs(now);
        let frames = self.connection.stats().frame_tx.stream;
        let next = self.connection.poll_transmit(theirs, most, &mut endpoint.send);
        let Some(transmit) = next else { return false };
        // Packets without stream data, such as pure acknowledgements, are not paced.
        if self.connection.stats().frame_tx.stream > frames {
            self.pacer.spend(transmit.size as u64);
        }
        endpoint.transmit(Some(self.handle), &transmit);
        self.stuck = false;
        true
    }

    /// Gives the library more bytes if it may have nothing left to send; returns whether any bytes
    /// were accepted.
    fn feed(&mut self) -> io::Result<bool> {
        if self.held.is_some() || self.stuck {
            return Ok(false);
        }
        let ahead = self.ahead();
        self.stuck = self.lanes.flush(&mut self.connection, ahead)?;
        Ok(self.stuck)
    }

    /// Number of bytes given to the library in one call, and of bytes that may wait in the lanes.
    fn ahead(&self) -> usize {
        let (least, most) = AHEAD;
        let mtu = self.connection.current_mtu();
        let rate = self.connection.congestion_state().metrics().pacing_rate;
        let burst = rate.map(|bits| quantum(bits as f64 / 8.0, mtu.into()) as usize);
        burst.unwrap_or(most).clamp(least, most)
    }

    /// Returns whether enough bytes are queued to flush now.
    pub(in crate::tunnel) fn is_full(&self) -> bool {
        self.lanes.fresh >= self.ahead()
    }

    /// Returns whether more bytes may be queued.
    pub(in crate::tunnel) fn has_room(&self) -> bool {
        self.lanes.len() < self.ahead()
    }

    /// Closes the connection with this code.
    pub(in crate::tunnel) fn close(&mut self, code: u8, endpoint: &mut Endpoint, now: Instant) {
        let theirs = endpoint.clock.theirs(now);
        self.connection.close(theirs, VarInt::from_u32(code.into()), Bytes::new());
        // The pacer must not delay the close.
        self.pacer = Pacer::default();
        let _ = self.flush(endpoint, now);
        // The connection does not wait for the peer's close: later packets of the peer are answered
        // with a stateless reset.
        self.exchange_events(endpoint);
        if !self.drained {
            let drained = quinn_proto::EndpointEvent::drained();
            let _ = endpoint.inner.handle_event(self.handle, drained);
        }
    }
}

/// Maps the reason of a lost connection to an error: the peer's refusal, if it has closed with a
/// refusal's code.
fn lost(reason: ConnectionError) -> io::Error {
    let code = match &reason {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        _ => 0,
    };
    match u8::try_from(code).ok().and_then(Refusal::from_code) {
        Some(refusal) => io::Error::other(RecordError::Refused(refusal)),
        None => io::Error::other(reason),
    }
}
