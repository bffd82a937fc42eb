//! Direct sends of datagrams, which the supervisor makes on a duplicate of the socket, with the
//! checked copies of the arguments. If the call continued in the kernel instead, the kernel would
//! read the address and the descriptor again.

use std::io;
use std::os::fd::OwnedFd;

use viaduct_proto::wrap::Errno;
use viaduct_sys::seccomp::{Listener, Notification, Reply, Task};
use viaduct_sys::socket::pending::is_blocking;
use viaduct_sys::socket::sendmsg::{Message, sendmsg};

use super::arguments::Header;
use super::{Outcome, Supervisor, errno_of};

/// Maximum size of a datagram, in bytes.
const MAX_DATA: usize = 65_535;
/// Maximum size of control messages, in bytes.
const MAX_CONTROL: usize = 4096;
/// Maximum number of buffers in a message, as in the kernel.
const MAX_PIECES: u64 = 1024;
/// Size of a `struct iovec`, in bytes.
const IOVEC: u64 = 16;
pub(super) const DONTWAIT: i32 = 0x40;

/// Messages to send for a call, and the socket.
pub(super) struct Sending {
    pub(super) socket: OwnedFd,
    pub(super) flags: i32,
    pub(super) messages: Vec<Message>,
    /// Addresses at which `sendmmsg` stores the number of bytes of each message.
    pub(super) lengths: Option<Vec<u64>>,
}

impl Supervisor {
    /// Reads the contents of a message.
    pub(super) fn copy(&mut self, call: &Notification, header: &Header) -> Result<Message, Errno> {
        let task = self.task(call)?;
        let (pieces, count) = header.pieces;
        if count > MAX_PIECES {
            return Err(Errno::MSGSIZE);
        }
        let mut data = Vec::new();
        for n in 0..count {
            let mut piece = [0; IOVEC as usize];
            read_all(&task, pieces + n * IOVEC, &mut piece)?;
            let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| piece[at + n]));
            read_more(&task, (word(0), word(8)), &mut data)?;
        }
        let (at, length) = header.control;
        let mut control = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(MAX_CONTROL)];
        if at == 0 {
            control.clear();
        }
        read_all(&task, at, &mut control)?;
        self.listener.check_waits(call).map_err(errno_of)?;
        Ok(Message { sockaddr: Vec::new(), data, control })
    }

    /// Reads the contents of a `sendto`.
    pub(super) fn copy_plain(
        &mut self,
        call: &Notification,
        data: (u64, u64),
    ) -> Result<Message, Errno> {
        let mut message = Message::default();
        read_more(&*self.task(call)?, data, &mut message.data)?;
        self.listener.check_waits(call).map_err(errno_of)?;
        Ok(message)
    }

    /// Sends messages as soon as the socket has room. If there is no room and the call does not
    /// block, fails with `EAGAIN`.
    pub(super) fn send_all(&mut self, call: &Notification, sending: Sending) -> Outcome {
        let task = self.task(call)?;
        let Sending { socket, .. } = &sending;
        if let Some(reply) = sending.attempt(socket, &self.listener, &task, call) {
            return Ok(Some(reply));
        }
        if sending.flags & DONTWAIT != 0 || !is_blocking(socket).map_err(errno_of)? {
            return Err(Errno::AGAIN);
        }
        let own = socket.try_clone().map_err(errno_of)?;
        let (listener, caller) = (self.listener.clone(), *call);
        self.retry(call, own, Errno::AGAIN, move |socket| {
            sending.attempt(socket, &listener, &task, &caller)
        })
    }
}

impl Sending {
    /// Sends as many messages as the socket has room for. Returns `None` if there is no room for
    /// the first one.
    fn attempt(
        &self,
        socket: &OwnedFd,
        listener: &Listener,
        task: &Task,
        call: &Notification,
    ) -> Option<Reply> {
        let mut sent = 0;
        for (n, message) in self.messages.iter().enumerate() {
            let bytes = match sendmsg(socket, message, self.flags) {
                Ok(bytes) => bytes,
                Err(error) if n == 0 && error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if n == 0 => return Some(Reply::Failed(errno_of(error).0)),
                Err(_) => break,
            };
            let Some(lengths) = &self.lengths else { return Some(Reply::Returned(bytes as i64)) };
            let length = (bytes as u32).to_ne_bytes();
            if let Err(error) = listener.write(call, task, lengths[n], &length) {
                return Some(Reply::Failed(errno_of(error).0));
            }
            sent += 1;
        }
        Some(Reply::Returned(sent))
    }
}

/// Appends bytes of the program's memory to `data`, up to one byte more than the maximum size of a
/// datagram. With that byte, the kernel rejects the datagram as too long.
fn read_more(task: &Task, (at, length): (u64, u64), data: &mut Vec<u8>) -> Result<(), Errno> {
    let old = data.len();
    let room = (MAX_DATA + 1).saturating_sub(old);
    data.resize(old + usize::try_from(length).unwrap_or(usize::MAX).min(room), 0);
    read_all(task, at, &mut data[old..])
}

fn read_all(task: &Task, at: u64, to: &mut [u8]) -> Result<(), Errno> {
    if to.is_empty() {
        return Ok(());
    }
    match task.read(at, to).map_err(errno_of)? {
        read if read == to.len() => Ok(()),
        _ => Err(Errno::FAULT),
    }
}
