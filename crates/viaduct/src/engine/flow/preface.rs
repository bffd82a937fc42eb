//! Preface of a flow: the client's request for a destination, and other bytes before the
//! payload.

use std::io::{self, IoSlice};

use viaduct_sys::socket::urgent;

use super::{End, Flow};

/// Maximum number of bytes of a refused client that are read and dropped.
const MAX_UNHEARD: usize = 64 << 10;

/// Position at which reading from the client stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStop {
    /// After all received bytes.
    All,
    /// At an urgent byte.
    Mark,
    /// At the end of the stream.
    End,
}

impl Flow {
    /// Reads the client's bytes, up to an urgent byte; over it if it is next and `past` is set.
    pub fn read_preface(&mut self, most: usize, mut past: bool) -> io::Result<ReadStop> {
        let (Some(client), Some(request)) = (&mut self.conns[0], &mut self.request) else {
            return Ok(ReadStop::All);
        };
        let mut chunk = [0; 1024];
        while request.bytes.len() < most {
            // Behind the request it is passed on as urgent: reading stops there.
            if !std::mem::take(&mut past)
                && let Some(stream) = client.tcp()
                && urgent::is_next(stream)?
            {
                return Ok(ReadStop::Mark);
            }
            let room = chunk.len().min(most - request.bytes.len());
            match client.read(&mut chunk[..room]) {
                Ok(None) => break,
                Ok(Some(0)) => return Ok(ReadStop::End),
                Ok(Some(read)) => request.bytes.extend(&chunk[..read]),
                // Bytes received before the client broke may be enough.
                Err(_) if !request.bytes.is_empty() => {
                    self.broken_end = Some(End::Client);
                    return Ok(ReadStop::End);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(ReadStop::All)
    }

    /// Sends the client a refusal. Its further bytes are read and dropped: a connection closed
    /// with unread bytes is reset, and its client might not read the refusal then.
    pub fn reject(&mut self, words: &[u8]) {
        self.queue_preface(End::Client, words);
        let Some(client) = self.conns[0].as_mut().filter(|_| !words.is_empty()) else { return };
        let mut chunk = [0; 4096];
        for _ in 0..MAX_UNHEARD / chunk.len() {
            let Ok(Some(1..)) = client.read(&mut chunk) else { return };
        }
    }

    /// Queues preface bytes for an end.
    pub fn queue_preface(&mut self, to: End, words: &[u8]) {
        self.preface_out[to as usize].extend(words);
        // Without a server, no event drives the flow yet.
        if to == End::Client {
            let _ = self.send_preface(to);
        }
    }

    /// Sends the preface like [`send_preface`](Flow::send_preface), and notes which end broke.
    pub(super) fn send_preface_or_break(&mut self, to: End) -> io::Result<bool> {
        self.send_preface(to).inspect_err(|_| self.broken_end = Some(to))
    }

    /// Writes the preface bytes of an end; false if some of them must wait.
    pub(super) fn send_preface(&mut self, to: End) -> io::Result<bool> {
        let (preface_out, conn) =
            (&mut self.preface_out[to as usize], &mut self.conns[to as usize]);
        while let Some(conn) = conn
            && !preface_out.is_empty()
        {
            match conn.write(&[IoSlice::new(preface_out)])? {
                Some(said) => drop(preface_out.drain(..said)),
                None => return Ok(false),
            }
        }
        Ok(preface_out.is_empty())
    }
}
