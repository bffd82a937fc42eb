//! A chain of handlers between the two ends of a flow, or an end that cannot be spliced: bytes pass
//! through here.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use tracing::{debug, warn};
use viaduct_proto::flow::{Action, Address, BottomId, Buffer, Chain, Factory, Failure, Half};
use viaduct_proto::time::Instant;

use super::flow::{End, Moved};
use super::leg::Leg;

/// Times that each end is read before the other flows have their turn.
const TURNS: usize = 16;
/// Pieces written at once.
const PIECES: usize = 16;

/// The handlers of a chain, the client's first; none at all is an empty chain.
pub type Factories = Arc<[Arc<dyn Factory>]>;

/// A chain, and how its ends stand.
#[derive(Debug)]
pub struct Through {
    chain: Chain,
    bottom: BottomId,
    /// The client, the server.
    sides: [Side; 2],
    connected: bool,
    failed: Option<Failure>,
}

#[derive(Debug, Default)]
struct Side {
    /// It may have something; until a read says that it does not.
    readable: bool,
    /// It may have room; until a write says that it does not.
    writable: bool,
    /// The chain wants nothing from it now.
    paused: bool,
    /// It has ended, or nobody reads it any more.
    ended: bool,
    /// Nothing more goes to it.
    shut: bool,
}

impl Through {
    /// A chain that is asked to go to `to`, each end of it holding `limit` bytes at most; and where
    /// its handlers go instead. `None`: they go nowhere, or not at once.
    pub fn new(
        factories: Factories,
        limit: usize,
        to: Address,
        now: Instant,
    ) -> Option<(Through, Address)> {
        let mut chain = Chain::new(factories, limit, now);
        chain.connect(now, to);
        let bottom = chain.bottom()?;
        let sides = Default::default();
        let mut through = Through { chain, bottom, sides, connected: false, failed: None };
        let mut goes = None;
        while let Some(action) = through.chain.poll_action() {
            match action {
                Action::Connect(id, to) if id == bottom => goes = Some(to),
                other => through.note(other, now),
            }
        }
        Some((through, goes?))
    }

    /// The loop says that `end` can be read or written.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        let side = &mut self.sides[end as usize];
        side.readable |= readable;
        side.writable |= writable;
    }

    /// The server's end is there.
    pub fn connected(&mut self, now: Instant) {
        self.connected = true;
        self.chain.connected(now, self.bottom, Ok(()));
    }

    /// What the client said before the chain was there.
    pub fn write(&mut self, data: Vec<u8>, now: Instant) {
        self.chain.write(now, data.into());
    }

    /// The earliest timer of its handlers.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.chain.poll_timeout()
    }

    /// Moves what can move; `held` says which ends take nothing yet. `Err`: an end or the flow broke.
    pub fn drive(
        &mut self,
        [client, server]: [&mut Leg; 2],
        held: [bool; 2],
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<Moved> {
        self.chain.handle_timeout(now);
        let mut moved = Moved::default();
        for _ in 0..TURNS {
            let read =
                [self.read_client(client, scratch, now)?, self.read_server(server, scratch, now)?];
            self.act(client, server, now)?;
            let to_client = if held[0] { 0 } else { self.write_client(client, now)? };
            let to_server = if held[1] { 0 } else { self.write_server(server, now)? };
            // What was sent may have ended a direction, or let the other go on.
            self.act(client, server, now)?;
            if read == [0, 0] && to_client + to_server == 0 {
                moved.done = self.sides.iter().all(|side| side.shut);
                return Ok(moved);
            }
            moved.bytes[0] += read[0];
            moved.bytes[1] += read[1];
        }
        moved.more = true;
        Ok(moved)
    }

    fn read_client(
        &mut self,
        client: &mut Leg,
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<u64> {
        self.sides[0].paused = !self.chain.may_write();
        let Some(read) = self.sides[0].read(client, scratch)? else { return Ok(0) };
        let bytes = read.len() as u64;
        match read.is_empty() {
            true => self.chain.shutdown(now, Half::Write),
            false => self.sides[0].ended |= !self.chain.write(now, read),
        }
        Ok(bytes)
    }

    fn read_server(
        &mut self,
        server: &mut Leg,
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<u64> {
        let Some(read) = self.sides[1].read(server, scratch)? else { return Ok(0) };
        let bytes = read.len() as u64;
        match read.is_empty() {
            true => self.chain.finished(now, self.bottom),
            false => self.sides[1].ended |= !self.chain.avail(now, self.bottom, read),
        }
        Ok(bytes)
    }

    fn write_client(&mut self, client: &mut Leg, now: Instant) -> io::Result<usize> {
        let mut written = 0;
        while let Some(count) = self.sides[0].write(client, self.chain.incoming())? {
            self.chain.consumed(now, count);
            written += count;
        }
        Ok(written)
    }

    fn write_server(&mut self, server: &mut Leg, now: Instant) -> io::Result<usize> {
        let mut written = 0;
        while let Some(count) = self.sides[1].write(server, self.chain.outgoing(self.bottom))? {
            self.chain.sent(now, self.bottom, count);
            written += count;
        }
        Ok(written)
    }

    /// Does what the chain wants done.
    fn act(&mut self, client: &mut Leg, server: &mut Leg, now: Instant) -> io::Result<()> {
        while let Some(action) = self.chain.poll_action() {
            match action {
                Action::Close(_) => {
                    self.sides[1].ended = true;
                    self.sides[1].shut(server)?;
                }
                Action::Shutdown(_, Half::Write) => self.sides[1].shut(server)?,
                Action::Finished => self.sides[0].shut(client)?,
                other => self.note(other, now),
            }
        }
        match self.failed {
            Some(why) => Err(io::Error::other(why.to_string())),
            None => Ok(()),
        }
    }

    /// Takes down what needs neither end.
    fn note(&mut self, action: Action, now: Instant) {
        match action {
            // A flow of a proxy has one server: a second one is refused at once.
            Action::Connect(id, _) if id != self.bottom => {
                self.chain.connected(now, id, Err(Failure::Unreachable));
            }
            Action::Receive(id, may) if id == self.bottom => self.sides[1].paused = !may,
            Action::Shutdown(_, Half::Read) => self.sides[1].ended = true,
            Action::Connected(Err(why)) | Action::Failed(why) => self.failed = Some(why),
            Action::Say(line) => warn!("{line}"),
            Action::Event(event) => debug!("a handler says: {}", String::from_utf8_lossy(&event)),
            _ => {}
        }
    }
}

impl Side {
    /// What `leg` has; empty at its end, `None` if it has nothing now or must wait.
    fn read(&mut self, leg: &mut Leg, scratch: &mut [u8]) -> io::Result<Option<Bytes>> {
        if self.ended || self.paused || !self.readable {
            return Ok(None);
        }
        let read = leg.read(scratch)?;
        self.readable = read.is_some();
        self.ended = read == Some(0);
        // As long as what came: many short pieces may wait in a chain.
        Ok(read.map(|read| Bytes::copy_from_slice(&scratch[..read])))
    }

    /// Writes some of what waits; `None` if nothing does, or `leg` takes nothing now.
    fn write(&mut self, leg: &mut Leg, buffer: &Buffer) -> io::Result<Option<usize>> {
        if !self.writable || buffer.is_empty() {
            return Ok(None);
        }
        let pieces: Vec<_> = buffer.pieces().take(PIECES).map(IoSlice::new).collect();
        let written = leg.write(&pieces)?;
        self.writable = written.is_some();
        Ok(written)
    }

    fn shut(&mut self, leg: &mut Leg) -> io::Result<()> {
        if std::mem::replace(&mut self.shut, true) { Ok(()) } else { leg.shutdown() }
    }
}
