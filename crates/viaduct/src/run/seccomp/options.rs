//! Socket options of programs, which are mirrored to the network connection of the flow.
//!
//! The supervisor sets the options on a duplicate of the socket, so that their value is known when
//! the program continues. Options that need a privilege that the program lacks are left to the
//! kernel, which refuses them. To `getsockopt`, the handlers of the flow may answer with a value
//! other than the socket's.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use viaduct_proto::wrap::Errno;
use viaduct_sys::netns::capture_ns::is_in_this_netns;
use viaduct_sys::seccomp::{Listener, Notification, Reply, Task};
use viaduct_sys::socket::pending::set_option_for;
use viaduct_sys::socket::tcp::Mirrored;

use super::{CONTINUE, DONE, Outcome, Supervisor, cookie, errno_of, send_reply};
use crate::engine::aware::SocketId;
use crate::run::aware::ends_of;

/// Maximum size of a value that is mirrored, in bytes.
const MAX_VALUE: usize = 16;
/// Bit of `CAP_NET_ADMIN`, which allows a program to set marks and all priorities.
const NET_ADMIN: u64 = 1 << 12;

impl Supervisor {
    /// Handles `setsockopt` of an option that is mirrored.
    pub(super) fn mirror(&mut self, call: &Notification) -> Outcome {
        let [fd, level, name, at, size, _] = call.arguments;
        let (level, name) = (level as i32, name as i32);
        let (socket, is) = self.duplicate(call, fd)?;
        let size = usize::try_from(size as i32).ok().filter(|size| (1..=MAX_VALUE).contains(size));
        let (Some(size), true) = (size, self.interposition.mirrors_of(is)) else {
            return CONTINUE;
        };
        if Mirrored::is_privileged(level, name) && !may_configure_network(call.thread) {
            return CONTINUE;
        }
        let mut value = [0; MAX_VALUE];
        if self.read(call, at, &mut value[..size])? < size {
            return Err(Errno::FAULT);
        }
        set_option_for(&socket, level, name, &value[..size]).map_err(errno_of)?;
        let (cookie, socket_id) = (cookie(&socket)?, id_of(&socket)?);
        self.interposition
            .mirror(cookie, socket_id, |mirrored| mirrored.read(&socket, level, name));
        DONE
    }

    /// Handles `getsockopt` of an option that is mirrored, to which the handlers of the flow may
    /// answer.
    pub(super) fn handlers_option(&mut self, call: &Notification) -> Outcome {
        let [fd, level, name, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let socket_id = id_of(&socket)?.filter(|_| self.interposition.mirrors_of(is));
        let Some(socket_id) = socket_id else { return CONTINUE };
        let (listener, task) = (self.listener.clone(), self.task(call)?);
        let query = OptionQuery { listener, task, call: *call, reply: Reply::Continue };
        let option = (level as i32, name as i32);
        self.interposition.getsockopt(socket_id, option, |value| query.answer(value));
        Ok(None)
    }
}

/// A `getsockopt` that waits for the handlers. The kernel answers the call if the handlers do not
/// answer, including when this query is dropped.
struct OptionQuery {
    listener: Arc<Listener>,
    task: Arc<Task>,
    call: Notification,
    reply: Reply,
}

impl OptionQuery {
    fn answer(mut self, value: Option<i32>) {
        let Some(value) = value else { return };
        self.reply = match write_option(&self.listener, &self.task, &self.call, value) {
            Ok(()) => Reply::Returned(0),
            Err(errno) => Reply::Failed(errno.0),
        };
    }
}

impl Drop for OptionQuery {
    fn drop(&mut self) {
        send_reply(&self.listener, &self.call, self.reply);
    }
}

/// Returns whether the option of a `getsockopt` or `setsockopt` is mirrored.
pub(super) fn is_mirrored(call: &Notification) -> bool {
    Mirrored::has(call.arguments[1] as i32, call.arguments[2] as i32)
}

/// Returns an option's value to the caller of `getsockopt`.
pub(super) fn write_option(
    listener: &Listener,
    task: &Task,
    call: &Notification,
    value: i32,
) -> Result<(), Errno> {
    let [_, _, _, at, size, _] = call.arguments;
    let mut room = [0; 4];
    listener.read(call, task, size, &mut room).map_err(errno_of)?;
    let length = (u32::from_ne_bytes(room) as usize).min(4);
    listener.write(call, task, at, &value.to_ne_bytes()[..length]).map_err(errno_of)?;
    listener.write(call, task, size, &(length as u32).to_ne_bytes()).map_err(errno_of)
}

/// Returns the ID of the flow of a program's socket, if the socket may have a flow.
fn id_of(socket: &OwnedFd) -> Result<Option<SocketId>, Errno> {
    if is_in_this_netns(socket) {
        return Ok(Some(SocketId::Cookie(cookie(socket)?)));
    }
    // A socket that the program has accepted is in the capture namespace.
    Ok(ends_of(socket))
}

/// Returns whether a thread may configure this network: whether it has `CAP_NET_ADMIN` in the user
/// namespace of this process.
fn may_configure_network(thread: u32) -> bool {
    let users = |whose: &str| fs::read_link(format!("/proc/{whose}/ns/user")).ok();
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let ours = users("self");
    rights & NET_ADMIN != 0 && ours.is_some() && users(&thread.to_string()) == ours
}
