//! The urgent byte of TCP, which is marked in the stream. A splice stops before it, without an
//! error.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::os;

/// Returns whether the next byte of `stream` is urgent. Errors: the stream is not a TCP socket.
pub fn is_next(stream: impl AsFd) -> io::Result<bool> {
    os::at_mark(stream.as_fd())
}

/// Reads the urgent byte that [is next](is_next). `stream` must be a socket of
/// [`crate::socket::tcp`], which keeps urgent bytes in the stream. `None` if the byte was announced
/// but has not arrived yet. Errors: `stream` failed.
pub fn take(stream: impl AsFd) -> io::Result<Option<u8>> {
    let mut byte = [0];
    match recv(&stream, &mut byte[..], RecvFlags::DONTWAIT) {
        Ok((1.., _)) => Ok(Some(byte[0])),
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends an urgent byte. Returns false if there is no room now. Errors: `stream` failed.
pub fn give(stream: impl AsFd, byte: u8) -> io::Result<bool> {
    let flags = SendFlags::OOB | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match send(stream.as_fd(), &[byte], flags) {
        Ok(sent) => Ok(sent > 0),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn an_urgent_byte_is_read_at_its_position() {
        let (mut from, mut to) = pair();
        rustix::net::sockopt::set_socket_oobinline(&to, true).unwrap();
        assert!(!is_next(&to).unwrap());
        from.write_all(b"ab").unwrap();
        assert!(give(&from, b'!').unwrap());
        from.write_all(b"cd").unwrap();
        let mut two = [0; 2];
        to.read_exact(&mut two).unwrap();
        assert_eq!(&two, b"ab");
        assert!(is_next(&to).unwrap());
        assert_eq!(take(&to).unwrap(), Some(b'!'));
        assert!(!is_next(&to).unwrap());
        to.read_exact(&mut two).unwrap();
        assert_eq!(&two, b"cd");
    }
}
