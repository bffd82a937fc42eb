//! Instance lock: a name that one process of a network namespace at a time can hold. It is an
//! abstract Unix socket, of which the kernel has one set per network namespace, and is released
//! when the process ends in any way.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A locked name, released on drop.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    _socket: UnixDatagram,
}

impl InstanceLock {
    /// Locks `name` in the calling thread's network namespace; `None` if another process has
    /// it.
    pub(crate) fn take(name: &str) -> io::Result<Option<InstanceLock>> {
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Ok(Some(InstanceLock { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_claims_until_it_is_dropped() {
        let take = || InstanceLock::take("viaduct_claim_test").unwrap();
        let first = take();
        assert!(first.is_some() && take().is_none());
        drop(first);
        assert!(take().is_some());
    }
}
