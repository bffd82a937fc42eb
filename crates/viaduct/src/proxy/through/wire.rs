//! A network connection of a handler chain.

use std::io;

use viaduct_proto::flow::{Address, BottomId, Chain, Failure, Measure};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp;

use super::side::Side;
use crate::proxy::leg::Leg;
use crate::proxy::liveness::Liveness;
use crate::proxy::target::failure;

/// A connection of a chain to the network. The first one uses the flow's own leg, which is lent
/// for each turn; further ones own theirs.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) id: BottomId,
    pub(super) leg: Option<Leg>,
    pub(super) side: Side,
    pub(super) connected: bool,
    /// Requested ending.
    pub(super) end: Option<Ending>,
    /// Error of a write: nothing more is written, but received bytes may still be unread.
    broke: Option<io::Error>,
    /// The connection broke or was closed, and the chain has been told.
    pub(super) gone: bool,
    /// Liveness of the peer, if the connection owns its leg.
    pub(super) liveness: Liveness,
}

/// Ending of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Write side closed.
    Shut,
    /// Both sides closed.
    Close,
}

impl Wire {
    pub(super) fn new(id: BottomId, leg: Option<Leg>) -> Wire {
        Wire {
            id,
            leg,
            side: Side::default(),
            connected: false,
            end: None,
            broke: None,
            gone: false,
            liveness: Liveness::New,
        }
    }

    /// Returns whether nothing more happens on this connection.
    pub(super) fn is_over(&self) -> bool {
        self.gone || self.side.shut
    }

    /// Returns whether the connection broke, or its handlers have closed it.
    pub(super) fn is_left(&self) -> bool {
        self.gone || self.end == Some(Ending::Close)
    }

    /// Returns whether the connection broke and its remaining bytes are still to be read.
    pub(super) fn is_breaking(&self) -> bool {
        self.broke.is_some() && !self.gone && !self.side.paused
    }

    /// Passes the kernel's measurements of the connection to the chain, if there are any.
    pub(super) fn measure(&self, main: Option<&Leg>, chain: &mut Chain) {
        let leg = self.leg.as_ref().or(main).filter(|_| self.connected && !self.gone);
        let Some(Ok(of)) = leg.and_then(Leg::tcp).map(tcp::sending) else { return };
        let tcp::Sending { acked, held, unsent, again, rtt, shortest, segment } = of;
        let measure = Measure { acked, held, unsent, again, rtt, shortest, segment };
        chain.set_measure(self.id, measure);
    }

    /// Reads the available bytes; returns their number.
    pub(super) fn read(
        &mut self,
        main: &mut Option<&mut Leg>,
        chain: &mut Chain,
        scratch: &mut [u8],
        now: Instant,
    ) -> u64 {
        let Some(leg) = of(self.gone, &mut self.leg, main) else { return 0 };
        if !self.connected {
            match leg.check_connected() {
                Ok(false) => return 0,
                Ok(true) => {
                    name(chain, self.id, leg);
                    self.connected = true;
                    chain.connected(now, self.id, Ok(()));
                }
                Err(error) => {
                    self.gone = true;
                    chain.connected(now, self.id, Err(failure(&error)));
                    return 0;
                }
            }
        }
        if self.broke.is_some() && self.side.paused {
            return 0;
        }
        let read = match (self.side.read(leg, scratch), self.broke.take()) {
            (Ok(Some(read)), broke) if !read.is_empty() => {
                self.broke = broke;
                read
            }
            (Ok(None), None) => return 0,
            (Ok(Some(_)), None) => {
                chain.finished(now, self.id);
                return 0;
            }
            // End of stream after an error was not sent by the far end.
            (Err(error), _) | (Ok(_), Some(error)) => {
                self.breaks(chain, &error, now);
                return 0;
            }
        };
        let bytes = read.len() as u64;
        self.side.ended |= !chain.avail(now, self.id, read);
        bytes
    }

    /// Writes queued bytes; returns their number.
    pub(super) fn write(
        &mut self,
        main: &mut Option<&mut Leg>,
        chain: &mut Chain,
        now: Instant,
    ) -> usize {
        let takes = self.connected && self.broke.is_none();
        let Some(leg) = of(self.gone, &mut self.leg, main).filter(|_| takes) else { return 0 };
        let mut written = 0;
        loop {
            match self.side.write(leg, chain.outgoing(self.id)) {
                Ok(None) => return written,
                Ok(Some(count)) => {
                    chain.sent(now, self.id, count);
                    written += count;
                }
                Err(error) => {
                    // Bytes received since the last read may be there, though no event has
                    // reported them yet.
                    (self.broke, self.side.readable) = (Some(error), true);
                    return written;
                }
            }
        }
    }

    /// Ends the connection if the chain has asked for it.
    pub(super) fn end(&mut self, main: &mut Option<&mut Leg>) {
        let leg = of(self.gone, &mut self.leg, main);
        let (Some(end), Some(leg)) = (self.end, leg) else { return };
        // An error that occurs here is found by the next read.
        let _ = self.side.shut(leg);
        if end == Ending::Close {
            // Nothing is read any more.
            self.side.ended = true;
            self.gone |= self.leg.take().is_some() || !self.connected;
        }
    }

    fn breaks(&mut self, chain: &mut Chain, error: &io::Error, now: Instant) {
        self.gone = true;
        self.leg = None;
        let why = match failure(error) {
            // Errors of an established connection count as a reset.
            Failure::Unreachable | Failure::Refused => Failure::Reset,
            other => other,
        };
        chain.failed(now, self.id, why);
    }
}

/// Tells the chain the addresses of a connection.
pub(super) fn name(chain: &mut Chain, id: BottomId, leg: &Leg) {
    if let Some((own, peer)) = leg.names() {
        chain.set_names(id, Address::Ip(own), Address::Ip(peer));
    }
}

/// Leg of a connection: its own, or the flow's that is lent; `None` if the connection is gone.
fn of<'a>(
    is_gone: bool,
    own: &'a mut Option<Leg>,
    main: &'a mut Option<&mut Leg>,
) -> Option<&'a mut Leg> {
    match own {
        _ if is_gone => None,
        Some(leg) => Some(leg),
        None => main.as_deref_mut(),
    }
}
