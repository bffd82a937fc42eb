//! One direction of a relay.

use std::io;
use std::net::Shutdown;

use mio::net::TcpStream;
use viaduct_sys::splice::{Pipe, Spliced};
use viaduct_sys::urgent;

use crate::proxy::pipes::Pipes;

/// Pipes that one direction may fill before the other flows have their turn.
const FILLS: usize = 4;

/// Bytes in one direction, from one end to the other.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// Held only while bytes are in it.
    pub(super) pipe: Option<Pipe>,
    /// The source may have something; until a read says that it does not.
    pub(super) readable: bool,
    /// The sink may have room; until a write says that it does not.
    pub(super) writable: bool,
    /// The source has said that it ends, behind what it may have ready.
    pub(super) ending: bool,
    /// The source has ended.
    ended: bool,
    /// The source broke.
    pub(super) broke: bool,
    /// The sink has been told so.
    pub(super) shut: bool,
    /// The source has announced an urgent byte, once at least.
    pub(super) urgent: bool,
    /// One that waits for room at the sink.
    mark: Option<u8>,
}

impl Way {
    /// Moves bytes until one side can no more; true if others are to have their turn before. `last`
    /// says that the other direction has ended, so that the end of this one closes both connections.
    pub(super) fn drive(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
        last: bool,
    ) -> io::Result<bool> {
        for _ in 0..FILLS {
            // An end that is known before the last bytes are sent leaves in one segment with them.
            while self.comes_to_an_end() && self.fill_pipe(from, pipes)? {}
            if !self.empty_pipe(to, pipes, moved)? {
                return Ok(false);
            }
            if !self.pass_mark(from, to, moved)? {
                return Ok(false);
            }
            if self.ended {
                // Closing it says as much.
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

    /// Moves what is left of a source that broke; how many bytes still wait, as far as is known.
    pub(super) fn last_words(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
    ) -> usize {
        for _ in 0..FILLS {
            // What comes behind an error, be it an end, is nothing that was said.
            let more = !self.broke && !self.ended && self.fill_pipe(from, pipes).unwrap_or(false);
            let waits = self.held();
            match self.empty_pipe(to, pipes, moved) {
                Ok(true) if more || waits > 0 => {}
                Ok(false) => return self.held(),
                Ok(true) | Err(_) => return 0,
            }
        }
        // It goes on, as though nothing had been.
        1
    }

    fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Whether what can be read is all that there will be.
    fn comes_to_an_end(&self) -> bool {
        self.ending && self.readable && !self.ended && !self.urgent && self.mark.is_none()
    }

    /// Moves what the pipe holds; false if some of it must wait.
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

    /// Passes an urgent byte on as one, if it is next; false if it must wait. The pipe is empty:
    /// all before it has passed.
    fn pass_mark(&mut self, from: &TcpStream, to: &TcpStream, moved: &mut u64) -> io::Result<bool> {
        if self.urgent && self.mark.is_none() && urgent::is_next(from)? {
            self.mark = urgent::take(from)?;
            // A splice that stopped before it said nothing of what is behind it. Or only its
            // announcement has come: it is still on its way.
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
                // Fewer bytes than pieces did not fill the pipe: they were all. What comes after
                // them has a wake-up of its own.
                self.readable = bytes >= pipe.pieces() || self.ending || self.urgent;
                return Ok(true);
            }
            // A splice takes an urgent byte for the end, if the end is behind it. When the end was
            // announced, so was whatever is before it.
            Spliced::End if (self.urgent || !self.ending) && urgent::is_next(from)? => {
                self.urgent = true;
            }
            Spliced::End => self.ended = true,
            Spliced::Blocked if self.urgent && urgent::is_next(from)? => {}
            Spliced::Blocked if pipe.held() == 0 => self.readable = false,
            // It may be the pipe that is full.
            Spliced::Blocked => return Ok(false),
        }
        if pipe.held() == 0 {
            pipes.give(self.pipe.take().expect("it was there"));
        }
        Ok(self.ended || self.readable)
    }
}

/// Ends the direction towards `to`, which may have gone already.
fn shutdown(to: &TcpStream) -> io::Result<()> {
    match to.shutdown(Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}
