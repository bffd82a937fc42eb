//! Store of descriptors that outlive a master, so that nothing of a program gets around the chain.
//!
//! A killed master closes its descriptors: another process could bind its ports, and the kernel
//! would detach the BPF program that redirects inbound connections. So the wrapper holds them
//! too, unread: descriptors in a socket's queue live as long as its reading end.
//!
//! ```text
//!   wrapper ── DescriptorStore, unread ◀══ descriptors ══ master
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use viaduct_sys::socket::seqpacket;

/// Either end of the store.
#[derive(Debug)]
pub struct DescriptorStore(OwnedFd);

impl DescriptorStore {
    /// Returns the wrapper's end, and the master's.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> io::Result<(DescriptorStore, DescriptorStore)> {
        seqpacket::pair().map(|(one, other)| (DescriptorStore(one), DescriptorStore(other)))
    }

    /// Returns the master's end, from an inherited descriptor.
    pub fn of(fd: OwnedFd) -> DescriptorStore {
        DescriptorStore(fd)
    }

    /// Adds these, for as long as the other end is open.
    ///
    /// # Errors
    /// The other end is closed.
    pub fn add(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        seqpacket::send_with_fds(&self.0, b"kept", descriptors)
    }
}

impl AsFd for DescriptorStore {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn stored_descriptors_live_until_the_other_end_is_closed() {
        let (theirs, ours) = DescriptorStore::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        ours.add(&[listener.as_fd()]).unwrap();
        drop((listener, ours));
        TcpStream::connect(at).expect("it listens");
        drop(theirs);
        TcpStream::connect(at).expect_err("no listener is left");
    }
}
