//! Socket options that are mirrored to the connection that stands for a program's own.
//!
//! The options are set here, on a duplicate of the socket, so that their value is known when
//! the program continues. Options that need a privilege are left to the kernel unless the
//! program has it.

use std::fs;

use viaduct_proto::wrap::Errno;
use viaduct_sys::netns::capture_ns::is_in_this_netns;
use viaduct_sys::seccomp::{Notification, Reply};
use viaduct_sys::socket::pending::set_option_for;
use viaduct_sys::socket::tcp::Mirrored;

use super::{Outcome, Supervisor, cookie, errno_of};
use crate::engine::aware::SocketId;
use crate::run::aware::ends_of;

/// Bytes of a value that are read, at most.
const MAX_VALUE: usize = 16;
/// `CAP_NET_ADMIN`, by which a program may set marks and all priorities.
const NET_ADMIN: u64 = 1 << 12;

impl Supervisor {
    /// Handles `setsockopt` of an option that is mirrored.
    pub(super) fn mirror(&mut self, call: &Notification) -> Outcome {
        let [fd, level, name, at, size, _] = call.arguments;
        let (level, name) = (level as i32, name as i32);
        let (socket, is) = self.duplicate(call, fd)?;
        let size = usize::try_from(size as i32).ok().filter(|size| (1..=MAX_VALUE).contains(size));
        let (Some(size), true) = (size, self.interposition.mirrors_of(is)) else {
            return Ok(Some(Reply::Continue));
        };
        if Mirrored::is_privileged(level, name) && !may_configure_network(call.thread) {
            return Ok(Some(Reply::Continue));
        }
        let mut value = [0; MAX_VALUE];
        let task = self.task(call)?;
        let read = self.listener.read(call, &task, at, &mut value[..size]).map_err(errno_of)?;
        if read < size {
            return Err(Errno::FAULT);
        }
        set_option_for(&socket, level, name, &value[..size]).map_err(errno_of)?;
        let cookie = cookie(&socket)?;
        let socket_id = if is_in_this_netns(&socket) {
            Some(SocketId::Cookie(cookie))
        } else {
            // A socket that the program has accepted is in the capture namespace.
            ends_of(&socket)
        };
        self.interposition
            .mirror(cookie, socket_id, |mirrored| mirrored.read(&socket, level, name));
        Ok(Some(Reply::Returned(0)))
    }
}

/// Returns whether a thread may configure this network. Its capabilities must be those of this
/// process's user namespace.
fn may_configure_network(thread: u32) -> bool {
    let users = |whose: &str| fs::read_link(format!("/proc/{whose}/ns/user")).ok();
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let ours = users("self");
    rights & NET_ADMIN != 0 && ours.is_some() && users(&thread.to_string()) == ours
}
