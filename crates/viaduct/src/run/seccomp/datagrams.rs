//! UDP sockets of programs, which are opened in the capture namespace, and whose datagrams are
//! carried in user space ([`crate::run::user_udp`]).

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;

use rustix::fs::{OFlags, fcntl_setfl};
use viaduct_proto::wrap::{Errno, Sockaddr, Socket, parse_bound, parse_sockaddr, wire};
use viaduct_sys::netns::capture_ns;
use viaduct_sys::seccomp::{Listener, Notification, Reply};

use super::{CONTINUE, DONE, Outcome, Supervisor, errno_of, send_reply};
use crate::run::user_udp::UserUdp;

/// Flags in the type argument of `socket`.
const CLOEXEC: i32 = OFlags::CLOEXEC.bits().cast_signed();
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

impl Supervisor {
    /// Handles `socket` for UDP, in a separate thread if the capture namespace must be opened
    /// first, which would block the supervisor.
    pub(super) fn open_udp(&self, call: &Notification, v6: bool, kind: i32) -> Outcome {
        if let Some(user_udp) = self.interposition.user_udp() {
            return Ok(Some(open(user_udp, &self.listener, call, v6, kind)));
        }
        let (listener, interposition, call) =
            (self.listener.clone(), self.interposition.clone(), *call);
        let open_udp = move || {
            let reply = match interposition.start_user_udp() {
                Some(user_udp) => open(user_udp, &listener, &call, v6, kind),
                None if interposition.rules.strict => {
                    interposition.report_refused(wire::Call::Socket, true, None, Errno::PERM);
                    Reply::Failed(Errno::PERM.0)
                }
                None => Reply::Continue,
            };
            send_reply(&listener, &call, reply);
        };
        let spawned = thread::Builder::new().name("carry".to_owned()).spawn(open_udp);
        spawned.map(|_| None).map_err(errno_of)
    }

    /// Handles `bind`: for a carried socket, the port is also bound outside the capture namespace.
    pub(super) fn bind_carried(&mut self, call: &Notification) -> Outcome {
        let Some(user_udp) = self.interposition.user_udp().cloned() else {
            return CONTINUE;
        };
        let [fd, at, size, ..] = call.arguments;
        let Ok((socket, is)) = self.duplicate(call, fd) else { return CONTINUE };
        if !self.interposition.rules.carries_of(is) || capture_ns::is_in_this_netns(&socket) {
            return CONTINUE;
        }
        let (address, length) = self.sockaddr(call, at, size)?;
        let (address, length) = is.as_sent(&address[..length]);
        let address = &address[..length];
        let family = address.first_chunk().copied().map(u16::from_ne_bytes);
        if family.map(i32::from) != Some(is.domain) {
            return CONTINUE;
        }
        // For other addresses, the kernel reports the error.
        let Sockaddr::Ip(at) = parse_bound(address) else { return CONTINUE };
        if at.is_ipv6() && !is.is_v6() {
            return CONTINUE;
        }
        user_udp.bind(&socket, is.is_v6(), at).map_err(errno_of)?;
        DONE
    }

    /// Checks the route for the `connect` of a carried socket outside the capture namespace, in
    /// which every address is reachable.
    pub(super) fn probe(&self, socket: &OwnedFd, is: Socket, address: &[u8]) -> Result<(), Errno> {
        let (Some(user_udp), Sockaddr::Ip(to)) =
            (self.interposition.user_udp(), parse_sockaddr(address))
        else {
            return Ok(());
        };
        if !self.interposition.rules.carries_of(is) || capture_ns::is_in_this_netns(socket) {
            return Ok(());
        }
        user_udp.probe(socket, to).map_err(errno_of)
    }
}

/// Opens a socket in the capture namespace for the caller.
fn open(
    user_udp: &UserUdp,
    listener: &Listener,
    call: &Notification,
    v6: bool,
    kind: i32,
) -> Reply {
    let given = user_udp.netns.datagram_socket(v6).and_then(|socket| {
        if kind & NONBLOCK != 0 {
            fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        }
        listener.give(call, socket.as_fd(), kind & CLOEXEC != 0)
    });
    given.map_or_else(|error| Reply::Failed(errno_of(error).0), |fd| Reply::Returned(fd.into()))
}
