//! One of the connections by which a chain meets the network.

use std::io;

use viaduct_proto::flow::{Address, BottomId, Chain, Failure, Measure};
use viaduct_proto::time::Instant;
use viaduct_sys::tcp;

use super::side::Side;
use crate::proxy::leg::Leg;
use crate::proxy::liveness::Liveness;
use crate::proxy::target::failure;

/// A connection. The first one's leg is the flow's own, and is lent for each turn; further ones have
/// theirs.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) id: BottomId,
    pub(super) leg: Option<Leg>,
    pub(super) side: Side,
    pub(super) connected: bool,
    /// How it is to end.
    pub(super) end: Option<Ending>,
    /// It takes nothing more, for it broke; what it has said may not have been read yet.
    broke: Option<io::Error>,
    /// It broke, or was closed: the chain knows.
    pub(super) gone: bool,
    /// What is known of its peer, if it has a leg of its own.
    pub(super) liveness: Liveness,
}

/// How a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing more goes to it.
    Shut,
    /// Nothing comes from it either.
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

    /// Whether nothing more happens on it.
    pub(super) fn is_over(&self) -> bool {
        self.gone || self.side.shut
    }

    /// Whether it broke, or its handlers have left it.
    pub(super) fn is_left(&self) -> bool {
        self.gone || self.end == Some(Ending::Close)
    }

    /// Whether it broke, and what it has said is to be read.
    pub(super) fn is_breaking(&self) -> bool {
        self.broke.is_some() && !self.gone && !self.side.paused
    }

    /// Tells the chain what the kernel has measured of it, where there is something to measure.
    pub(super) fn measure(&self, main: Option<&Leg>, chain: &mut Chain) {
        let leg = self.leg.as_ref().or(main).filter(|_| self.connected && !self.gone);
        let Some(Ok(of)) = leg.and_then(Leg::tcp).map(tcp::sending) else { return };
        let tcp::Sending { acked, held, unsent, again, rtt, shortest, segment } = of;
        let measure = Measure { acked, held, unsent, again, rtt, shortest, segment };
        chain.set_measure(self.id, measure);
    }

    /// Reads what is there; how many bytes that was.
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
            // The end behind an error is none that the far end meant.
            (Err(error), _) | (Ok(_), Some(error)) => {
                self.breaks(chain, &error, now);
                return 0;
            }
        };
        let bytes = read.len() as u64;
        self.side.ended |= !chain.avail(now, self.id, read);
        bytes
    }

    /// Writes what waits; how many bytes that was.
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
                    // What it has said since it was read last may be there, though nobody has told us so yet.
                    (self.broke, self.side.readable) = (Some(error), true);
                    return written;
                }
            }
        }
    }

    /// Ends it as the chain wants it, if that is so.
    pub(super) fn end(&mut self, main: &mut Option<&mut Leg>) {
        let leg = of(self.gone, &mut self.leg, main);
        let (Some(end), Some(leg)) = (self.end, leg) else { return };
        // One that broke meanwhile says so when it is read.
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
            // Of a connection that was there.
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

/// A connection's leg: its own, or the flow's that is lent. One that is gone has none, and is lent none.
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
