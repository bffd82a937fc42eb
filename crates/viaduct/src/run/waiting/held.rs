//! A connect that waits: what its program hears, and when.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::Errno;
use viaduct_sys::pending::Pending;
use viaduct_sys::tcp;

use super::known::Known;
use super::{Answer, Common, Say};
use crate::proxy::aware::Whose;
use crate::proxy::calls::Held;
use crate::proxy::conn::Conn;

/// A connect.
pub(super) struct Waiting {
    pub(super) pending: Option<Pending>,
    pub(super) to: SocketAddr,
    pub(super) cookie: u64,
    /// `None` if the program does not wait, but looks at its socket.
    pub(super) answer: Option<Answer>,
    pub(super) common: Arc<Common>,
}

impl Held for Waiting {
    fn whose(&self) -> Option<Whose> {
        Some(Whose::Cookie(self.cookie))
    }

    fn named(&mut self, own: SocketAddr) {
        self.common
            .names()
            .set(self.cookie, Known { peer: self.to, own: Some(own), refused: None });
    }

    fn place(&mut self) -> io::Result<Conn<TcpStream>> {
        let pending = self.pending.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        self.common.meeting.place(pending.program()?.is_ipv4()).map(Conn::from)
    }

    fn meet(&mut self, place: &TcpStream) -> io::Result<()> {
        let pending = self.pending.take().ok_or(io::ErrorKind::NotConnected)?;
        let met = pending
            .program()
            .and_then(|program| tcp::connect_bound(place, program))
            .and_then(|()| pending.finish());
        let answer = self.answer();
        match met {
            Ok(socket) => {
                if let Some(answer) = answer {
                    answer(Ok(socket));
                }
                Ok(())
            }
            Err(error) => {
                if let Some(answer) = answer {
                    answer(Err(Errno(error.raw_os_error().unwrap_or(Errno::CONNRESET.0))));
                }
                Err(error)
            }
        }
    }

    fn refuse(&mut self, why: Failure) {
        let Some(pending) = self.pending.take() else { return };
        let answer = self.answer();
        let mut names = self.common.names();
        match &answer {
            Some(_) => names.forget(self.cookie),
            None => {
                let refused = Some(errno(why));
                names.set(self.cookie, Known { peer: self.to, own: None, refused });
            }
        }
        drop(names);
        let told = match answer {
            // Its SYNs vanish: it gives up when it would have.
            None if why == Failure::TimedOut => Ok(()),
            None => pending.refuse(&self.common.closed),
            Some(answer) => {
                let forgotten = pending.forget();
                answer(Err(errno(why)));
                forgotten
            }
        };
        if let Err(error) = told {
            debug!("tell a program: {error}");
        }
    }
}

impl Waiting {
    /// What answers a program that still waits.
    fn answer(&mut self) -> Option<Say> {
        self.answer.take()?.take()
    }
}

impl Drop for Waiting {
    /// Nobody carries it any more.
    fn drop(&mut self) {
        self.refuse(Failure::Reset);
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("pending", &self.pending).field("to", &self.to).finish()
    }
}

/// What the far end would have made the program hear.
fn errno(why: Failure) -> Errno {
    match why {
        Failure::Refused => Errno::CONNREFUSED,
        Failure::Unreachable => Errno::HOSTUNREACH,
        Failure::TimedOut => Errno::TIMEDOUT,
        Failure::Reset => Errno::CONNRESET,
        Failure::Denied => Errno::PERM,
        Failure::Full => Errno::MFILE,
    }
}
