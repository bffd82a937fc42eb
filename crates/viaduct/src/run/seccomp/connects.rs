//! `connect` calls: flows of the master, direct connects, and refused connects.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::AddressFamily;
use viaduct_proto::wrap::{Errno, LONGEST, Sockaddr, Socket, Verdict, parse_sockaddr, wire};
use viaduct_sys::netns::capture_ns::is_in_this_netns;
use viaduct_sys::seccomp::Notification;
use viaduct_sys::socket::pending::{connect_for, is_blocking};
use viaduct_sys::socket::tcp;

use super::arguments::Span;
use super::{CONTINUE, DONE, Outcome, Supervisor, cookie, errno_of, reply_now};
use crate::run::daemons::{self, Kind};

impl Supervisor {
    /// Handles `connect`.
    pub(super) fn connect(&mut self, call: &Notification) -> Outcome {
        let [fd, at, size, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let (sockaddr, length) = self.sockaddr(call, at, size)?;
        if !is.is_of_ip() {
            self.refuse_daemons(call, is, (at, size))?;
            // Data of such a socket does not leave this host. The kernel makes the call, because it
            // resolves a path in the program's mount namespace.
            return CONTINUE;
        }
        match self.interposition.rules.connect(is, &sockaddr[..length]) {
            Verdict::Pass => {
                self.probe(&socket, is, &sockaddr[..length])?;
                if parse_sockaddr(&sockaddr[..length]) == Sockaddr::None {
                    self.interposition.disconnected(cookie(&socket)?);
                }
                let outcome = self.connect_direct(call, &socket, &sockaddr[..length]);
                if let (Ok(_) | Err(Errno::INPROGRESS), Sockaddr::Ip(to)) =
                    (&outcome, parse_sockaddr(&sockaddr[..length]))
                    && !is.is_of_datagrams()
                {
                    self.interposition.count_direct(to);
                }
                outcome
            }
            Verdict::Refuse(errno) => Err(self.refuse(wire::Call::Connect, is, &sockaddr, errno)),
            Verdict::Resolve(server) => {
                let at = self.resolver(is, server)?;
                self.interposition.set_peer(cookie(&socket)?, server);
                self.connect_direct(call, &socket, &at)
            }
            Verdict::Divert(_) if self.interposition.offload.is_some() => {
                pace(&socket, self.interposition.offload)?;
                self.connect_direct(call, &socket, &sockaddr[..length])
            }
            Verdict::Divert(_) if !is_in_this_netns(&socket) => {
                // A socket in use is probably in the capture namespace: a listener of a program, or
                // a connection accepted there. A socket of any other namespace cannot reach the
                // rendezvous.
                if tcp::is_in_use(&socket) {
                    return Err(Errno::ISCONN);
                }
                Err(self.refuse(wire::Call::Connect, is, &sockaddr, Errno::PERM))
            }
            Verdict::Divert(to) => self.divert(call, socket, is, to),
        }
    }

    /// Turns a connect into a flow to `to`.
    fn divert(
        &mut self,
        call: &Notification,
        socket: OwnedFd,
        is: Socket,
        to: SocketAddr,
    ) -> Outcome {
        if !is_blocking(&socket).map_err(errno_of)? {
            return Ok(reply_now(self.interposition.begin(socket, to, None)));
        }
        let answer = self.deferred_answer(call, &socket, None);
        let ours = socket.try_clone().map_err(errno_of)?;
        match self.interposition.begin(socket, to, Some(answer.clone())) {
            None => {
                self.pending_connects.push_back((*call, answer));
                Ok(None)
            }
            // The connect in progress is not, or is no longer, a flow of this run.
            Some(Errno::ALREADY) => {
                let at = self.interposition.rendezvous.at(to.is_ipv4()).ok_or(Errno::NETUNREACH)?;
                let (sockaddr, length) = is.sockaddr(at);
                self.complete(call, &ours, &sockaddr[..length])
            }
            now => Ok(reply_now(now)),
        }
    }

    /// Refuses connects to daemons that would act for the program and thus bypass its chain.
    fn refuse_daemons(
        &mut self,
        call: &Notification,
        is: Socket,
        sockaddr: Span,
    ) -> Result<(), Errno> {
        let (names, strict) =
            (self.interposition.remote_names.is_some(), self.interposition.rules.strict);
        if is.domain != i32::from(AddressFamily::UNIX.as_raw()) || !names && !strict {
            return Ok(());
        }
        // The path follows the address family.
        let sockaddr = self.read_up_to(call, sockaddr, LONGEST)?;
        let path = sockaddr.get(2..).unwrap_or_default();
        let base = PathBuf::from(format!("/proc/{}", call.thread));
        // The program then falls back to DNS queries over UDP.
        if names && daemons::is_daemon_socket(Kind::Resolver, path, &base) {
            return Err(Errno::CONNREFUSED);
        }
        if strict && daemons::is_daemon_socket(Kind::Launcher, path, &base) {
            self.interposition.report_refused_daemon(path);
            return Err(Errno::CONNREFUSED);
        }
        Ok(())
    }

    /// Returns the address at which this process answers queries to `server`, as a socket address
    /// of the socket's family.
    pub(super) fn resolver(&self, is: Socket, server: SocketAddr) -> Result<Vec<u8>, Errno> {
        let [v4, v6] =
            self.interposition.remote_names.as_ref().map(|of| of.at()).unwrap_or_default();
        let at = if server.is_ipv4() { v4 } else { v6 };
        let (bytes, length) = is.sockaddr(at.ok_or(Errno::NETUNREACH)?);
        Ok(bytes[..length].to_vec())
    }

    /// Connects `socket` directly, as the program's own call would.
    fn connect_direct(&self, call: &Notification, socket: &OwnedFd, sockaddr: &[u8]) -> Outcome {
        match connect_for(socket, sockaddr).map_err(errno_of) {
            Ok(()) => DONE,
            // `EALREADY` means that the program repeats an interrupted connect.
            Err(Errno::INPROGRESS | Errno::ALREADY) if is_blocking(socket).map_err(errno_of)? => {
                self.complete(call, socket, sockaddr)
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Limits the socket to `rate` bytes per second; 0 sets no limit.
pub(super) fn pace(socket: &OwnedFd, rate: Option<u64>) -> Result<(), Errno> {
    match rate {
        None | Some(0) => Ok(()),
        Some(rate) => tcp::pace(socket, rate).map_err(errno_of),
    }
}
