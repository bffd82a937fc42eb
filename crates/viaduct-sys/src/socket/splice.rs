//! Moves bytes from one socket to another through a pipe, without a copy to user space.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionread};
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

/// A pipe, and the number of bytes in it.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    room: usize,
}

/// Result of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spliced {
    /// Number of bytes moved, at least one.
    Moved(usize),
    /// No byte can move now.
    Blocked,
    /// The source has ended.
    End,
}

impl Pipe {
    /// Creates an empty pipe for about `room` bytes, or fewer if the kernel allows no more
    /// (`fs.pipe-user-pages-soft`). Errors: no descriptors are left.
    pub fn new(room: usize) -> io::Result<Pipe> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let room = fcntl_setpipe_size(&write, room).or_else(|_| fcntl_getpipe_size(&write))?;
        Ok(Pipe { read, write, held: 0, room })
    }

    /// Takes over a pipe of another process, with the bytes in it. The arguments are its reading
    /// and its writing end.
    ///
    /// # Errors
    /// The descriptors are not a pipe.
    pub fn inherited([read, write]: [OwnedFd; 2]) -> io::Result<Pipe> {
        let room = fcntl_getpipe_size(&write)?;
        let held = usize::try_from(ioctl_fionread(&read)?).map_err(io::Error::other)?;
        Ok(Pipe { read, write, held, room })
    }

    /// Returns the reading and the writing end, for [`Pipe::inherited`] in another process.
    pub fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.read.as_fd(), self.write.as_fd()]
    }

    /// Returns the approximate capacity in bytes.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Returns the capacity in pipe buffers, each of which holds from one byte to one page.
    pub fn pieces(&self) -> usize {
        self.room / rustix::param::page_size()
    }

    /// Returns the number of bytes in the pipe.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Moves available bytes of `from` into the pipe. Errors: `from` failed.
    pub fn fill(&mut self, from: impl AsFd) -> io::Result<Spliced> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let moved = splice(from, None, &self.write, None, self.room, flags);
        Ok(match moved {
            Ok(0) => Spliced::End,
            Ok(moved) => {
                self.held += moved;
                Spliced::Moved(moved)
            }
            Err(Errno::AGAIN) => Spliced::Blocked,
            Err(error) => return Err(error.into()),
        })
    }

    /// Moves the bytes in the pipe to `to`. `more` announces that more data or the end of stream
    /// follows immediately, so that `to` does not send a partial last segment yet. Errors: `to`
    /// failed.
    pub fn drain(&mut self, to: impl AsFd, more: bool) -> io::Result<Spliced> {
        let mut flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        flags.set(SpliceFlags::MORE, more);
        match splice(&self.read, None, to, None, self.held, flags) {
            Ok(0) => Ok(Spliced::End),
            Ok(moved) => {
                self.held -= moved;
                Ok(Spliced::Moved(moved))
            }
            Err(Errno::AGAIN) => Ok(Spliced::Blocked),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_pass_in_order_and_the_end_is_seen() {
        let (mut writer, from) = UnixStream::pair().unwrap();
        let (to, mut reader) = UnixStream::pair().unwrap();
        let mut pipe = Pipe::new(64 << 10).unwrap();
        writer.write_all(b"through a pipe").unwrap();
        assert_eq!(pipe.fill(&from).unwrap(), Spliced::Moved(14));
        assert_eq!(pipe.held(), 14);
        let ends = pipe.ends().map(|end| end.try_clone_to_owned().unwrap());
        let mut pipe = Pipe::inherited(ends).unwrap();
        assert_eq!(pipe.held(), 14, "as the kernel counts them");
        assert_eq!(pipe.drain(&to, false).unwrap(), Spliced::Moved(14));
        let mut got = [0; 14];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"through a pipe");
        drop(writer);
        assert_eq!(pipe.fill(&from).unwrap(), Spliced::End);
    }
}
