//! TCP sockets of the loop: the loop's own, and lent ones, which a process of another user also
//! holds.
//!
//! A process that shares a socket's open file description may change its options and flags at any
//! time: with SO_LINGER a close would block the loop, and without O_NONBLOCK a read or write would.
//! Therefore a lent socket is closed by its lender, in another thread, and is read and written with
//! calls that do not block, whatever its flags are. The kernel reports events of a descriptor until
//! the last copy of its file is closed, so a lent socket is deregistered first.

use std::fmt::Debug;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mio::event::Source as _;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

/// Closer of sockets that another process also holds.
pub trait Lender: Debug + Send + Sync {
    /// Closes `socket`, which may block, in a thread without flows.
    fn take_back(&self, socket: OwnedFd);
}

/// A TCP socket of the loop, own or lent.
#[derive(Debug)]
pub struct FlowSocket<S: Into<OwnedFd>> {
    /// `None` only while this value is dropped or converted.
    socket: Option<S>,
    lender: Option<Arc<dyn Lender>>,
    /// Registry of a lent socket.
    registry: Option<Arc<Registry>>,
}

impl<S: Into<OwnedFd>> FlowSocket<S> {
    /// Returns a socket that `lender` closes.
    pub fn lent(socket: S, lender: Arc<dyn Lender>) -> FlowSocket<S> {
        FlowSocket { socket: Some(socket), lender: Some(lender), registry: None }
    }

    /// Returns whether a process of another user also holds the socket.
    pub fn is_lent(&self) -> bool {
        self.lender.is_some()
    }

    /// Converts the socket to another type.
    pub fn map<T: Into<OwnedFd>>(mut self, to: impl FnOnce(S) -> T) -> FlowSocket<T> {
        FlowSocket {
            socket: self.socket.take().map(to),
            lender: self.lender.take(),
            registry: self.registry.take(),
        }
    }
}

impl<S: Into<OwnedFd>> From<S> for FlowSocket<S> {
    fn from(socket: S) -> FlowSocket<S> {
        FlowSocket { socket: Some(socket), lender: None, registry: None }
    }
}

impl From<FlowSocket<std::net::TcpStream>> for FlowSocket<TcpStream> {
    fn from(socket: FlowSocket<std::net::TcpStream>) -> FlowSocket<TcpStream> {
        socket.map(TcpStream::from_std)
    }
}

impl<S: Into<OwnedFd>> Deref for FlowSocket<S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.socket.as_ref().expect("only a drop or a conversion takes the socket out")
    }
}

impl<S: Into<OwnedFd>> DerefMut for FlowSocket<S> {
    fn deref_mut(&mut self) -> &mut S {
        self.socket.as_mut().expect("only a drop or a conversion takes the socket out")
    }
}

impl<S: Into<OwnedFd> + AsFd> AsFd for FlowSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<S: Into<OwnedFd>> Drop for FlowSocket<S> {
    fn drop(&mut self) {
        if let (Some(socket), Some(lender)) = (self.socket.take(), self.lender.take()) {
            let socket = socket.into();
            if let Some(registry) = self.registry.take() {
                // An error is ignored: the kernel drops the registration when the last copy is
                // closed.
                let _ = registry.deregister(&mut SourceFd(&socket.as_raw_fd()));
            }
            lender.take_back(socket);
        }
    }
}

impl FlowSocket<TcpStream> {
    /// Registers the socket for events under `token`.
    pub fn register(
        &mut self,
        registry: &Arc<Registry>,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        (**self).register(registry, token, interest)?;
        self.registry = self.lender.as_ref().map(|_| registry.clone());
        Ok(())
    }

    /// Removes the registration.
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.registry = None;
        (**self).deregister(registry)
    }

    /// Reads some of the available bytes.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.lender.is_none() {
            return (**self).read(into);
        }
        Ok(rustix::net::recv(&**self, into, RecvFlags::DONTWAIT)?.0)
    }

    /// Writes some of `pieces`.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.lender.is_none() {
            return (**self).write_vectored(pieces);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut none = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&**self, pieces, &mut none, flags)?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[derive(Debug)]
    struct Back(Sender<OwnedFd>);

    impl Lender for Back {
        fn take_back(&self, socket: OwnedFd) {
            self.0.send(socket).unwrap();
        }
    }

    fn pair() -> [std::net::TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0]
    }

    #[test]
    fn a_lent_socket_goes_back_to_its_lender_and_our_own_is_closed() {
        let (send, back) = channel();
        let [one, other] = pair();
        let lent: FlowSocket<TcpStream> = FlowSocket::lent(one, Arc::new(Back(send))).into();
        assert!(lent.is_lent() && back.try_recv().is_err());
        drop(lent);
        assert!(back.try_recv().is_ok() && back.try_recv().is_err());
        drop(FlowSocket::from(other));
    }

    #[test]
    fn a_lent_socket_is_deregistered_when_it_goes_back_even_if_it_stays_open() {
        let poll = mio::Poll::new().unwrap();
        let registry = Arc::new(poll.registry().try_clone().unwrap());
        let registrations = || {
            let info = format!("/proc/self/fdinfo/{}", poll.as_raw_fd());
            std::fs::read_to_string(info).unwrap().matches("tfd:").count()
        };
        let (send, back) = channel();
        let [one, _other] = pair();
        let _copy = one.try_clone().unwrap();
        one.set_nonblocking(true).unwrap();
        let mut lent: FlowSocket<TcpStream> = FlowSocket::lent(one, Arc::new(Back(send))).into();
        lent.register(&registry, Token(1), Interest::READABLE).unwrap();
        assert_eq!(registrations(), 1);
        drop(lent);
        assert_eq!(registrations(), 0);
        drop(back.try_recv().unwrap());
    }

    #[test]
    fn reads_and_writes_of_a_lent_socket_do_not_block_even_in_blocking_mode() {
        let (send, _back) = channel();
        let [one, _other] = pair();
        one.set_nonblocking(false).unwrap();
        let mut lent: FlowSocket<TcpStream> = FlowSocket::lent(one, Arc::new(Back(send))).into();
        let blocked = |result: io::Result<usize>| {
            result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert!(blocked(lent.read(&mut [0])));
        while let Ok(sent) = lent.write(&[IoSlice::new(&[0; 65536])]) {
            assert!(sent > 0);
        }
        assert!(blocked(lent.write(&[IoSlice::new(&[0])])));
    }
}
