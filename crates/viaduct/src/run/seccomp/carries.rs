//! UDP sockets of programs: they are opened in the capture namespace, and their datagrams are
//! carried ([`crate::run::carried`]).

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;

use rustix::fs::{OFlags, fcntl_setfl};
use viaduct_proto::wrap::{Errno, Sockaddr, Socket, parse_bound, parse_sockaddr, wire};
use viaduct_sys::netns::capture_ns;
use viaduct_sys::seccomp::{Listener, Notification, Reply};

use super::{Outcome, Supervisor, number, say};
use crate::run::carried::Carried;

/// Flags of a socket's kind.
const CLOEXEC: i32 = OFlags::CLOEXEC.bits().cast_signed();
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

impl Supervisor {
    /// Handles `socket` of UDP. In a thread if the capture namespace is to be opened, which
    /// takes a moment.
    pub(super) fn carry(&self, call: &Notification, v6: bool, kind: i32) -> Outcome {
        if let Some(carried) = self.common.carried() {
            return Ok(Some(open(carried, &self.listener, call, v6, kind)));
        }
        let (listener, common, call) = (self.listener.clone(), self.common.clone(), *call);
        let carry = move || {
            let reply = match common.carry() {
                Some(carried) => open(carried, &listener, &call, v6, kind),
                None if common.rules.strict => {
                    common.refused(wire::Call::Socket, true, None, Errno::PERM);
                    Reply::Failed(Errno::PERM.0)
                }
                None => Reply::Continue,
            };
            say(&listener, &call, reply);
        };
        let begun = thread::Builder::new().name("carry".to_owned()).spawn(carry);
        begun.map(|_| None).map_err(number)
    }

    /// Handles `bind`: the port of a carried socket is bound outside too.
    pub(super) fn bind_carried(&mut self, call: &Notification) -> Outcome {
        let Some(carried) = self.common.carried().cloned() else {
            return Ok(Some(Reply::Continue));
        };
        let [fd, at, size, ..] = call.arguments;
        let Ok((socket, is)) = self.duplicate(call, fd) else { return Ok(Some(Reply::Continue)) };
        if !self.common.rules.carries_of(is) || capture_ns::is_in_this_netns(&socket) {
            return Ok(Some(Reply::Continue));
        }
        let (address, length) = self.sockaddr(call, at, size)?;
        let (address, length) = is.as_sent(&address[..length]);
        let address = &address[..length];
        let family = address.first_chunk().copied().map(u16::from_ne_bytes);
        if family.map(i32::from) != Some(is.domain) {
            return Ok(Some(Reply::Continue));
        }
        // The kernel reports the error of another address.
        let Sockaddr::Ip(at) = parse_bound(address) else { return Ok(Some(Reply::Continue)) };
        if at.is_ipv6() && !is.is_v6() {
            return Ok(Some(Reply::Continue));
        }
        carried.bind(&socket, is.is_v6(), at).map_err(number)?;
        Ok(Some(Reply::Returned(0)))
    }

    /// Handles `connect` of a socket in the capture namespace. Every address is reachable in
    /// there, so that the route is looked up outside.
    pub(super) fn probe(&self, socket: &OwnedFd, is: Socket, address: &[u8]) -> Result<(), Errno> {
        let (Some(carried), Sockaddr::Ip(to)) = (self.common.carried(), parse_sockaddr(address))
        else {
            return Ok(());
        };
        if !self.common.rules.carries_of(is) || capture_ns::is_in_this_netns(socket) {
            return Ok(());
        }
        carried.probe(socket, to).map_err(number)
    }
}

/// Opens a socket in the capture namespace for the caller.
fn open(carried: &Carried, listener: &Listener, call: &Notification, v6: bool, kind: i32) -> Reply {
    let given = carried.socket(v6).and_then(|socket| {
        if kind & NONBLOCK != 0 {
            fcntl_setfl(&socket, OFlags::NONBLOCK)?;
        }
        listener.give(call, socket.as_fd(), kind & CLOEXEC != 0)
    });
    given.map_or_else(|error| Reply::Failed(number(error).0), |fd| Reply::Returned(fd.into()))
}
