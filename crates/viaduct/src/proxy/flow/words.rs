//! Preface of a flow: the client's request for a destination, and other bytes before the
//! payload.

use std::io::{self, IoSlice};

use viaduct_sys::socket::urgent;

use super::{End, Flow};

/// Maximum number of bytes of a refused client that are read and dropped.
const MAX_UNHEARD: usize = 64 << 10;

/// Position at which reading from the client stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// After all received bytes.
    All,
    /// At an urgent byte.
    Mark,
    /// At the end of the stream.
    End,
}

impl Flow {
    /// Reads the client's bytes, up to an urgent byte; over it if it is next and `past` is set.
    pub fn listen(&mut self, most: usize, mut past: bool) -> io::Result<Heard> {
        let (Some(client), Some(asked)) = (&mut self.legs[0], &mut self.asked) else {
            return Ok(Heard::All);
        };
        let mut chunk = [0; 1024];
        while asked.bytes.len() < most {
            // Behind the request it is passed on as urgent: reading stops there.
            if !std::mem::take(&mut past)
                && let Some(stream) = client.tcp()
                && urgent::is_next(stream)?
            {
                return Ok(Heard::Mark);
            }
            let room = chunk.len().min(most - asked.bytes.len());
            match client.read(&mut chunk[..room]) {
                Ok(None) => break,
                Ok(Some(0)) => return Ok(Heard::End),
                Ok(Some(read)) => asked.bytes.extend(&chunk[..read]),
                // Bytes received before the client broke may be enough.
                Err(_) if !asked.bytes.is_empty() => {
                    self.broken_end = Some(End::Client);
                    return Ok(Heard::End);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Heard::All)
    }

    /// Sends the client a refusal. Its further bytes are read and dropped: a connection closed
    /// with unread bytes is reset, and its client might not read the refusal then.
    pub fn turn_away(&mut self, words: &[u8]) {
        self.say(End::Client, words);
        let Some(client) = self.legs[0].as_mut().filter(|_| !words.is_empty()) else { return };
        let mut chunk = [0; 4096];
        for _ in 0..MAX_UNHEARD / chunk.len() {
            let Ok(Some(1..)) = client.read(&mut chunk) else { return };
        }
    }

    /// Queues preface bytes for an end.
    pub fn say(&mut self, to: End, words: &[u8]) {
        self.first[to as usize].extend(words);
        // Without a server, no event drives the flow yet.
        if to == End::Client {
            let _ = self.say_first(to);
        }
    }

    /// Sends the preface like [`say_first`](Flow::say_first), and notes which end broke.
    pub(super) fn say_first_or_break(&mut self, to: End) -> io::Result<bool> {
        self.say_first(to).inspect_err(|_| self.broken_end = Some(to))
    }

    /// Writes the preface bytes of an end; false if some of them must wait.
    pub(super) fn say_first(&mut self, to: End) -> io::Result<bool> {
        let (first, leg) = (&mut self.first[to as usize], &mut self.legs[to as usize]);
        while let Some(leg) = leg
            && !first.is_empty()
        {
            match leg.write(&[IoSlice::new(first)])? {
                Some(said) => drop(first.drain(..said)),
                None => return Ok(false),
            }
        }
        Ok(first.is_empty())
    }
}
