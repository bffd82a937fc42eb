//! Handover of the listening end to another process. Links cannot be handed over: this process
//! leaves them, so that they end with their last streams, and the peers dial others.
//!
//! ```text
//!   export ─▶ pause ──┬─▶ leave:        the other process accepts links
//!                     └─▶ accept_again: it has failed, and this one accepts them again
//! ```
//!
//! Over TCP a link has a socket of its own. Over QUIC all links that peers have dialled share one,
//! which the other process gets; so each of these links gets a socket connected to its peer.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use mio::Interest;
use mio::net::TcpListener;
use viaduct_proto::time::Instant;

use super::dial::Slot;
use super::link::{Link, Transport};
use super::near::Near;
use super::peer::SharedPeer;
use super::quic::{Endpoint, QuicLink};
use super::settings::TunnelSettings;
use super::{DATAGRAMS, LISTENER, Tunnels};

/// Time from the handover until this process leaves the links that it has dialled. Until then peers
/// open streams on them, while the new process dials.
const LEAVE_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of times that the queue of the UDP socket is read. A flood may fill the queue
/// as quickly as it is read.
const MAX_READS: usize = 16;

/// Tunnels of another process: the sockets at which it has listened for links, and the tunnels that
/// it has dialled.
#[derive(Debug, Default)]
pub struct InheritedTunnels {
    listener: Option<std::net::TcpListener>,
    pub(super) udp: Option<OwnedFd>,
    /// Result of [`Tunnels::dialled_up`].
    up: u64,
}

impl InheritedTunnels {
    /// Assigns the descriptors that [`Tunnels::export`] has returned; `up` is the result of
    /// [`Tunnels::dialled_up`].
    pub fn new(sockets: impl IntoIterator<Item = OwnedFd>, up: u64) -> InheritedTunnels {
        let mut sockets = sockets.into_iter();
        let listener = sockets.next().map(Into::into);
        InheritedTunnels { listener, udp: sockets.next(), up }
    }

    /// Returns whether the n-th tunnel that is dialled had a link up.
    pub(super) fn was_up(&self, n: usize) -> bool {
        u32::try_from(n).is_ok_and(|n| self.up.checked_shr(n).unwrap_or_default() & 1 == 1)
    }

    /// Takes the listener. Errors: there are other sockets than `settings` need.
    pub(super) fn listener(&mut self, settings: &TunnelSettings) -> Result<Option<TcpListener>> {
        let at = self.listener.as_ref().map(std::net::TcpListener::local_addr).transpose()?;
        let has_udp = settings.listen.is_some() && settings.uses_quic();
        ensure!(
            at == settings.listen && self.udp.is_some() == has_udp,
            "tunnel-listen: {at:?} is open, and {:?} is configured; restart",
            settings.listen
        );
        let Some(listener) = self.listener.take() else { return Ok(None) };
        listener.set_nonblocking(true).context("tunnel-listen")?;
        Ok(Some(TcpListener::from_std(listener)))
    }
}

impl Tunnels {
    /// Duplicates of the sockets of the listening end: the TCP listener, and the UDP socket of
    /// QUIC.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn export(&self) -> io::Result<Vec<OwnedFd>> {
        let Some(listener) = &self.listener else { return Ok(Vec::new()) };
        let udp = self.endpoint.as_ref().and_then(Endpoint::shared);
        let all = [listener.as_fd()].into_iter().chain(udp);
        all.map(|fd| fd.try_clone_to_owned()).collect()
    }

    /// Far ends to which flows have a link: bit n for that of the n-th tunnel that this end dials,
    /// for up to 64. Either end may have dialled the link.
    pub fn dialled_up(&self) -> u64 {
        let is_up = |near: &Near| {
            let own = self.far.iter().filter(|peer| peer.lock().key == near.dial.peer);
            own.chain([&near.peer]).any(|peer| peer.lock().tunnel.can_open())
        };
        let nears = self.nears.iter().take(64).enumerate();
        nears.fold(0, |up, (n, near)| up | u64::from(is_up(near)) << n)
    }

    /// Accepts no more links, which another process may accept. Accepted links are left, so that
    /// their peers dial others; if they did so after the other process has begun to serve, they
    /// would take it for a restart of this one.
    ///
    /// # Errors
    /// No descriptor is left for the links over QUIC.
    pub fn pause(&mut self, now: Instant) -> io::Result<()> {
        let Some(mut listener) = self.listener.take() else { return Ok(()) };
        let deregistered = self.registry.deregister(&mut listener);
        self.paused_listener = Some(listener);
        self.accept_at = None;
        deregistered?;
        self.receive_all(now);
        let Tunnels { endpoint, links, registry, .. } = self;
        if let Some(endpoint) = endpoint {
            endpoint.begin_pause(links.iter().filter_map(over_quic), registry, DATAGRAMS)?;
        }
        // These datagrams have arrived before the links had their own sockets.
        self.receive_all(now);
        let Tunnels { endpoint, registry, .. } = self;
        endpoint.as_mut().map_or(Ok(()), |endpoint| endpoint.pause(registry))?;
        self.far.iter().for_each(SharedPeer::leave_links);
        Ok(())
    }

    /// Reads datagrams until there are none.
    fn receive_all(&mut self, now: Instant) {
        for _ in 0..MAX_READS {
            self.receive(now);
            if self.endpoint.as_ref().is_none_or(|endpoint| !endpoint.readable) {
                return;
            }
        }
    }

    /// Accepts links again, since the other process has failed.
    ///
    /// # Errors
    /// A socket cannot be watched.
    pub fn accept_again(&mut self, now: Instant) -> io::Result<()> {
        let Some(mut listener) = self.paused_listener.take() else { return Ok(()) };
        let registered = self.registry.register(&mut listener, LISTENER, Interest::READABLE);
        self.listener = Some(listener);
        self.accept_at = Some(now);
        self.receive_all(now);
        let Tunnels { endpoint, registry, .. } = self;
        let resumed = endpoint.as_mut().map_or(Ok(()), |of| of.resume(registry, DATAGRAMS));
        registered.and(resumed)
    }

    /// Closes the copies of the listening sockets, which the other process uses. Dialled links are
    /// left after [`LEAVE_DELAY`], by [`Tunnels::leave_dialled`].
    pub fn leave(&mut self, now: Instant) {
        self.paused_listener = None;
        self.is_leaving = true;
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.close_shared();
        }
        self.leave_at = (!self.nears.is_empty()).then_some(now + LEAVE_DELAY);
    }

    /// Returns whether the links that this end has dialled are to be left, as soon as no flow needs
    /// a new stream.
    pub fn is_leave_due(&self, now: Instant) -> bool {
        self.leave_at.is_some_and(|at| at <= now)
    }

    /// Leaves the links that this end has dialled, and dials no others.
    pub fn leave_dialled(&mut self) {
        self.leave_at = None;
        self.nears.iter_mut().flat_map(|near| &mut near.slots).for_each(Slot::retire);
        self.nears.iter().for_each(|near| near.peer.leave_links());
    }
}

fn over_quic((_, link): (usize, &Link)) -> Option<&QuicLink> {
    match &link.transport {
        Transport::Quic(quic) => Some(quic),
        Transport::Tcp(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialled_tunnel_has_a_bit_and_those_beyond_the_last_count_as_down() {
        let inherited = InheritedTunnels { up: 1 | 1 << 63, ..InheritedTunnels::default() };
        let up = [0, 1, 62, 63, 64, usize::MAX].map(|n| inherited.was_up(n));
        assert_eq!(up, [true, false, false, true, false, false]);
    }
}
