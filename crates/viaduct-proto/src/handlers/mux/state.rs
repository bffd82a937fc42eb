//! State shared by a factory's chains: the connections, and the streams on each.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::flow::{Address, Failure};
use crate::keys::{self, Entropy};
use crate::tunnel::{Event, LinkError, Settings, StreamId, Tunnel};

pub(super) struct MuxState {
    settings: Settings,
    /// Random prefix of all keys, so that other chains cannot guess them.
    secret: [u8; 16],
    next: u64,
    pub(super) conns: BTreeMap<u64, ConnState>,
    streams: BTreeMap<u64, StreamState>,
}

/// State of a shared connection: its tunnel, and the streams on it.
pub(super) struct ConnState {
    pub(super) tunnel: Tunnel,
    pub(super) link: Option<u32>,
    /// Reason why the link broke.
    pub(super) broken: Option<LinkError>,
    /// Destination; `None` if the connection was accepted.
    pub(super) to: Option<Address>,
    /// Local address that the connection must have, if any.
    pub(super) from: Option<IpAddr>,
    pub(super) names: (Option<Address>, Option<Address>),
    /// Local number of each of the tunnel's streams.
    streams: BTreeMap<StreamId, u64>,
    /// Local numbers of the streams that the tunnel has not opened yet.
    pub(super) waiting: Vec<u64>,
}

/// State of a stream: its connection, and the events that its handler has to process.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    pub(super) connection: u64,
    pub(super) id: Option<StreamId>,
    pub(super) accepted: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) finished: bool,
    pub(super) failed: Option<Failure>,
}

/// Role and number of a chain; also the message to a spawned chain.
pub(super) enum ChainId {
    Connection(u64),
    Stream(u64),
}

impl ChainId {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (kind, number) = match self {
            ChainId::Connection(number) => (b't', number),
            ChainId::Stream(number) => (b'b', number),
        };
        [&[kind][..], &number.to_be_bytes()].concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<ChainId> {
        let (kind, number) = bytes.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        match kind {
            b't' => Some(ChainId::Connection(number)),
            b'b' => Some(ChainId::Stream(number)),
            _ => None,
        }
    }
}

impl MuxState {
    pub(super) fn new(settings: Settings, entropy: &Entropy) -> MuxState {
        let (conns, streams) = (BTreeMap::new(), BTreeMap::new());
        MuxState { settings, secret: keys::random(entropy), next: 1, conns, streams }
    }

    pub(super) fn key(&self, id: &ChainId) -> Vec<u8> {
        [&self.secret[..], &id.emit()].concat()
    }

    /// Adds a connection and returns its number.
    pub(super) fn add_conn(&mut self, to: Option<Address>, from: Option<IpAddr>) -> u64 {
        let number = self.number();
        // The number is sent to the other end, the secret is not.
        let tunnel = Tunnel::new(self.settings.clone(), number);
        let (streams, waiting, names) = (BTreeMap::new(), Vec::new(), (None, None));
        let conn =
            ConnState { tunnel, link: None, broken: None, to, from, names, streams, waiting };
        self.conns.insert(number, conn);
        number
    }

    /// Shared connection to `to` from `from` that has room for one more flow, if any.
    pub(super) fn conn_to(&self, to: &Address, from: Option<IpAddr>) -> Option<u64> {
        let most = self.settings.streams as usize;
        let has_room = |conn: &ConnState| conn.streams.len() + conn.waiting.len() < most;
        let is_it = |conn: &ConnState| conn.to.as_ref() == Some(to) && conn.from == from;
        let has_left = |conn: &ConnState| conn.link.is_some_and(|at| conn.tunnel.has_left(at));
        let goes =
            |(_, conn): &(&u64, &ConnState)| is_it(conn) && has_room(conn) && !has_left(conn);
        self.conns.iter().find(goes).map(|(number, _)| *number)
    }

    pub(super) fn conn(&mut self, connection: u64) -> Option<&mut ConnState> {
        self.conns.get_mut(&connection)
    }

    /// Removes a connection, and fails its streams with `why`; returns their numbers.
    pub(super) fn remove_conn(&mut self, connection: u64, why: Failure) -> Vec<u64> {
        self.conns.remove(&connection);
        let on_it = self.streams.iter_mut().filter(|(_, state)| state.connection == connection);
        on_it
            .map(|(stream, state)| {
                state.failed.get_or_insert(why);
                *stream
            })
            .collect()
    }

    /// Adds a stream on `connection` and returns its number.
    pub(super) fn add_stream(&mut self, connection: u64, id: Option<StreamId>) -> u64 {
        let number = self.number();
        self.streams.insert(number, StreamState { connection, id, ..StreamState::default() });
        if let (Some(conn), Some(id)) = (self.conns.get_mut(&connection), id) {
            conn.streams.insert(id, number);
        }
        number
    }

    /// Stream, and the state of its connection if that still exists.
    pub(super) fn stream(&mut self, id: u64) -> Option<(&mut StreamState, Option<&mut ConnState>)> {
        let state = self.streams.get_mut(&id)?;
        let conn = self.conns.get_mut(&state.connection);
        Some((state, conn))
    }

    pub(super) fn remove_stream(&mut self, stream: u64) {
        let Some(state) = self.streams.remove(&stream) else { return };
        if let Some(conn) = self.conns.get_mut(&state.connection) {
            conn.waiting.retain(|waits| *waits != stream);
            state.id.map(|id| conn.streams.remove(&id));
        }
    }

    pub(super) fn is_idle(&self, connection: u64) -> bool {
        self.streams.values().all(|state| state.connection != connection)
    }

    /// Opens tunnel streams for the streams that wait for the link of `connection`, as many as the
    /// peer allows. Returns the streams that no longer wait.
    pub(super) fn open_waiting(&mut self, connection: u64) -> Vec<u64> {
        let Some(conn) = self.conns.get_mut(&connection) else { return Vec::new() };
        let (Some(to), mut opened) = (conn.to.clone(), Vec::new()) else { return Vec::new() };
        while let Some(&stream) = conn.waiting.first() {
            let Some(id) = conn.tunnel.open(to.clone(), None) else { break };
            conn.waiting.remove(0);
            conn.streams.insert(id, stream);
            if let Some(state) = self.streams.get_mut(&stream) {
                state.id = Some(id);
            }
            opened.push(stream);
        }
        opened
    }

    /// Handles the events of a connection's tunnel; returns the streams to be woken, and the new
    /// ones, for which chains are to be spawned.
    pub(super) fn poll_events(&mut self, connection: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut woken, mut new) = (Vec::new(), Vec::new());
        while let Some(event) = self.conns.get_mut(&connection).and_then(|l| l.tunnel.poll_event())
        {
            let (id, note): (_, fn(&mut StreamState)) = match event {
                Event::Opened { id, .. } => {
                    new.push(self.add_stream(connection, Some(id)));
                    continue;
                }
                Event::LinkUp(_) | Event::LinkDown(..) => {
                    if let Event::LinkDown(_, why) = event
                        && let Some(conn) = self.conns.get_mut(&connection)
                    {
                        conn.broken = Some(why);
                    }
                    woken.extend(self.open_waiting(connection));
                    continue;
                }
                Event::Accepted(id) => (id, |state| state.accepted = true),
                Event::Readable(id) => (id, |state| state.readable = true),
                Event::Writable(id) => (id, |state| state.writable = true),
                Event::Finished(id) => (id, |state| state.finished = true),
                Event::Reset(id, why) => {
                    self.note(connection, id, &mut woken, |state| state.failed = Some(why));
                    continue;
                }
            };
            self.note(connection, id, &mut woken, note);
        }
        (woken, new)
    }

    fn note(
        &mut self,
        connection: u64,
        id: StreamId,
        woken: &mut Vec<u64>,
        note: impl FnOnce(&mut StreamState),
    ) {
        let stream = self.conns.get(&connection).and_then(|conn| conn.streams.get(&id)).copied();
        if let Some((stream, state)) = stream.and_then(|b| Some((b, self.streams.get_mut(&b)?))) {
            note(state);
            if !woken.contains(&stream) {
                woken.push(stream);
            }
        }
    }

    pub(super) fn names(&self, connection: u64) -> (Option<Address>, Option<Address>) {
        self.conns.get(&connection).map(|conn| conn.names.clone()).unwrap_or_default()
    }

    /// Human-readable description of a connection.
    pub(super) fn about(&self, connection: u64) -> Option<String> {
        self.conns.get(&connection).map(ConnState::to_string)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

impl fmt::Display for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.tunnel.stats();
        match (&self.to, &self.names.1) {
            (Some(to), _) => write!(f, "to {to}: ")?,
            (None, Some(peer)) => write!(f, "from {peer}: ")?,
            (None, None) => {}
        }
        write!(
            f,
            "{} flows on one connection, {} so far, {} bytes sent, {} received",
            stats.open,
            stats.opened + stats.accepted,
            stats.sent,
            stats.received
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::testing::shell;

    #[test]
    fn a_full_connection_is_not_waited_for() {
        let settings = Settings { streams: 2, ..Settings::default() };
        let mut shared = MuxState::new(settings, &shell().entropy);
        let to = Address::Name("far".to_owned(), 80);
        let first = shared.add_conn(Some(to.clone()), None);
        for _ in 0..2 {
            assert_eq!(shared.conn_to(&to, None), Some(first));
            let stream = shared.add_stream(first, None);
            shared.conn(first).unwrap().waiting.push(stream);
        }
        assert_eq!(shared.conn_to(&to, None), None);
        let second = shared.add_conn(Some(to.clone()), None);
        assert_eq!(shared.conn_to(&to, None), Some(second));
        let left = shared.conn(first).unwrap().waiting[0];
        shared.remove_stream(left);
        assert_eq!(shared.conn_to(&to, None), Some(first));
    }
}
