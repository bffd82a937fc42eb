//! A pending connect: the result that its program gets, and when.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::Errno;
use viaduct_sys::socket::pending::Pending;
use viaduct_sys::socket::tcp;

use super::answer::Say;
use super::known::{Attempt, Known};
use super::{Answer, Common};
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::PendingConnect;

/// A pending connect.
pub(super) struct Waiting {
    pub(super) pending: Option<Pending>,
    pub(super) to: SocketAddr,
    pub(super) cookie: u64,
    /// Number of the attempt among the connects of its socket.
    pub(super) attempt: u64,
    pub(super) common: Arc<Common>,
}

impl PendingConnect for Waiting {
    fn socket_id(&self) -> Option<SocketId> {
        Some(SocketId::Cookie(self.cookie))
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        self.common
            .names()
            .set(self.cookie, Known { peer: self.to, own: Some(own), refused: None });
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let pending = self.pending.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        self.common.meeting.bound_socket(pending.program()?.is_ipv4()).map(FlowSocket::from)
    }

    fn complete(&mut self, place: &TcpStream) -> io::Result<()> {
        let pending = self.pending.take().ok_or(io::ErrorKind::NotConnected)?;
        let crossing = pending.program().and_then(|program| tcp::connect_bound(place, program));
        // Calls from now on find the socket connected.
        let mut names = self.common.names();
        let attempt = names.end_of(self.cookie, self.attempt).ok_or(io::ErrorKind::NotConnected)?;
        let waiting = attempt.waiting();
        if waiting.is_empty() {
            return crossing.and_then(|()| pending.crossed());
        }
        let met = crossing.and_then(|()| pending.finish());
        drop(names);
        match met {
            Ok(socket) => {
                tell_connected(waiting, socket);
                Ok(())
            }
            Err(error) => {
                let errno = Errno(error.raw_os_error().unwrap_or(Errno::CONNRESET.0));
                waiting.into_iter().for_each(|say| say(Err(errno)));
                Err(error)
            }
        }
    }

    fn refuse(&mut self, why: Failure) {
        self.give_up(why, errno(why));
    }

    fn refuse_as(&mut self, why: Failure, errno: i32) {
        self.give_up(why, Errno(errno));
    }
}

impl Waiting {
    /// Fails the connect with `errno`.
    fn give_up(&mut self, why: Failure, errno: Errno) {
        let Some(pending) = self.pending.take() else { return };
        let mut names = self.common.names();
        // Its program has given it up, and may have begun another with the same socket.
        let Some(attempt) = names.end_of(self.cookie, self.attempt) else { return };
        let waiting = attempt.waiting();
        let told = if waiting.is_empty() {
            // The kernel reports this one by itself.
            let refused = Some(errno).filter(|errno| *errno != Errno::CONNREFUSED);
            names.set(self.cookie, Known { peer: self.to, own: None, refused });
            match why {
                // Its SYNs are dropped: it gives up at its own timeout.
                Failure::TimedOut => Ok(()),
                _ => pending.refuse(&self.common.closed),
            }
        } else {
            names.forget(self.cookie);
            pending.forget()
        };
        drop(names);
        waiting.into_iter().for_each(|say| say(Err(errno)));
        if let Err(error) = told {
            debug!("tell a program: {error}");
        }
    }
}

impl Attempt {
    /// Takes the answers of the calls that still wait for it.
    fn waiting(self) -> Vec<Say> {
        self.answers.iter().filter_map(Answer::take).collect()
    }
}

/// Answers the waiting calls: `socket`, their program's, is connected.
fn tell_connected(mut waiting: Vec<Say>, socket: OwnedFd) {
    let last = waiting.pop();
    for say in waiting {
        let copy = socket.try_clone().map_err(|_| Errno::MFILE);
        say(copy);
    }
    if let Some(say) = last {
        say(Ok(socket));
    }
}

impl Drop for Waiting {
    /// Resets the connect: nothing carries it any more.
    fn drop(&mut self) {
        self.refuse(Failure::Reset);
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("pending", &self.pending).field("to", &self.to).finish()
    }
}

/// Error that the program would get from the far end itself.
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
