//! A flow: the client's connection, the one that goes on, and the two ways between them.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mio::net::TcpStream;
use viaduct_proto::split::preface::Preface;
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
    /// Goes before all that the pipe brings.
    first: Vec<u8>,
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

/// A flow. Its client is missing while it is early, its server while the client says where to.
#[derive(Debug)]
pub struct Flow {
    client: Option<TcpStream>,
    server: Option<TcpStream>,
    asked: Option<Asked>,
    /// Who it is for.
    source: SocketAddr,
    /// Tells it from a later flow of the same number.
    pub id: u64,
    connected: bool,
    /// The server did not answer.
    broken: bool,
    /// From the client to the server, and back.
    ways: [Way; 2],
    /// When it last moved, or began.
    pub moved: Instant,
}

/// What a client says of where it wants to go.
#[derive(Debug)]
pub struct Asked {
    /// What it has said.
    pub preface: Preface,
    /// What it has said since.
    pub bytes: Vec<u8>,
    /// Whether the connection was begun, and the client waits for the answer.
    pub begun: bool,
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
    pub fn new(server: TcpStream, source: SocketAddr, now: Instant) -> Flow {
        Flow { server: Some(server), ..Flow::empty(source, now) }
    }

    /// With a client that is still to say where it wants to go.
    pub fn asking(client: TcpStream, source: SocketAddr, preface: Preface, now: Instant) -> Flow {
        let asked = Asked { preface, bytes: Vec::new(), begun: false };
        Flow { client: Some(client), asked: Some(asked), ..Flow::empty(source, now) }
    }

    fn empty(source: SocketAddr, now: Instant) -> Flow {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Flow {
            client: None,
            server: None,
            asked: None,
            source,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            connected: false,
            broken: false,
            ways: Default::default(),
            moved: now,
        }
    }

    /// Who it is for.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Who it is for, if a hop before this one has told.
    pub fn set_source(&mut self, source: Option<SocketAddr>) {
        self.source = source.unwrap_or(self.source);
    }

    /// What its client says, while it has not said where to.
    pub fn asked(&mut self) -> Option<&mut Asked> {
        self.asked.as_mut()
    }

    /// Reads what the client says; false if it has ended.
    pub fn listen(&mut self, most: usize) -> io::Result<bool> {
        let (Some(client), Some(asked)) = (&mut self.client, &mut self.asked) else {
            return Ok(true);
        };
        let mut chunk = [0; 1024];
        while asked.bytes.len() < most {
            let room = chunk.len().min(most - asked.bytes.len());
            match client.read(&mut chunk[..room]) {
                Ok(0) => return Ok(false),
                Ok(read) => asked.bytes.extend(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Says something to one end before all that follows.
    pub fn say(&mut self, to: End, words: &[u8]) {
        let way = if to == End::Server { 0 } else { 1 };
        self.ways[way].first.extend(words);
        // Without a server nothing drives the ways yet.
        if to == End::Client
            && let Some(client) = &mut self.client
        {
            let first = &mut self.ways[1].first;
            if let Ok(said) = client.write(first) {
                first.drain(..said);
            }
        }
    }

    /// The connection to where the client wants to go has begun: what it said behind that is the
    /// server's.
    pub fn set_server(&mut self, server: TcpStream, now: Instant) {
        (self.server, self.moved) = (Some(server), now);
        if let Some(asked) = &mut self.asked {
            asked.begun = true;
            let behind = std::mem::take(&mut asked.bytes);
            self.ways[0].first.extend(behind);
        }
        self.ready(End::Client, true, true);
    }

    /// The client has its answer: nothing is asked any more.
    pub fn answered(&mut self) {
        self.asked = None;
    }

    /// The client's connection is there.
    pub fn set_client(&mut self, client: TcpStream, now: Instant) {
        self.client = Some(client);
        self.moved = now;
        self.ready(End::Client, true, true);
    }

    /// Its two connections, to be registered and deregistered.
    pub fn streams(&mut self) -> [Option<&mut TcpStream>; 2] {
        [self.client.as_mut(), self.server.as_mut()]
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
        let Some(server) = &self.server else { return Ok(()) };
        if let Some(error) = server.take_error()? {
            return Err(error);
        }
        // A wake-up without a cause: the handshake is still on its way.
        self.connected = match server.peer_addr() {
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
        let (Some(client), Some(server), true) = (&self.client, &self.server, self.connected)
        else {
            return Ok(State::Open);
        };
        let [out, back] = &mut self.ways;
        let moved = out.drive(client, server, pipes)?;
        let moved = moved | back.drive(server, client, pipes)?;
        if moved {
            self.moved = now;
        }
        Ok(if out.shut && back.shut { State::Done } else { State::Open })
    }

    /// Ends both connections by a reset.
    pub fn reset(&mut self) {
        for stream in self.streams().into_iter().flatten() {
            let _ = tcp::reset_on_close(stream);
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

impl Way {
    /// Moves bytes until one side can no more; whether any moved.
    fn drive(&mut self, from: &TcpStream, to: &TcpStream, pipes: &mut Pipes) -> io::Result<bool> {
        let mut moved = false;
        if !self.say_first(to)? {
            return Ok(moved);
        }
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

    /// Writes what goes before the pipe's bytes; false if some of it must wait.
    fn say_first(&mut self, mut to: &TcpStream) -> io::Result<bool> {
        while !self.first.is_empty() {
            if !self.writable {
                return Ok(false);
            }
            match to.write(&self.first) {
                Ok(said) => drop(self.first.drain(..said)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
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
