//! Store of descriptors that outlive a master, so that no flow of a program bypasses the chain.
//!
//! The kernel closes the descriptors of a killed master: another process could then bind its ports,
//! and the BPF program that redirects inbound connections would be detached. So the wrapper keeps
//! duplicates of the descriptors unread in a socket, where they stay open until the socket's
//! reading end is closed.
//!
//! ```text
//!   wrapper ── the store's reading end, unread ◀══ descriptors ══ master
//! ```

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use viaduct_sys::socket::seqpacket;

/// Adds duplicates of `descriptors` to `store`, which stay open until the reading end of `store` is
/// closed. Errors: the reading end is closed.
pub fn add(store: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    seqpacket::send_with_fds(store, b"kept", descriptors)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn stored_descriptors_live_until_the_other_end_is_closed() {
        let (theirs, ours) = seqpacket::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        add(&ours, &[listener.as_fd()]).unwrap();
        drop((listener, ours));
        TcpStream::connect(at).expect("the stored listener is open");
        drop(theirs);
        TcpStream::connect(at).expect_err("the listener is closed");
    }
}
