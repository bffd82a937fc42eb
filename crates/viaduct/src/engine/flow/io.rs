//! Payload transfer of a flow, and release of its resources.

use std::io;

use viaduct_proto::flow::Failure;
use viaduct_proto::time::Instant;

use super::state::State;
use super::{End, Flow, Middle, Moved, Shared};

impl Flow {
    /// Records the loop's report that `end` is readable or writable.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        match &mut self.middle {
            Middle::Relay(relay) => relay.ready(end, readable, writable),
            Middle::Chain(chain_io) => chain_io.ready(end, readable, writable),
        }
    }

    /// Records the loop's report of an urgent byte at `end`.
    pub fn urgent(&mut self, end: End) {
        match &mut self.middle {
            Middle::Relay(relay) => relay.urgent(end),
            Middle::Chain(chain_io) => chain_io.may_hold_more(end),
        }
    }

    /// Records that `end` has closed its write side; earlier bytes may still be readable.
    pub fn ending(&mut self, end: End) {
        match &mut self.middle {
            Middle::Relay(relay) => relay.ending(end),
            Middle::Chain(chain_io) => chain_io.may_hold_more(end),
        }
    }

    /// Returns whether the client has to be registered for writability; true only once. Only few
    /// clients are slow enough to need it.
    pub fn awaits_room(&mut self) -> bool {
        let full = match &self.middle {
            Middle::Relay(relay) => relay.client_is_full() || !self.ends[0].preface_out.is_empty(),
            Middle::Chain(_) => true,
        };
        full && self.has_client() && !std::mem::replace(&mut self.ends[0].is_room_watched, true)
    }

    /// Returns whether bytes wait for a pipe.
    pub fn lacks_pipe(&self) -> bool {
        matches!(&self.middle, Middle::Relay(relay) if relay.lacks_pipe())
    }

    /// Time at which the flow is driven even without an event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (&self.state, &self.middle) {
            (State::Closing(closing), _) => Some(closing.next_check),
            (_, Middle::Relay(_)) => None,
            (_, Middle::Chain(chain_io)) => chain_io.poll_timeout(),
        }
    }

    /// Moves as many bytes as possible. `Err` if an end broke, once the other end has received the
    /// remaining bytes or has stopped accepting them.
    pub fn drive(&mut self, shared: &mut Shared, now: Instant) -> io::Result<Moved> {
        let mut moved = Moved::default();
        if !matches!(self.state, State::Closing(_)) {
            let error = match self.go_on(shared, &mut moved, now) {
                Ok(()) => match self.chain_error() {
                    None => return Ok(moved),
                    Some(error) => error,
                },
                Err(error) => error,
            };
            self.start_closing(error, now);
        }
        self.deliver_rest(shared, moved, now)
    }

    fn go_on(&mut self, shared: &mut Shared, moved: &mut Moved, now: Instant) -> io::Result<()> {
        let is_relay = matches!(self.middle, Middle::Relay(_));
        let is_connected = self.is_connected();
        if is_relay && !is_connected {
            return Ok(());
        }
        // The client broke during its request, which may have been complete.
        if self.ends[0].is_broken && is_connected {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // A chain is driven even before the flow's own connection is established, because handlers
        // may use others.
        let held = match is_connected {
            true => {
                [!self.ends[0].send_preface_or_break()?, !self.ends[1].send_preface_or_break()?]
            }
            false => [true; 2],
        };
        let [client, server] = self.ends.each_mut().map(|end| &mut end.conn);
        match (&mut self.middle, client, server) {
            // Handlers may exchange data with the far end before there is a client.
            (Middle::Chain(chain_io), client, server) => {
                // A flow without a client may still become the server side of another flow.
                let is_complete = client.is_some() || chain_io.is_alone();
                let client = client.as_mut().filter(|_| is_connected);
                *moved =
                    chain_io.drive([client, server.as_mut()], held, &mut shared.scratch, now)?;
                if chain_io.leaves_main() && is_complete {
                    *server = None;
                }
                if chain_io.is_connected() {
                    self.set_connected();
                }
            }
            (Middle::Relay(relay), Some(client), Some(server)) => {
                let (Some(client), Some(server)) = (client.tcp(), server.tcp()) else {
                    return Err(io::Error::other("an end that cannot be spliced"));
                };
                relay.drive([client, server], held, &mut shared.pipes, moved)?;
            }
            (Middle::Relay(_), ..) => return Ok(()),
        }
        moved.bytes[0] += std::mem::take(&mut self.pipelined);
        if moved.bytes != [0, 0] {
            self.times.moved = now;
        }
        Ok(())
    }

    /// Resets both ends.
    pub fn reset(&mut self) {
        let why = self.broken().unwrap_or(Failure::Reset);
        self.conns().into_iter().flatten().for_each(|conn| conn.reset(why));
    }

    /// Gives shared resources back.
    pub fn release(&mut self, shared: &mut Shared) {
        if let Middle::Relay(relay) = &mut self.middle {
            relay.release(&mut shared.pipes);
        }
    }
}
