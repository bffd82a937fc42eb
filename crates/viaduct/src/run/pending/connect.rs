//! A pending connect, and the report of its result to the program.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::Errno;
use viaduct_sys::socket::pending::Pending;
use viaduct_sys::socket::tcp;

use super::answer::Callback;
use super::sockets::{Addresses, Attempt};
use super::{Answer, Interposition};
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::PendingConnect;

/// A pending connect.
pub(super) struct InterposedConnect {
    pub(super) pending: Option<Pending>,
    pub(super) to: SocketAddr,
    pub(super) cookie: u64,
    /// Number of this attempt, which distinguishes this connect from later ones of the same socket.
    pub(super) attempt: u64,
    pub(super) interposition: Arc<Interposition>,
}

impl PendingConnect for InterposedConnect {
    fn socket_id(&self) -> Option<SocketId> {
        Some(SocketId::Cookie(self.cookie))
    }

    fn has_gone(&self) -> bool {
        !self.interposition.sockets().is_current(self.cookie, self.attempt)
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        let mut sockets = self.interposition.sockets();
        if sockets.is_current(self.cookie, self.attempt) {
            let addresses = Addresses { peer: self.to, own: Some(own), refused: None };
            sockets.addresses.set(self.cookie, addresses);
        }
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let pending = self.pending.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        self.interposition
            .rendezvous
            .bound_socket(pending.program()?.is_ipv4())
            .map(FlowSocket::from)
    }

    fn complete(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let pending = self.pending.take().ok_or(io::ErrorKind::NotConnected)?;
        // The lock is held until the attempt ends: the program cannot disconnect its socket
        // meanwhile, and connect it elsewhere.
        let mut sockets = self.interposition.sockets();
        if !sockets.is_current(self.cookie, self.attempt) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let crossing =
            pending.program().and_then(|program| tcp::connect_bound(bound_socket, program));
        if let Err(error) = crossing {
            drop(sockets);
            // The bound socket sends no SYN, so the program would wait until its own SYNs time out.
            self.pending = Some(pending);
            self.fail(Failure::Reset, Errno::CONNRESET);
            return Err(error);
        }
        // The attempt ends here, so that no further call can wait for it. If the program's connect
        // and that of the bound socket have met (TCP's simultaneous open), later calls of the
        // program find the socket connected.
        let attempt = sockets
            .end_attempt_number(self.cookie, self.attempt)
            .ok_or(io::ErrorKind::NotConnected)?;
        let callbacks = attempt.take_callbacks();
        if callbacks.is_empty() {
            return pending.crossed();
        }
        let connected = pending.finish();
        drop(sockets);
        match connected {
            Ok(socket) => {
                report_connected(callbacks, socket);
                Ok(())
            }
            Err(error) => {
                let errno = Errno(error.raw_os_error().unwrap_or(Errno::CONNRESET.0));
                callbacks.into_iter().for_each(|callback| callback(Err(errno)));
                Err(error)
            }
        }
    }

    fn refuse(&mut self, why: Failure) {
        self.fail(why, errno(why));
    }

    fn refuse_as(&mut self, why: Failure, errno: i32) {
        self.fail(why, Errno(errno));
    }
}

impl InterposedConnect {
    /// Fails the connect with `errno`.
    fn fail(&mut self, why: Failure, errno: Errno) {
        let Some(pending) = self.pending.take() else { return };
        let mut sockets = self.interposition.sockets();
        // If the attempt is not the current one, the program has given up this connect, and may
        // have begun another on the same socket.
        let Some(attempt) = sockets.end_attempt_number(self.cookie, self.attempt) else { return };
        let callbacks = attempt.take_callbacks();
        let reported = if callbacks.is_empty() {
            // The kernel itself reports `ECONNREFUSED`, so it is not stored.
            let refused = Some(errno).filter(|errno| *errno != Errno::CONNREFUSED);
            sockets.addresses.set(self.cookie, Addresses { peer: self.to, own: None, refused });
            match why {
                // The program's SYNs are dropped until the kernel fails the connect with
                // `ETIMEDOUT`.
                Failure::TimedOut => Ok(()),
                _ => pending.refuse(&self.interposition.closed),
            }
        } else {
            sockets.addresses.remove(self.cookie);
            pending.forget()
        };
        drop(sockets);
        callbacks.into_iter().for_each(|callback| callback(Err(errno)));
        if let Err(error) = reported {
            debug!("cannot report a failed connect to a program: {error}");
        }
    }
}

impl Attempt {
    /// Takes the callbacks of the calls that still wait for this attempt.
    fn take_callbacks(self) -> Vec<Callback> {
        self.answers.iter().filter_map(Answer::take).collect()
    }
}

/// Reports to the waiting calls that `socket`, the program's socket, is connected.
fn report_connected(mut callbacks: Vec<Callback>, socket: OwnedFd) {
    let last = callbacks.pop();
    for callback in callbacks {
        let copy = socket.try_clone().map_err(|_| Errno::MFILE);
        callback(copy);
    }
    if let Some(callback) = last {
        callback(Ok(socket));
    }
}

impl Drop for InterposedConnect {
    /// Fails the connect with `ECONNRESET` if it is still pending.
    fn drop(&mut self) {
        self.refuse(Failure::Reset);
    }
}

impl std::fmt::Debug for InterposedConnect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InterposedConnect")
            .field("pending", &self.pending)
            .field("to", &self.to)
            .finish()
    }
}

/// Maps a failure to the error of a direct connect, or to the nearest one for failures that only a
/// chain has (`Denied`, `Full`).
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
