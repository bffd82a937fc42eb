//! A name that one process of a network namespace may have at a time, until it ends, however it
//! ends: an abstract Unix socket, which the kernel keeps for each network namespace apart.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The name is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims `name` in the calling thread's network namespace; `None` if another has it.
    pub(crate) fn take(name: &str) -> io::Result<Option<Claim>> {
        let address = SocketAddr::from_abstract_name(name)?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Ok(Some(Claim { _socket: socket })),
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
        let take = || Claim::take("viaduct_claim_test").unwrap();
        let first = take();
        assert!(first.is_some() && take().is_none());
        drop(first);
        assert!(take().is_some());
    }
}
