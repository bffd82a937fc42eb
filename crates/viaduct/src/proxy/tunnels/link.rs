//! A link, whatever carries it.

use std::io;
use std::net::SocketAddr;

use mio::Registry;
use viaduct_proto::keys::{Entropy, PublicKey};
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::record::{RecordError, Refusal};
use viaduct_proto::tunnel::{Carrier, Lane};

use super::peer::SharedPeer;
use super::quic::{Endpoint, QuicLink};
use super::settings::TunnelSettings;
use super::stream::Stream;

/// What carries a link.
#[derive(Debug)]
pub(super) enum Wire {
    Stream(Box<Stream>),
    Quic(Box<QuicLink>),
}

/// A near end's number, and that of one of its slots.
pub(super) type Place = (usize, usize);

/// A link, and what it belongs to.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) wire: Wire,
    /// Where the other end was when it began.
    pub(super) remote: SocketAddr,
    /// The slot that dials it again.
    pub(super) slot: Option<Place>,
    /// Its tunnel, and its number there, once that is known.
    pub(super) place: Option<(SharedPeer, u32)>,
    /// When it is given up, unless it is up.
    pub(super) deadline: Instant,
}

/// What driving a link takes.
pub(super) struct Tools<'a> {
    pub(super) endpoint: Option<&'a mut Endpoint>,
    pub(super) settings: &'a TunnelSettings,
    pub(super) entropy: &'a Entropy,
    pub(super) scratch: &'a mut [u8],
}

impl Link {
    pub(super) fn carrier(&self) -> Carrier {
        match self.wire {
            Wire::Stream(_) => Carrier::Stream,
            Wire::Quic(_) => Carrier::Streams,
        }
    }

    /// Whether both ends have shown who they are.
    pub(super) fn is_up(&self) -> bool {
        match &self.wire {
            Wire::Stream(stream) => stream.is_up(),
            Wire::Quic(quic) => quic.is_up(),
        }
    }

    /// Whether somebody has dialled it who has not shown yet whose it is.
    pub(super) fn is_stranger(&self) -> bool {
        self.slot.is_none() && self.place.is_none()
    }

    /// Who dialled, once that is known.
    pub(super) fn peer(&self) -> Option<PublicKey> {
        match &self.wire {
            Wire::Stream(stream) => stream.peer(),
            Wire::Quic(quic) => quic.peer(),
        }
    }

    /// Lifts what bounds a link whose other end was not known yet.
    pub(super) fn trust(&mut self, sessions: u32) {
        if let Wire::Quic(quic) = &mut self.wire {
            quic.trust(sessions);
        }
    }

    /// What came before the link had its place.
    pub(super) fn early(&mut self) -> &mut Vec<u8> {
        match &mut self.wire {
            Wire::Stream(stream) => &mut stream.plain_in,
            Wire::Quic(quic) => &mut quic.plain_in,
        }
    }

    /// Whether there is more to read, after others had their turn.
    pub(super) fn is_readable(&self) -> bool {
        matches!(&self.wire, Wire::Stream(stream) if stream.is_readable())
    }

    /// Reads what there is, and hands it on.
    pub(super) fn receive(&mut self, tools: &mut Tools<'_>, now: Instant) -> io::Result<()> {
        let mut tunnel = self.place.as_ref().map(|(peer, number)| (peer.lock(), *number));
        let mut deliver = |lane: Lane, bytes: Option<&[u8]>| {
            let Some((peer, number)) = &mut tunnel else { return };
            match bytes {
                Some(bytes) => peer.tunnel.handle_bytes(now, *number, lane, bytes),
                None => peer.tunnel.handle_lane_end(*number, lane),
            }
        };
        let placed = self.place.is_some();
        match (&mut self.wire, &mut tools.endpoint) {
            (Wire::Stream(stream), _) => {
                let mut deliver = |bytes: &[u8]| deliver(0, Some(bytes));
                stream.receive(tools.scratch, placed.then_some(&mut deliver))
            }
            (Wire::Quic(quic), Some(endpoint)) => {
                quic.settle(endpoint, tools.settings, tools.entropy, now)?;
                quic.receive(placed.then_some(&mut deliver))
            }
            (Wire::Quic(_), None) => Ok(()),
        }
    }

    /// Adds frames to be sent.
    pub(super) fn push(&mut self, lane: Lane, frames: &[u8]) {
        match &mut self.wire {
            Wire::Stream(stream) => stream.push(frames),
            Wire::Quic(quic) => quic.push(lane, frames),
        }
    }

    /// Nothing follows on a lane.
    pub(super) fn end(&mut self, lane: Lane) {
        if let Wire::Quic(quic) = &mut self.wire {
            quic.end(lane);
        }
    }

    /// Whether it is time to write what was added.
    pub(super) fn is_full(&self) -> bool {
        match &self.wire {
            Wire::Stream(stream) => stream.is_full(),
            Wire::Quic(quic) => quic.is_full(),
        }
    }

    /// Writes what can be written, and tells the tunnel whether there is room for more.
    pub(super) fn flush(
        &mut self,
        endpoint: Option<&mut Endpoint>,
        now: Instant,
    ) -> io::Result<()> {
        let room = match (&mut self.wire, endpoint) {
            (Wire::Stream(stream), _) => {
                stream.flush(now)?;
                stream.has_room()
            }
            (Wire::Quic(quic), Some(endpoint)) => {
                quic.flush(endpoint, now)?;
                quic.has_room()
            }
            (Wire::Quic(_), None) => false,
        };
        if let Some((peer, number)) = &self.place {
            peer.lock().tunnel.set_room(*number, room);
        }
        Ok(())
    }

    /// When it wants to be driven; `None` while it waits for its socket alone.
    pub(super) fn poll_timeout(&mut self, endpoint: Option<&Endpoint>) -> Option<Instant> {
        let deadline = self.place.is_none().then_some(self.deadline);
        let carrier = match (&mut self.wire, endpoint) {
            (Wire::Quic(quic), Some(endpoint)) => quic.poll_timeout(endpoint),
            _ => None,
        };
        deadline.into_iter().chain(carrier).min()
    }

    /// Closes it for this reason, which the other end is told where the handshake has a word for it.
    pub(super) fn close(
        &mut self,
        why: &io::Error,
        endpoint: Option<&mut Endpoint>,
        registry: &Registry,
        now: Instant,
    ) {
        match (&mut self.wire, endpoint) {
            (Wire::Stream(stream), _) => {
                // The handshake's last message may say that the dialler is refused.
                let _ = stream.flush(now);
                let _ = registry.deregister(stream.source());
            }
            (Wire::Quic(quic), Some(endpoint)) => {
                quic.close(refusal_code(why), endpoint, now);
                endpoint.remove(quic);
            }
            (Wire::Quic(_), None) => {}
        }
    }
}

/// The code with which a QUIC connection is closed: the refusal's, or 0.
fn refusal_code(why: &io::Error) -> u8 {
    match record_error(why) {
        Some(RecordError::Unknown(_)) => Refusal::UnknownKey.code(),
        _ => 0,
    }
}

/// The handshake's error, if that is what ended a link.
pub(super) fn record_error(why: &io::Error) -> Option<RecordError> {
    why.get_ref().and_then(|inner| inner.downcast_ref()).copied()
}
