//! Extraction of events from one server's queue, and their installation in the queue of another
//! server with the same secrets.
//!
//! ```text
//!  collection   events, each preceded by its length
//!  event        number of the secret 1 | siv 16, under AES-SIV:
//!               version 1: 4 | made 6 | return path* | grant | request* | channel*
//!                *: preceded by its length
//! ```
//!
//! *Made* is the time of extraction in microseconds; the *return path* is a [`Return`]; the *grant*
//! is described in `server/grant.rs`. The *channel* is empty, or identifies the key under which the
//! answers are encrypted (`crypt`). AES-SIV keeps an event authentic and confidential in transit.
//! Each server installs an event at most once, and only while the event's age is within the
//! server's replay horizon.

use std::borrow::Cow;

use super::{Endpoint, Minisocket};
use crate::time::Instant;
use crate::trickles::bytes::{Reader, put_counted, put_u48};
use crate::trickles::crypt::Channel;
use crate::trickles::packet::Return;
use crate::trickles::server::{Grant, instant, micros};

const VERSION: u8 = 4;

/// Result of an installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Events that were queued.
    pub taken: usize,
    /// Events refused: altered, sealed with an unknown secret, too old, already installed, or
    /// beyond the queue's limit.
    pub refused: usize,
}

impl Endpoint {
    /// Moves the events for which `which` returns true from the queue to `out`. An event that would
    /// make `out` longer than `most` bytes stays in the queue. Returns the number of events moved.
    pub fn extract_events(
        &mut self,
        now: Instant,
        most: usize,
        mut which: impl FnMut(&Minisocket<'_>) -> bool,
        out: &mut Vec<u8>,
    ) -> usize {
        let waiting = self.queue.len();
        for event in std::mem::take(&mut self.queue) {
            let sealed = which(&event).then(|| self.seal(now, &event));
            match sealed.filter(|sealed| out.len() + sealed.len() <= most) {
                Some(sealed) => out.extend(sealed),
                None => self.queue.push_back(event),
            }
        }
        let extracted = waiting - self.queue.len();
        self.stats.extracted += extracted as u64;
        extracted
    }

    fn seal(&self, now: Instant, event: &Minisocket<'_>) -> Vec<u8> {
        let Minisocket { grant, to, message, channel, .. } = event;
        let mut bytes = vec![VERSION];
        put_u48(&mut bytes, micros(now));
        put_counted(&mut bytes, &to.emit());
        grant.write(&mut bytes);
        put_counted(&mut bytes, message);
        put_counted(&mut bytes, &channel.emit());
        let mut sealed = Vec::new();
        put_counted(&mut sealed, &self.ring().seal_event(&bytes));
        sealed
    }

    /// Queues events that another server has extracted.
    pub fn install_events(&mut self, now: Instant, collection: &[u8]) -> Installed {
        let mut reader = Reader(collection);
        let mut done = Installed::default();
        while !reader.0.is_empty() {
            let event = reader.counted();
            match event.and_then(|bytes| self.open(now, bytes)) {
                Some(event) => {
                    self.queue.push_back(event);
                    done.taken += 1;
                }
                None => done.refused += 1,
            }
            if event.is_none() {
                break;
            }
        }
        self.stats.installed += done.taken as u64;
        self.stats.strange += done.refused as u64;
        done
    }

    fn open(&mut self, now: Instant, bytes: &[u8]) -> Option<Minisocket<'static>> {
        if self.queue.len() >= self.limit {
            return None;
        }
        let (event, code) = self.ring().open_event(bytes)?;
        let mut reader = Reader(&event);
        let _version = reader.u8().filter(|&version| version == VERSION)?;
        let made = instant(now, reader.u48()?);
        let to = Return::parse(reader.counted()?)?;
        let grant = Grant::read(self.ring(), to.client(), &mut reader)?;
        let message = reader.counted()?.to_vec();
        let channel = Channel::parse(reader.counted()?)?;
        if !channel.is_answerable(self.ring()) {
            return None;
        }
        let new = self.server.install(now, grant.connection(), made, code);
        new.then(|| Minisocket::new(grant, to, Cow::Owned(message), channel))
    }
}
