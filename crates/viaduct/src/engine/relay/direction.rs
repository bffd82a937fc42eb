//! A single direction of a relay.

use std::io;
use std::net::Shutdown;

use mio::net::TcpStream;
use viaduct_sys::socket::splice::{Pipe, Spliced};
use viaduct_sys::socket::urgent;

use crate::engine::pipes::Pipes;

/// Pipes that one direction may fill before the other flows have their turn.
const FILLS: usize = 4;

/// A direction: bytes from one end to the other.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Pipe, held only while bytes are in it.
    pub(super) pipe: Option<Pipe>,
    /// Source possibly readable: true until a read would block.
    pub(super) readable: bool,
    /// Sink possibly writable: true until a write would block.
    pub(super) writable: bool,
    /// The source has closed its write side, behind bytes that may still be readable.
    pub(super) ending: bool,
    /// End of stream from the source was read.
    ended: bool,
    /// The source broke.
    pub(super) broke: bool,
    /// End of stream was sent to the sink.
    pub(super) shut: bool,
    /// The source has announced an urgent byte at least once.
    pub(super) urgent: bool,
    /// Urgent byte that waits for room at the sink.
    mark: Option<u8>,
}

impl Direction {
    /// Moves bytes until one side blocks; true if the other flows are to have their turn first.
    /// `last` means that the other direction has ended, so that the end of this one closes both
    /// connections.
    pub(super) fn drive(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
        last: bool,
    ) -> io::Result<bool> {
        for _ in 0..FILLS {
            // An end that is known before the last bytes are sent leaves in the same segment.
            while self.comes_to_an_end() && self.fill_pipe(from, pipes)? {}
            if !self.empty_pipe(to, pipes, moved)? {
                return Ok(false);
            }
            if !self.pass_mark(from, to, moved)? {
                return Ok(false);
            }
            if self.ended {
                // Closing the connection sends the same.
                if !self.shut && !last {
                    shutdown(to)?;
                }
                self.shut = true;
                return Ok(false);
            }
            if !self.readable || !self.fill_pipe(from, pipes)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Delivers the remaining bytes of a broken source; returns how many still wait, as far as
    /// known.
    pub(super) fn deliver_rest(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
    ) -> usize {
        for _ in 0..FILLS {
            // Bytes after an error, or an end, were not sent by the source.
            let more = !self.broke && !self.ended && self.fill_pipe(from, pipes).unwrap_or(false);
            let waits = self.held();
            match self.empty_pipe(to, pipes, moved) {
                Ok(true) if more || waits > 0 => {}
                Ok(false) => return self.held(),
                Ok(true) | Err(_) => return 0,
            }
        }
        // More remains: the next call continues.
        1
    }

    fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Returns whether the readable bytes are the last ones.
    fn comes_to_an_end(&self) -> bool {
        self.ending && self.readable && !self.ended && !self.urgent && self.mark.is_none()
    }

    /// Moves the contents of the pipe; false if some of it must wait.
    fn empty_pipe(
        &mut self,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
    ) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else { return Ok(true) };
        while pipe.held() > 0 {
            if !self.writable {
                return Ok(false);
            }
            match pipe.drain(to, self.ended)? {
                Spliced::Moved(bytes) => *moved += bytes as u64,
                Spliced::Blocked | Spliced::End => self.writable = false,
            }
        }
        if !self.readable {
            pipes.give(self.pipe.take().expect("it was there"));
        }
        Ok(true)
    }

    /// Passes an urgent byte on as one, if it is next; false if it must wait. The pipe is
    /// empty: all earlier bytes have passed.
    fn pass_mark(&mut self, from: &TcpStream, to: &TcpStream, moved: &mut u64) -> io::Result<bool> {
        if self.urgent && self.mark.is_none() && urgent::is_next(from)? {
            self.mark = urgent::take(from)?;
            // A splice that stopped before the byte tells nothing of later bytes. Or only the
            // announcement has come, and the byte is still on its way.
            self.readable = self.mark.is_some();
        }
        let Some(byte) = self.mark else { return Ok(true) };
        if !self.writable || !urgent::give(to, byte)? {
            self.writable = false;
            return Ok(false);
        }
        self.mark = None;
        *moved += 1;
        Ok(true)
    }

    /// Reads from the source; false if there is nothing now, or no room.
    fn fill_pipe(&mut self, from: &TcpStream, pipes: &mut Pipes) -> io::Result<bool> {
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            none => none.insert(pipes.take()?),
        };
        match pipe.fill(from).inspect_err(|_| self.broke = true)? {
            Spliced::Moved(bytes) => {
                // Fewer bytes than pieces did not fill the pipe: they were all. Later bytes
                // cause an event of their own.
                self.readable = bytes >= pipe.pieces() || self.ending || self.urgent;
                return Ok(true);
            }
            // A splice takes an urgent byte for the end if the end is behind it. If the end was
            // announced, so was everything before it.
            Spliced::End if (self.urgent || !self.ending) && urgent::is_next(from)? => {
                self.urgent = true;
            }
            Spliced::End => self.ended = true,
            Spliced::Blocked if self.urgent && urgent::is_next(from)? => {}
            Spliced::Blocked if pipe.held() == 0 => self.readable = false,
            // The pipe may be full.
            Spliced::Blocked => return Ok(false),
        }
        if pipe.held() == 0 {
            pipes.give(self.pipe.take().expect("it was there"));
        }
        Ok(self.ended || self.readable)
    }
}

/// Closes the write direction of `to`, also if the peer has gone already.
fn shutdown(to: &TcpStream) -> io::Result<()> {
    match to.shutdown(Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}
