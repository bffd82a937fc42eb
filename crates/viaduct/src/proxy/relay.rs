//! The empty chain between two connections, or one whose handlers need no byte of what passes: bytes
//! go through a pipe inside the kernel, and are never copied to user space.

use std::fmt;
use std::io;
use std::net::Shutdown;

use mio::net::TcpStream;
use viaduct_proto::flow::{Offload, offload};
use viaduct_sys::splice::{Pipe, Spliced};
use viaduct_sys::urgent;

use super::flow::{End, Moved};
use super::pipes::Pipes;
use super::through::Factories;

/// Pipes that one direction may fill before the other flows have their turn.
const FILLS: usize = 4;

/// Both directions.
#[derive(Debug, Default)]
pub struct Relay {
    /// From the client to the server, and back.
    ways: [Way; 2],
    /// The end that broke.
    broken: Option<End>,
    /// Handlers that are told what has passed.
    told: Option<Told>,
}

/// Handlers that need no bytes: their factories.
struct Told(Factories);

/// Bytes in one direction, from one end to the other.
#[derive(Debug, Default)]
struct Way {
    /// Held only while bytes are in it.
    pipe: Option<Pipe>,
    /// The source may have something; until a read says that it does not.
    readable: bool,
    /// The sink may have room; until a write says that it does not.
    writable: bool,
    /// The source has said that it ends, behind what it may have ready.
    ending: bool,
    /// The source has ended.
    ended: bool,
    /// The source broke.
    broke: bool,
    /// The sink has been told so.
    shut: bool,
    /// The source has announced an urgent byte, once at least.
    urgent: bool,
    /// One that waits for room at the sink.
    mark: Option<u8>,
}

impl Relay {
    /// For a chain of these; `None` if one of them needs the bytes, or the sockets set.
    pub fn of(factories: &Factories) -> Option<Relay> {
        if offload(factories) != Some(Offload::default()) {
            return None;
        }
        factories.iter().for_each(|factory| factory.relayed(true, [0, 0]));
        Some(Relay { told: Some(Told(factories.clone())), ..Relay::default() })
    }

    /// A control call to the handler of this name: what it does without the bytes is known to all its
    /// flows together.
    pub fn control(&self, to: &str) -> Option<Vec<u8>> {
        let Told(factories) = self.told.as_ref()?;
        factories.iter().find(|factory| factory.name() == to)?.state().map(String::into_bytes)
    }

    /// The loop says that `end` can be read or written.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        let [out, back] = &mut self.ways;
        let (from, to) = match end {
            End::Client => (out, back),
            End::Server => (back, out),
        };
        from.readable |= readable;
        to.writable |= writable;
    }

    /// The loop says that `end` sends an urgent byte, or will.
    pub fn urgent(&mut self, end: End) {
        self.ways[end as usize].urgent = true;
    }

    /// Whether `end` has announced one, once at least.
    pub fn is_urgent(&self, end: End) -> bool {
        self.ways[end as usize].urgent
    }

    /// Whether what goes to the client waits for room there.
    pub fn client_is_full(&self) -> bool {
        !self.ways[End::Server as usize].writable
    }

    /// The source at `end` has said that it ends, behind what it may have ready.
    pub fn ending(&mut self, end: End) {
        self.ways[end as usize].ending = true;
    }

    /// Moves what can move; `held` says which ends take nothing yet. `Err`: an end broke.
    pub fn drive(
        &mut self,
        [client, server]: [&TcpStream; 2],
        held: [bool; 2],
        pipes: &mut Pipes,
    ) -> io::Result<Moved> {
        let [out, back] = &mut self.ways;
        let mut moved = Moved::default();
        if !held[End::Server as usize] {
            let result = out.drive(client, server, pipes, &mut moved.bytes[0], back.shut);
            let broken = if out.broke { End::Client } else { End::Server };
            moved.more |= result.inspect_err(|_| self.broken = Some(broken))?;
        }
        if !held[End::Client as usize] {
            let result = back.drive(server, client, pipes, &mut moved.bytes[1], out.shut);
            let broken = if back.broke { End::Server } else { End::Client };
            moved.more |= result.inspect_err(|_| self.broken = Some(broken))?;
        }
        moved.done = out.shut && back.shut;
        if let Some(Told(factories)) = &self.told {
            factories.iter().for_each(|factory| factory.relayed(false, moved.bytes));
        }
        Ok(moved)
    }

    /// Moves on what the end that broke has said before, `bytes` of it each way; how many are left.
    pub fn last_words(
        &mut self,
        [client, server]: [&TcpStream; 2],
        pipes: &mut Pipes,
        bytes: &mut [u64; 2],
    ) -> usize {
        let [out, back] = &mut self.ways;
        match self.broken {
            Some(End::Client) => out.last_words(client, server, pipes, &mut bytes[0]),
            Some(End::Server) => back.last_words(server, client, pipes, &mut bytes[1]),
            None => 0,
        }
    }

    /// Gives the pipes back.
    pub fn release(&mut self, pipes: &mut Pipes) {
        for way in &mut self.ways {
            if let Some(pipe) = way.pipe.take() {
                pipes.give(pipe);
            }
        }
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|factory| factory.name())).finish()
    }
}

impl Way {
    /// Moves bytes until one side can no more; true if others are to have their turn before. `last`
    /// says that the other direction has ended, so that the end of this one closes both connections.
    fn drive(
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
    fn last_words(
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
