//! A network connection of a handler chain.

use std::io;

use viaduct_proto::flow::{Address, BottomId, Chain, Failure, Measure};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp;

use super::end_state::EndState;
use crate::engine::conn::Conn;
use crate::engine::destination::failure;
use crate::engine::liveness::Liveness;

/// A connection of a chain to the network. A chain's first `NetConn` borrows the flow's own end for
/// each turn; further ones own their connections.
#[derive(Debug)]
pub(super) struct NetConn {
    pub(super) id: BottomId,
    pub(super) conn: Option<Conn>,
    pub(super) state: EndState,
    pub(super) connected: bool,
    /// Requested ending.
    pub(super) end: Option<Ending>,
    /// Error of a write: nothing more is written, but received bytes may still be unread.
    broke: Option<io::Error>,
    /// True if the connection broke or was closed, and the chain was notified.
    pub(super) gone: bool,
    /// Liveness of the peer, used for further connections only.
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

impl NetConn {
    pub(super) fn new(id: BottomId, conn: Option<Conn>) -> NetConn {
        NetConn {
            id,
            conn,
            state: EndState::default(),
            connected: false,
            end: None,
            broke: None,
            gone: false,
            liveness: Liveness::New,
        }
    }

    /// Returns whether nothing more is written to this connection.
    pub(super) fn is_over(&self) -> bool {
        self.gone || self.state.shut
    }

    /// Returns whether the connection broke, or the handlers have closed it.
    pub(super) fn is_left(&self) -> bool {
        self.gone || self.end == Some(Ending::Close)
    }

    /// Returns whether the connection broke and its remaining bytes are still to be read.
    pub(super) fn is_breaking(&self) -> bool {
        self.broke.is_some() && !self.gone && !self.state.paused
    }

    /// Passes the kernel's measurements of the connection to the chain, if there are any.
    pub(super) fn measure(&self, main: Option<&Conn>, chain: &mut Chain) {
        let conn = self.conn.as_ref().or(main).filter(|_| self.connected && !self.gone);
        let Some(Ok(of)) = conn.and_then(Conn::tcp).map(tcp::sending) else { return };
        let tcp::Sending { acked, held, unsent, again, rtt, shortest, segment } = of;
        let measure = Measure { acked, held, unsent, again, rtt, shortest, segment };
        chain.set_measure(self.id, measure);
    }

    /// Reads the available bytes; returns their number. If the connection is not established yet,
    /// first checks it, and reports the result to the chain.
    pub(super) fn read(
        &mut self,
        main: &mut Option<&mut Conn>,
        chain: &mut Chain,
        scratch: &mut [u8],
        now: Instant,
    ) -> u64 {
        let Some(conn) = of(self.gone, &mut self.conn, main) else { return 0 };
        if !self.connected {
            match conn.check_connected() {
                Ok(false) => return 0,
                Ok(true) => {
                    name(chain, self.id, conn);
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
        if self.broke.is_some() && self.state.paused {
            return 0;
        }
        let read = match (self.state.read(conn, scratch), self.broke.take()) {
            (Ok(Some(read)), broke) if !read.is_empty() => {
                self.broke = broke;
                read
            }
            (Ok(None), None) => return 0,
            (Ok(Some(_)), None) => {
                chain.finished(now, self.id);
                return 0;
            }
            // An end of stream that follows an error was not sent by the far end.
            (Err(error), _) | (Ok(_), Some(error)) => {
                self.breaks(chain, &error, now);
                return 0;
            }
        };
        let bytes = read.len() as u64;
        self.state.ended |= !chain.avail(now, self.id, read);
        bytes
    }

    /// Writes queued bytes; returns their number.
    pub(super) fn write(
        &mut self,
        main: &mut Option<&mut Conn>,
        chain: &mut Chain,
        now: Instant,
    ) -> usize {
        let takes = self.connected && self.broke.is_none();
        let Some(conn) = of(self.gone, &mut self.conn, main).filter(|_| takes) else { return 0 };
        let mut written = 0;
        loop {
            match self.state.write(conn, chain.outgoing(self.id)) {
                Ok(None) => return written,
                Ok(Some(count)) => {
                    chain.sent(now, self.id, count);
                    written += count;
                }
                Err(error) => {
                    // There may be bytes received since the last read that no event has reported
                    // yet.
                    (self.broke, self.state.readable) = (Some(error), true);
                    return written;
                }
            }
        }
    }

    /// Carries out the ending that the chain has requested, if any.
    pub(super) fn end(&mut self, main: &mut Option<&mut Conn>) {
        let conn = of(self.gone, &mut self.conn, main);
        let (Some(end), Some(conn)) = (self.end, conn) else { return };
        // An error that occurs here is found by the next read.
        let _ = self.state.shut(conn);
        if end == Ending::Close {
            // Nothing is read any more.
            self.state.ended = true;
            self.gone |= self.conn.take().is_some() || !self.connected;
        }
    }

    fn breaks(&mut self, chain: &mut Chain, error: &io::Error, now: Instant) {
        self.gone = true;
        self.conn = None;
        let why = match failure(error) {
            // Errors of an established connection count as a reset.
            Failure::Unreachable | Failure::Refused => Failure::Reset,
            other => other,
        };
        chain.failed(now, self.id, why);
    }
}

/// Tells the chain the addresses of a connection.
pub(super) fn name(chain: &mut Chain, id: BottomId, conn: &Conn) {
    if let Some((own, peer)) = conn.names() {
        chain.set_names(id, Address::Ip(own), Address::Ip(peer));
    }
}

/// Returns the connection to use: a further connection's `own`, otherwise the flow's own end
/// `main`. `None` if that connection is gone.
fn of<'a>(
    is_gone: bool,
    own: &'a mut Option<Conn>,
    main: &'a mut Option<&mut Conn>,
) -> Option<&'a mut Conn> {
    match own {
        _ if is_gone => None,
        Some(conn) => Some(conn),
        None => main.as_deref_mut(),
    }
}
