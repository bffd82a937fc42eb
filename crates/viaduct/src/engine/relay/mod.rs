//! Relay between two connections without handlers, or with handlers that need not see the bytes.
//! The bytes are spliced through a pipe inside the kernel, and never copied to user space.
//!
//! | file | |
//! |---|---|
//! | here | both directions, and reports to the handlers |
//! | `direction` | one direction |

mod direction;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use mio::net::TcpStream;
use viaduct_proto::flow::{Offload, offload};
use viaduct_proto::upgrade::DirectionRecord;
use viaduct_sys::socket::splice::Pipe;

use self::direction::Direction;
use super::chain_io::Factories;
use super::flow::{End, Moved};
use super::pipes::Pipes;

/// Both directions.
#[derive(Debug, Default)]
pub struct Relay {
    /// Directions: from the client to the server, and back.
    directions: [Direction; 2],
    /// End that broke.
    broken: Option<End>,
    /// Factories of handlers that need only byte counts, not the bytes.
    observers: Option<Factories>,
}

impl Relay {
    /// Returns a relay for these handlers; `None` if one of them must see the bytes, or set options
    /// on the sockets.
    pub fn of(factories: &Factories) -> Option<Relay> {
        if offload(factories) != Some(Offload::default()) {
            return None;
        }
        factories.iter().for_each(|factory| factory.relayed(true, [0, 0]));
        Some(Relay { observers: Some(factories.clone()), ..Relay::default() })
    }

    /// Handles a control call to the handler of this name. The answer covers all flows of the
    /// handler together, because a relayed flow has no handler state of its own.
    pub fn control(&self, to: &str) -> Option<Vec<u8>> {
        let mut factories = self.observers.as_ref()?.iter();
        factories.find(|factory| factory.name() == to)?.state().map(String::into_bytes)
    }

    /// Records the loop's report that `end` is readable or writable.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        let [out, back] = &mut self.directions;
        let (from, to) = match end {
            End::Client => (out, back),
            End::Server => (back, out),
        };
        from.readable |= readable;
        to.writable |= writable;
    }

    /// Records the loop's report of an urgent byte at `end`.
    pub fn urgent(&mut self, end: End) {
        self.directions[end as usize].urgent = true;
    }

    /// Returns whether `end` has ever announced an urgent byte.
    pub fn is_urgent(&self, end: End) -> bool {
        self.directions[end as usize].urgent
    }

    /// Returns whether bytes for the client must wait until its socket is writable.
    pub fn client_is_full(&self) -> bool {
        !self.directions[End::Server as usize].writable
    }

    /// Records that `end` has closed its write side; earlier bytes may still be readable.
    pub fn ending(&mut self, end: End) {
        self.directions[end as usize].ending = true;
    }

    /// Returns whether bytes wait for a pipe.
    pub fn lacks_pipe(&self) -> bool {
        self.directions.iter().any(|direction| direction.lacks_pipe)
    }

    /// Returns whether `end` has closed its write side.
    pub fn is_ending(&self, end: End) -> bool {
        self.directions[end as usize].ending
    }

    /// Moves as many bytes as possible; `held` is set for each end that accepts no bytes yet. `Err`
    /// if an end broke.
    pub fn drive(
        &mut self,
        [client, server]: [&TcpStream; 2],
        held: [bool; 2],
        pipes: &mut Pipes,
        moved: &mut Moved,
    ) -> io::Result<()> {
        let [out, back] = &mut self.directions;
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
        self.report(moved.bytes);
        Ok(())
    }

    /// Reports to the handlers how many bytes were transferred in each direction.
    fn report(&self, bytes: [u64; 2]) {
        if let Some(factories) = &self.observers {
            factories.iter().for_each(|factory| factory.relayed(false, bytes));
        }
    }

    /// End that broke, if one did.
    pub fn broken(&self) -> Option<End> {
        self.broken
    }

    /// Records that `end` broke before its bytes were moved here.
    pub fn set_broken(&mut self, end: End) {
        self.broken = Some(end);
    }

    /// Delivers the remaining bytes of the broken end; returns how many are left. `bytes` counts
    /// the bytes transferred in each direction since the last report to the handlers.
    pub fn deliver_rest(
        &mut self,
        [client, server]: [&TcpStream; 2],
        pipes: &mut Pipes,
        bytes: &mut [u64; 2],
    ) -> u64 {
        let [out, back] = &mut self.directions;
        let left = match self.broken {
            Some(End::Client) => out.deliver_rest(client, server, pipes, &mut bytes[0]),
            Some(End::Server) => back.deliver_rest(server, client, pipes, &mut bytes[1]),
            None => 0,
        };
        self.report(*bytes);
        left as u64
    }

    /// Returns whether another process can continue the relay.
    pub fn is_portable(&self) -> bool {
        self.observers.is_none()
            && self.broken.is_none()
            && self.directions.iter().all(|direction| !direction.broke)
    }

    /// Records of the directions.
    pub fn records(&self) -> [DirectionRecord; 2] {
        self.directions.each_ref().map(Direction::record)
    }

    /// Ends of the pipes that hold bytes, in the order of the records.
    pub fn pipe_ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.directions.iter().filter_map(Direction::filled_pipe).flat_map(Pipe::ends)
    }

    /// Returns the relay of these records, with the next of `descriptors` as the ends of its pipes.
    ///
    /// # Errors
    /// A pipe is missing, or the number of bytes in it differs from the record.
    pub fn restored(
        records: &[DirectionRecord; 2],
        descriptors: &mut impl Iterator<Item = OwnedFd>,
        pipes: &mut Pipes,
    ) -> io::Result<Relay> {
        let mut directions = <[Direction; 2]>::default();
        for (direction, record) in directions.iter_mut().zip(records) {
            let pipe = match record.held {
                0 => None,
                held => {
                    let ends = descriptors.next().zip(descriptors.next());
                    let (read, write) = ends.ok_or(io::ErrorKind::InvalidData)?;
                    let pipe = Pipe::inherited([read, write])?;
                    if pipe.held() as u64 != held {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    pipes.adopt(&pipe);
                    Some(pipe)
                }
            };
            *direction = Direction::restored(record, pipe);
        }
        Ok(Relay { directions, ..Relay::default() })
    }

    /// Gives the pipes back.
    pub fn release(&mut self, pipes: &mut Pipes) {
        for direction in &mut self.directions {
            if let Some(pipe) = direction.pipe.take() {
                pipes.give(pipe);
            }
        }
    }
}
