//! Instance lock: a name that only one process of a network namespace can hold at a time. The lock
//! is an abstract Unix socket, whose names are per network namespace. The kernel releases the lock
//! when the process ends, even by a crash.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A locked name, released on drop.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    socket: UnixDatagram,
}

impl InstanceLock {
    /// Locks `name` in the calling thread's network namespace; `None` if the name is already
    /// locked.
    pub(crate) fn take(name: &str) -> io::Result<Option<InstanceLock>> {
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Ok(Some(InstanceLock { socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes over the lock of another process, which has sent the lock's descriptor. The name stays
    /// locked until both processes have dropped the lock.
    pub(crate) fn inherited(socket: OwnedFd) -> InstanceLock {
        InstanceLock { socket: socket.into() }
    }

    /// Returns the descriptor, for [`InstanceLock::inherited`].
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_locked_until_its_lock_is_dropped() {
        let take = || InstanceLock::take("viaduct_claim_test").unwrap();
        let first = take();
        assert!(first.is_some() && take().is_none());
        drop(first);
        assert!(take().is_some());
    }
}
