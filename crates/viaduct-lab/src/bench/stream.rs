//! Stream sockets: TCP or UNIX-domain.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

/// Address to connect to or listen on: `127.0.0.1:9000` or `unix:/tmp/server`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// TCP address.
    Ip(SocketAddr),
    /// Path of a UNIX-domain socket.
    Path(PathBuf),
}

/// Connected stream socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP connection.
    Tcp(TcpStream),
    /// UNIX-domain connection.
    Unix(UnixStream),
}

/// Listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP listener.
    Tcp(TcpListener),
    /// UNIX-domain listener.
    Unix(UnixListener),
}

impl FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Place, String> {
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Place::Path(path.into())),
            None => text.parse().map(Place::Ip).map_err(|_| {
                format!("{text:?} is not an address such as 127.0.0.1:9000 or unix:/tmp/s")
            }),
        }
    }
}

impl Place {
    /// Connects to the address.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Place::Ip(at) => Ok(Stream::Tcp(TcpStream::connect(at)?)),
            Place::Path(path) => Ok(Stream::Unix(UnixStream::connect(path)?)),
        }
    }

    /// Listens on the address. A file at the path of a UNIX-domain socket is removed first.
    pub fn listen(&self) -> io::Result<Listener> {
        match self {
            Place::Ip(at) => Ok(Listener::Tcp(TcpListener::bind(at)?)),
            Place::Path(path) => {
                let _ = fs::remove_file(path);
                Ok(Listener::Unix(UnixListener::bind(path)?))
            }
        }
    }
}

impl Listener {
    /// Accepts the next connection.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Ok(Stream::Tcp(listener.accept()?.0)),
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }
}

impl Stream {
    /// Disables Nagle's algorithm, so that writes are sent without delay.
    pub fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(true),
            Stream::Unix(_) => Ok(()),
        }
    }

    /// Makes reads and writes fail instead of blocking.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// Shuts down the direction towards the peer.
    pub fn end(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}
