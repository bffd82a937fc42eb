//! What is to outlive a master: while it is there, nothing of a program gets around the chain.
//!
//! A master that is killed takes its descriptors with it: its ports could become somebody else's, and
//! the kernel would take away what leads connections to programs that listen. So the wrapper has them too.
//! It never looks: what lies in a socket's queue lives as long as whoever could read it.
//!
//! ```text
//!   wrapper ── Keep, unread ◀══ descriptors ══ master
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use viaduct_sys::records;

/// Either end of it.
#[derive(Debug)]
pub struct Keep(OwnedFd);

impl Keep {
    /// The wrapper's end, and the master's.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> io::Result<(Keep, Keep)> {
        records::pair().map(|(one, other)| (Keep(one), Keep(other)))
    }

    /// The master's, which it was left.
    pub fn of(fd: OwnedFd) -> Keep {
        Keep(fd)
    }

    /// Puts these in, for as long as the other end is there.
    ///
    /// # Errors
    /// The other end has gone.
    pub fn fill(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        records::send_beside(&self.0, b"kept", descriptors)
    }
}

impl AsFd for Keep {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_was_put_in_lives_until_the_other_end_is_gone() {
        let (theirs, ours) = Keep::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        ours.fill(&[listener.as_fd()]).unwrap();
        drop((listener, ours));
        TcpStream::connect(at).expect("it listens");
        drop(theirs);
        TcpStream::connect(at).expect_err("nobody listens");
    }
}
