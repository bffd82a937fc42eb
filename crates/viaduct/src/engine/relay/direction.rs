//! A single direction of a relay.

use std::io;
use std::net::Shutdown;

use mio::net::TcpStream;
use viaduct_proto::upgrade::DirectionRecord;
use viaduct_sys::socket::splice::{Pipe, Spliced};
use viaduct_sys::socket::urgent;

use crate::engine::pipes::Pipes;

/// Number of times that one direction may fill its pipe before other flows are served.
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
    /// True if the source has closed its write side; earlier bytes may still be readable.
    pub(super) ending: bool,
    /// True if the end of stream from the source was read.
    ended: bool,
    /// True if the source broke.
    pub(super) broke: bool,
    /// True if the last read needed a pipe, and none could be created.
    pub(super) lacks_pipe: bool,
    /// True if the end of stream was sent to the sink.
    pub(super) shut: bool,
    /// True if the source has announced an urgent byte at least once.
    pub(super) urgent: bool,
    /// Urgent byte that waits for room at the sink.
    mark: Option<u8>,
}

impl Direction {
    /// Moves bytes until one side blocks. Returns true if more can be moved after other flows have
    /// been served. `last` is true if the other direction has ended, so that both connections are
    /// closed when this one ends.
    pub(super) fn drive(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
        last: bool,
    ) -> io::Result<bool> {
        for _ in 0..FILLS {
            // If the end of stream is read before the last bytes are sent, the FIN leaves in the
            // same segment.
            while self.comes_to_an_end() && self.fill_pipe(from, pipes)? {}
            if !self.empty_pipe(to, pipes, moved)? {
                return Ok(false);
            }
            if !self.pass_mark(from, to, moved)? {
                return Ok(false);
            }
            if self.ended {
                // For the last direction, closing the connection sends the FIN.
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

    /// Delivers the remaining bytes of a broken source; returns how many are left, as far as known.
    pub(super) fn deliver_rest(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut u64,
    ) -> usize {
        for _ in 0..FILLS {
            // Nothing is read after an error: an end of stream that follows it was not sent by the
            // source.
            let more = !self.broke && !self.ended && self.fill_pipe(from, pipes).unwrap_or(false);
            let waits = self.held();
            match self.empty_pipe(to, pipes, moved) {
                Ok(true) if self.lacks_pipe => return 1,
                Ok(true) if more || waits > 0 => {}
                Ok(false) => return self.held(),
                Ok(true) | Err(_) => return 0,
            }
        }
        // More remains: the next call continues.
        1
    }

    /// Record of the direction, for the handover to a new process.
    pub(super) fn record(&self) -> DirectionRecord {
        DirectionRecord {
            held: self.held() as u64,
            ending: self.ending,
            ended: self.ended,
            shut: self.shut,
            urgent: self.urgent,
            mark: self.mark,
        }
    }

    /// Returns the direction of `record`, with the pipe that holds its bytes. As in a new flow, the
    /// sink is assumed writable if no bytes wait for it; the registration of the sockets reports
    /// the rest.
    pub(super) fn restored(record: &DirectionRecord, pipe: Option<Pipe>) -> Direction {
        let DirectionRecord { ending, ended, shut, urgent, mark, .. } = *record;
        let writable = pipe.is_none() && mark.is_none();
        Direction { pipe, writable, ending, ended, shut, urgent, mark, ..Direction::default() }
    }

    /// Pipe with bytes, if there are any.
    pub(super) fn filled_pipe(&self) -> Option<&Pipe> {
        self.pipe.as_ref().filter(|pipe| pipe.held() > 0)
    }

    fn held(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Returns whether the readable bytes are the last ones.
    fn comes_to_an_end(&self) -> bool {
        self.ending && self.readable && !self.ended && !self.urgent && self.mark.is_none()
    }

    /// Moves the contents of the pipe to the sink; false if some of it must wait.
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
            pipes.give(self.pipe.take().expect("the pipe was in use"));
        }
        Ok(true)
    }

    /// Passes the next byte on as urgent, if it is urgent; false if it must wait. Called when the
    /// pipe is empty, so that all earlier bytes have passed.
    fn pass_mark(&mut self, from: &TcpStream, to: &TcpStream, moved: &mut u64) -> io::Result<bool> {
        if self.urgent && self.mark.is_none() && urgent::is_next(from)? {
            self.mark = urgent::take(from)?;
            // A splice stops before an urgent byte, so later bytes may be readable too. If there is
            // no byte, only its announcement has arrived.
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
        self.pipe = self.pipe.take().or_else(|| pipes.take());
        self.lacks_pipe = self.pipe.is_none();
        let Some(pipe) = &mut self.pipe else { return Ok(false) };
        match pipe.fill(from).inspect_err(|_| self.broke = true)? {
            Spliced::Moved(bytes) => {
                // Fewer bytes than pieces cannot have filled the pipe, so nothing more was
                // readable. Later bytes cause an event of their own.
                self.readable = bytes >= pipe.pieces() || self.ending || self.urgent;
                return Ok(true);
            }
            // A splice reports the end of stream at an urgent byte if the end follows that byte. If
            // the loop has reported the end, it has also reported an urgent byte before it.
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
            pipes.give(self.pipe.take().expect("the pipe was in use"));
        }
        Ok(self.ended || self.readable)
    }
}

/// Shuts down the write direction of `to`. Succeeds if the peer has closed the connection.
fn shutdown(to: &TcpStream) -> io::Result<()> {
    match to.shutdown(Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}
