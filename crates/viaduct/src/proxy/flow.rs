//! A flow: the client's connection, the one that goes on, and the two ways between them.

use std::io;
use std::net::Shutdown;
use std::time::Instant;

use mio::net::TcpStream;
use viaduct_sys::splice::{Pipe, Spliced};
use viaduct_sys::tcp;

use super::pipes::Pipes;

/// Which end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client = 0,
    Server = 1,
}

/// Bytes in one direction, from one end to the other.
#[derive(Debug, Default)]
struct Way {
    /// Held only while bytes are in it.
    pipe: Option<Pipe>,
    /// The source may have something; until a read says that it does not.
    readable: bool,
    /// The sink may have room; until a write says that it does not.
    writable: bool,
    /// The source has ended.
    ended: bool,
    /// The sink has been told so.
    shut: bool,
}

/// A flow. Its client is missing while it is early.
#[derive(Debug)]
pub struct Flow {
    client: Option<TcpStream>,
    server: TcpStream,
    connected: bool,
    /// The server did not answer.
    broken: bool,
    /// From the client to the server, and back.
    ways: [Way; 2],
    /// When it last moved, or began.
    pub moved: Instant,
}

/// How a flow stands after it was driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// More may come.
    Open,
    /// Both directions have ended.
    Done,
}

impl Flow {
    /// With the connection that was begun, and no client yet.
    pub fn new(server: TcpStream, now: Instant) -> Flow {
        let ways = <[Way; 2]>::default();
        Flow { client: None, server, connected: false, broken: false, ways, moved: now }
    }

    /// The client's connection is there.
    pub fn set_client(&mut self, client: TcpStream, now: Instant) {
        self.client = Some(client);
        self.moved = now;
        self.ready(End::Client, true, true);
    }

    /// Its two connections, to be registered and deregistered.
    pub fn streams(&mut self) -> (Option<&mut TcpStream>, &mut TcpStream) {
        (self.client.as_mut(), &mut self.server)
    }

    /// Whether the server has answered.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether the server's answer was no.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The server's answer was no.
    pub fn set_broken(&mut self) {
        self.broken = true;
    }

    /// Whether its client has come.
    pub fn has_client(&self) -> bool {
        self.client.is_some()
    }

    /// The server's connection may have come about. `Err`: it will not.
    pub fn check_connected(&mut self) -> io::Result<()> {
        if let Some(error) = self.server.take_error()? {
            return Err(error);
        }
        // A wake-up without a cause: the handshake is still on its way.
        self.connected = match self.server.peer_addr() {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => false,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// The poll says that `end` can be read or written.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        let [out, back] = &mut self.ways;
        let (from, to) = match end {
            End::Client => (out, back),
            End::Server => (back, out),
        };
        from.readable |= readable;
        to.writable |= writable;
    }

    /// Moves what can move. `Err`: one of the connections broke.
    pub fn drive(&mut self, pipes: &mut Pipes, now: Instant) -> io::Result<State> {
        let Some(client) = self.client.as_ref().filter(|_| self.connected) else {
            return Ok(State::Open);
        };
        let [out, back] = &mut self.ways;
        let moved = out.drive(client, &self.server, pipes)?;
        let moved = moved | back.drive(&self.server, client, pipes)?;
        if moved {
            self.moved = now;
        }
        Ok(if out.shut && back.shut { State::Done } else { State::Open })
    }

    /// Ends both connections by a reset.
    pub fn reset(&mut self) {
        let _ = self.client.as_ref().map(tcp::reset_on_close);
        let _ = tcp::reset_on_close(&self.server);
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

impl Way {
    /// Moves bytes until one side can no more; whether any moved.
    fn drive(&mut self, from: &TcpStream, to: &TcpStream, pipes: &mut Pipes) -> io::Result<bool> {
        let mut moved = false;
        loop {
            if !self.empty_pipe(to, pipes, &mut moved)? {
                return Ok(moved);
            }
            if self.ended {
                if !self.shut {
                    self.shut = true;
                    shutdown(to)?;
                }
                return Ok(moved);
            }
            if !self.readable || !self.fill_pipe(from, pipes)? {
                return Ok(moved);
            }
        }
    }

    /// Moves what the pipe holds; false if some of it must wait.
    fn empty_pipe(
        &mut self,
        to: &TcpStream,
        pipes: &mut Pipes,
        moved: &mut bool,
    ) -> io::Result<bool> {
        let Some(pipe) = &mut self.pipe else { return Ok(true) };
        while pipe.held() > 0 {
            if !self.writable {
                return Ok(false);
            }
            match pipe.drain(to)? {
                Spliced::Moved(_) => *moved = true,
                Spliced::Blocked | Spliced::End => self.writable = false,
            }
        }
        if !self.readable {
            pipes.give(self.pipe.take().expect("it was there"));
        }
        Ok(true)
    }

    /// Reads from the source; false if there is nothing now.
    fn fill_pipe(&mut self, from: &TcpStream, pipes: &mut Pipes) -> io::Result<bool> {
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            none => none.insert(pipes.take()?),
        };
        match pipe.fill(from)? {
            Spliced::Moved(_) => return Ok(true),
            Spliced::End => self.ended = true,
            Spliced::Blocked => self.readable = false,
        }
        if pipe.held() == 0 {
            pipes.give(self.pipe.take().expect("it was there"));
        }
        Ok(self.ended)
    }
}

/// Ends the direction towards `to`, which may have gone already.
fn shutdown(to: &TcpStream) -> io::Result<()> {
    match to.shutdown(Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}
