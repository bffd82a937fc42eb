//! A connection of a connector: its streams, its encryption, and its next deadline.

use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::client::MIN_MESSAGE;
use viaduct_proto::trickles::crypt::{self, ClientCrypt};
use viaduct_proto::trickles::packet::Room;
use viaduct_proto::trickles::standard::MAIN;
use viaduct_proto::trickles::stream::{Config, Stream};

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    crypt: Option<ClientCrypt>,
    /// True if [`ConnectorEvent::Open`](super::ConnectorEvent::Open) was reported.
    pub(super) open: bool,
    /// Deadline in the connector's timers.
    pub(super) due: Option<Instant>,
    /// Time until which nothing is sent unless data are written.
    pub(super) held_until: Option<Instant>,
    /// Bytes that the connection has requested and the application has not read.
    pub(super) unread: u64,
    /// True if the server's current silence was reported.
    silence_reported: bool,
}

impl Connection {
    /// Opens a connection on a path with `room`. `token` is random.
    pub(super) fn open(
        config: Config,
        crypt: Option<ClientCrypt>,
        room: Room,
        token: u64,
        now: Instant,
    ) -> Connection {
        let [message, request] = lengths(room, crypt.is_some());
        let (message, request) = (config.message.min(message), config.request.min(request));
        let stream = Stream::open(Config { message, request, ..config }, token, now);
        Connection {
            stream,
            crypt,
            open: false,
            due: None,
            held_until: None,
            unread: 0,
            silence_reported: false,
        }
    }

    /// Adapts the stream to a path with `room`. Returns false if the room is too small and the
    /// server has not answered yet. After the first answer a room that is too small is ignored:
    /// messages that are too long count as lost, and the path MTU may grow again.
    pub(super) fn fit(&mut self, room: Room, now: Instant) -> bool {
        let [message, request] = lengths(room, self.crypt.is_some());
        let enough = usize::from(request) >= MIN_MESSAGE;
        if enough {
            self.stream.shorten(message, request, now);
        }
        enough || self.open
    }

    /// The next message for the network; `None` if there is none.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let stream = &self.stream;
        self.held_until = self.held_until.filter(|&until| now < until && stream.is_flushed(MAIN));
        if self.held_until.is_some() {
            return None;
        }
        loop {
            let message = self.stream.poll_transmit(now)?;
            let Some(crypt) = &mut self.crypt else { return Some(message) };
            if let Some(sealed) = crypt.seal(&message) {
                return Some(sealed);
            }
        }
    }

    /// Returns whether the server has been silent for `most`; true only once during a silence.
    pub(super) fn is_silent(&mut self, now: Instant, most: Duration) -> bool {
        let silent = self.stream.waited(now) >= most;
        !std::mem::replace(&mut self.silence_reported, silent) && silent
    }

    /// Number of messages that were not a response of this connection.
    pub(super) fn refused(&self) -> u64 {
        self.stream.stats().refused
    }

    /// Processes a message. Returns false if it could not be decrypted.
    pub(super) fn handle(&mut self, now: Instant, message: &[u8]) -> bool {
        match &mut self.crypt {
            None => self.stream.handle(now, message),
            Some(crypt) => {
                let Some(opened) = crypt.open(message) else { return false };
                self.stream.handle(now, &opened);
            }
        }
        true
    }
}

/// Maximum message lengths in bytes on a path with `room`: first that of received messages and
/// later requests, then that of first requests.
fn lengths(room: Room, encrypted: bool) -> [u16; 2] {
    let taken = if encrypted { [crypt::REQUEST, crypt::OPENING] } else { [0; 2] };
    let left = [room.later.saturating_sub(taken[0]), room.first.saturating_sub(taken[1])];
    left.map(|left| u16::try_from(left).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use viaduct_proto::trickles::packet::tcp::{Kind, overhead};

    use super::*;

    #[test]
    fn a_smaller_mtu_is_reported_only_before_the_first_answer() {
        let [wide, narrow] = [1_400, 900].map(|first| Room { first, later: first });
        let mut connection = Connection::open(Config::default(), None, wide, 1, Instant::ZERO);
        assert!(connection.fit(wide, Instant::ZERO) && !connection.fit(narrow, Instant::ZERO));
        connection.open = true;
        assert!(connection.fit(narrow, Instant::ZERO));
    }

    #[test]
    fn a_silence_is_reported_once() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let room = Room { first: 1_400, later: 1_400 };
        let mut connection = Connection::open(Config::default(), None, room, 1, at(0));
        let mut reported = |now| connection.is_silent(at(now), Duration::from_secs(10));
        assert!(!reported(9) && reported(10) && !reported(11) && !reported(99));
        connection.handle(at(100), b"not an answer");
        assert!(!connection.is_silent(at(101), Duration::from_secs(10)));
        assert_eq!(connection.refused(), 1);
    }

    #[test]
    fn the_narrowest_path_of_ipv6_has_room_for_encrypted_openings() {
        let room = 1280 - overhead(false, Kind::Syn);
        let enough = |first| {
            let later = first + overhead(false, Kind::Syn) - overhead(false, Kind::Data);
            lengths(Room { first, later }, true)
                .into_iter()
                .all(|left| usize::from(left) >= MIN_MESSAGE)
        };
        assert!(enough(room) && !enough(room - 1), "MIN_MESSAGE is the exact limit");
    }
}
