//! A link over TCP or QUIC.

use std::io;
use std::net::SocketAddr;

use mio::Registry;
use viaduct_proto::keys::{Entropy, PublicKey};
use viaduct_proto::time::Instant;
use viaduct_proto::tunnel::record::{RecordError, Refusal, Secure};
use viaduct_proto::tunnel::{Carrier, Lane};

use super::peer::SharedPeer;
use super::quic::{Endpoint, QuicLink};
use super::settings::TunnelSettings;
use super::tcp::TcpLink;
use super::tls::TlsConfigs;

/// Transport of a link.
#[derive(Debug)]
pub(super) enum Transport {
    Tcp(Box<TcpLink>),
    Quic(Box<QuicLink>),
}

/// Index of a near end, and index of one of its slots.
pub(super) type SlotIndex = (usize, usize);

/// A link, and its place in a tunnel.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) transport: Transport,
    /// Address of the other end when the link began.
    pub(super) remote: SocketAddr,
    /// Slot that dials the link; `None` if the link was accepted.
    pub(super) slot: Option<SlotIndex>,
    /// Tunnel, and the link's number there, once known.
    pub(super) place: Option<(SharedPeer, u32)>,
    /// Time by which the link must be assigned to a tunnel.
    pub(super) deadline: Instant,
}

/// Keys and settings with which a link authenticates the sites.
#[derive(Clone, Copy)]
pub(super) struct Credentials<'a> {
    pub(super) settings: &'a TunnelSettings,
    pub(super) entropy: &'a Entropy,
    pub(super) tls: &'a TlsConfigs,
}

/// Shared resources for driving a link.
pub(super) struct Tools<'a> {
    pub(super) endpoint: Option<&'a mut Endpoint>,
    pub(super) credentials: Credentials<'a>,
    pub(super) scratch: &'a mut [u8],
}

impl Credentials<'_> {
    /// Begins the sites' handshake inside a channel; `binding` binds the handshake to the channel.
    /// If this end has dialled, its first message is appended to `first`.
    pub(super) fn begin_in(
        self,
        binding: &[u8],
        dials: bool,
        first: &mut Vec<u8>,
    ) -> io::Result<Secure> {
        let (TunnelSettings { secret, peers, .. }, entropy) = (self.settings, self.entropy.clone());
        match dials {
            true => Secure::dial_in(binding, secret, &peers[0], entropy, first)
                .map_err(io::Error::other),
            false => Ok(Secure::listen_in(binding, secret, peers.clone(), entropy)),
        }
    }
}

impl Link {
    pub(super) fn carrier(&self) -> Carrier {
        match self.transport {
            Transport::Tcp(_) => Carrier::Stream,
            Transport::Quic(_) => Carrier::Streams,
        }
    }

    /// Record layer under the sites' keys; `None` before a connection over TLS or QUIC has keys.
    fn secure(&self) -> Option<&Secure> {
        match &self.transport {
            Transport::Tcp(tcp) => tcp.channel.secure(),
            Transport::Quic(quic) => quic.secure.as_ref(),
        }
    }

    /// Returns whether both ends have authenticated.
    pub(super) fn is_up(&self) -> bool {
        self.secure().is_some_and(Secure::is_up)
    }

    /// Returns whether this is an accepted link whose peer is not known yet.
    pub(super) fn is_stranger(&self) -> bool {
        self.slot.is_none() && self.place.is_none()
    }

    /// Public key of the peer, once known.
    pub(super) fn peer(&self) -> Option<PublicKey> {
        self.secure().and_then(Secure::peer)
    }

    /// Lifts the limits of an unauthenticated link.
    pub(super) fn trust(&mut self, streams: u32) {
        if let Transport::Quic(quic) = &mut self.transport {
            quic.trust(streams);
        }
    }

    /// Bytes received before the link was assigned to a tunnel.
    pub(super) fn early(&mut self) -> &mut Vec<u8> {
        match &mut self.transport {
            Transport::Tcp(tcp) => &mut tcp.plain_in,
            Transport::Quic(quic) => &mut quic.plain_in,
        }
    }

    /// Returns whether there may be more to read in the next turn.
    pub(super) fn is_readable(&self) -> bool {
        matches!(&self.transport, Transport::Tcp(tcp) if tcp.readable)
    }

    /// Reads the available bytes, and passes them to the tunnel, if the link is assigned to one.
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
        match (&mut self.transport, &mut tools.endpoint) {
            (Transport::Tcp(tcp), _) => {
                let mut deliver = |bytes: &[u8]| deliver(0, Some(bytes));
                tcp.receive(tools.credentials, tools.scratch, placed.then_some(&mut deliver))
            }
            (Transport::Quic(quic), Some(endpoint)) => {
                quic.settle(endpoint, tools.credentials, now)?;
                quic.receive(placed.then_some(&mut deliver))
            }
            (Transport::Quic(_), None) => Ok(()),
        }
    }

    /// Queues frames to be sent.
    pub(super) fn push(&mut self, lane: Lane, frames: &[u8]) {
        match &mut self.transport {
            Transport::Tcp(tcp) => tcp.push(frames),
            Transport::Quic(quic) => quic.push(lane, frames),
        }
    }

    /// Ends a lane: no more frames follow.
    pub(super) fn end(&mut self, lane: Lane) {
        if let Transport::Quic(quic) = &mut self.transport {
            quic.end(lane);
        }
    }

    /// Returns whether enough bytes are queued to write them now.
    pub(super) fn is_full(&self) -> bool {
        match &self.transport {
            Transport::Tcp(tcp) => tcp.is_full(),
            Transport::Quic(quic) => quic.is_full(),
        }
    }

    /// Writes as many bytes as possible, and reports to the tunnel whether the link has room for
    /// more.
    pub(super) fn flush(
        &mut self,
        endpoint: Option<&mut Endpoint>,
        now: Instant,
    ) -> io::Result<()> {
        let room = match (&mut self.transport, endpoint) {
            (Transport::Tcp(tcp), _) => {
                tcp.flush(now)?;
                tcp.has_room()
            }
            (Transport::Quic(quic), Some(endpoint)) => {
                quic.flush(endpoint, now)?;
                quic.has_room()
            }
            (Transport::Quic(_), None) => false,
        };
        if let Some((peer, number)) = &self.place {
            peer.lock().tunnel.set_writable(*number, room);
        }
        Ok(())
    }

    /// Time at which the link must be driven; `None` while the link waits only for its socket.
    pub(super) fn poll_timeout(&mut self, endpoint: Option<&Endpoint>) -> Option<Instant> {
        let deadline = self.place.is_none().then_some(self.deadline);
        let carrier = match (&mut self.transport, endpoint) {
            (Transport::Quic(quic), Some(endpoint)) => quic.poll_timeout(endpoint),
            _ => None,
        };
        deadline.into_iter().chain(carrier).min()
    }

    /// Closes the link. The other end gets the reason if the handshake has a code for that reason.
    pub(super) fn close(
        &mut self,
        why: &io::Error,
        endpoint: Option<&mut Endpoint>,
        registry: &Registry,
        now: Instant,
    ) {
        match (&mut self.transport, endpoint) {
            (Transport::Tcp(tcp), _) => {
                // Sends the queued bytes, such as the handshake message that refuses the dialler.
                tcp.close(now);
                let _ = registry.deregister(&mut tcp.stream);
            }
            (Transport::Quic(quic), Some(endpoint)) => {
                quic.close(refusal_code(why), endpoint, now);
                endpoint.remove(quic);
            }
            (Transport::Quic(_), None) => {}
        }
    }
}

/// Close code of a QUIC connection: the code of the refusal, or 0 if the peer was not refused.
fn refusal_code(why: &io::Error) -> u8 {
    match record_error(why) {
        Some(RecordError::Unknown(_)) => Refusal::UnknownKey.code(),
        _ => 0,
    }
}

/// Error of the record layer, if one has ended the link.
pub(super) fn record_error(why: &io::Error) -> Option<RecordError> {
    why.get_ref().and_then(|inner| inner.downcast_ref()).copied()
}
