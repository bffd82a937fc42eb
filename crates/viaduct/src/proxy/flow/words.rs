//! What is said before all else: by a client that is to say where it wants to go, and to it.

use std::io::{self, IoSlice};

use viaduct_sys::urgent;

use super::{End, Flow};

/// Bytes that a client has said in vain and that are read all the same, at most.
const MOST_UNHEARD: usize = 64 << 10;

/// How far a client was listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// To all that it has said.
    All,
    /// To an urgent byte.
    Mark,
    /// To its end.
    End,
}

impl Flow {
    /// Reads what the client says, up to an urgent byte; `past` it, if it is the next.
    pub fn listen(&mut self, most: usize, mut past: bool) -> io::Result<Heard> {
        let (Some(client), Some(asked)) = (&mut self.legs[0], &mut self.asked) else {
            return Ok(Heard::All);
        };
        let mut chunk = [0; 1024];
        while asked.bytes.len() < most {
            // It is passed on as such if it is behind all that is said to be led: a read stops there.
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
                // What it has said before it broke may be enough.
                Err(_) if !asked.bytes.is_empty() => {
                    self.broken_end = Some(End::Client);
                    return Ok(Heard::End);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Heard::All)
    }

    /// Says to the client why there will be no flow. What it has said besides is read and dropped:
    /// a connection that is closed with bytes unread is reset, and its client may not read on then.
    pub fn turn_away(&mut self, words: &[u8]) {
        self.say(End::Client, words);
        let Some(client) = self.legs[0].as_mut().filter(|_| !words.is_empty()) else { return };
        let mut chunk = [0; 4096];
        for _ in 0..MOST_UNHEARD / chunk.len() {
            let Ok(Some(1..)) = client.read(&mut chunk) else { return };
        }
    }

    /// Says something to one end before all that follows.
    pub fn say(&mut self, to: End, words: &[u8]) {
        self.first[to as usize].extend(words);
        // Without a server nothing drives the flow yet.
        if to == End::Client {
            let _ = self.say_first(to);
        }
    }

    /// [Says](Flow::say_first) it; an end that breaks meanwhile is known to have.
    pub(super) fn say_first_or_break(&mut self, to: End) -> io::Result<bool> {
        self.say_first(to).inspect_err(|_| self.broken_end = Some(to))
    }

    /// Writes what goes to an end before all else; false if some of it must wait.
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
