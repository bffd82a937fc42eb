//! Arguments of a call: data in the program's memory, and descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use viaduct_proto::wrap::{Errno, LONGEST, SOCKADDR, Socket};
use viaduct_sys::seccomp::{Notification, Task};

use super::{Supervisor, errno_of};
use crate::run::pending::socket_of;

/// Maximum number of threads in [`Supervisor::tasks`].
const MAX_TASKS: usize = 1024;
/// Size of a `struct msghdr`, in bytes.
pub(super) const MSGHDR: usize = 56;

/// Address of an argument in the program's memory, and its length.
pub(super) type Span = (u64, u64);

/// Contents of a `struct msghdr`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// The destination address.
    pub(super) name: Span,
    /// Address and number of the `struct iovec`s.
    pub(super) pieces: (u64, u64),
    /// The control messages.
    pub(super) control: Span,
    /// The first buffer.
    pub(super) first: Span,
}

impl Supervisor {
    /// Reads the header of a message.
    pub(super) fn message(&mut self, call: &Notification, header: u64) -> Result<Header, Errno> {
        let mut bytes = [0; MSGHDR];
        self.read(call, header, &mut bytes)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]));
        let name = (word(0), word(8) & 0xffff_ffff);
        let (pieces, control) = ((word(16), word(24)), (word(32), word(40)));
        let mut piece = [0; 16];
        if pieces.1 == 0 || self.read(call, pieces.0, &mut piece).is_err() {
            return Ok(Header { name, pieces, control, first: (0, 0) });
        }
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| piece[at + n]));
        Ok(Header { name, pieces, control, first: (word(0), word(8)) })
    }

    /// Reads the socket address of a call, up to the length of an IPv6 socket address.
    pub(super) fn sockaddr(
        &mut self,
        call: &Notification,
        at: u64,
        size: u64,
    ) -> Result<([u8; SOCKADDR], usize), Errno> {
        let mut bytes = [0; SOCKADDR];
        let size =
            Some(size as u32 as usize).filter(|&size| size <= LONGEST).ok_or(Errno::INVAL)?;
        let read = self.read(call, at, &mut bytes[..SOCKADDR.min(size)])?;
        Ok((bytes, read))
    }

    /// Reads at most `most` bytes of a span.
    pub(super) fn read_up_to(
        &mut self,
        call: &Notification,
        (at, length): Span,
        most: usize,
    ) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; most.min(length as usize)];
        let read = self.read(call, at, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Reads the program's memory. Returns the number of bytes read.
    pub(super) fn read(
        &mut self,
        call: &Notification,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Errno> {
        let task = self.task(call)?;
        self.listener.read(call, &task, at, bytes).map_err(errno_of)
    }

    /// Writes to the program's memory.
    pub(super) fn write(
        &mut self,
        call: &Notification,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let task = self.task(call)?;
        self.listener.write(call, &task, at, bytes).map_err(errno_of)
    }

    /// Reads a length, such as a `socklen_t`.
    pub(super) fn read_length(&mut self, call: &Notification, at: u64) -> Result<usize, Errno> {
        let mut length = [0; 4];
        self.read(call, at, &mut length)?;
        Ok(u32::from_ne_bytes(length) as usize)
    }

    pub(super) fn duplicate(
        &mut self,
        call: &Notification,
        fd: u64,
    ) -> Result<(OwnedFd, Socket), Errno> {
        let fd = fd as i32;
        let socket = match self.task(call)?.duplicate(fd) {
            // The thread ID was reused.
            Err(error) if error.raw_os_error() == Some(3) => {
                self.tasks.remove(&call.thread);
                self.task(call)?.duplicate(fd)
            }
            other => other,
        };
        // The thread ID may have been reused. A descriptor of another thread must not be used.
        self.listener.check_waits(call).map_err(errno_of)?;
        let socket = socket.map_err(errno_of)?;
        let is = socket_of(&socket).map_err(errno_of)?;
        Ok((socket, is))
    }

    pub(super) fn task(&mut self, call: &Notification) -> Result<Arc<Task>, Errno> {
        if let Some(task) = self.tasks.get(&call.thread) {
            return Ok(task.clone());
        }
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.clear();
        }
        let task = Arc::new(Task::open(call.thread).map_err(errno_of)?);
        if task.is_exact() {
            self.tasks.insert(call.thread, task.clone());
        }
        Ok(task)
    }
}
