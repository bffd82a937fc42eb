//! Preface of a flow: the client's request for a destination, and other bytes before the
//! payload.

use std::io;

use viaduct_sys::socket::urgent;

use super::client::PendingClient;
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
        let (Some(client), Some(PendingClient::Requesting(request))) =
            (&mut self.ends[0].conn, &mut self.pending_client)
        else {
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
                    self.ends[0].is_broken = true;
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
        let client = self.ends[0].conn.as_mut().filter(|_| !words.is_empty());
        let Some(client) = client else { return };
        let mut chunk = [0; 4096];
        for _ in 0..MAX_UNHEARD / chunk.len() {
            let Ok(Some(1..)) = client.read(&mut chunk) else { return };
        }
    }

    /// Queues preface bytes for an end.
    pub fn queue_preface(&mut self, to: End, words: &[u8]) {
        let end = &mut self.ends[to as usize];
        end.preface_out.extend(words);
        // Without a server, no event drives the flow yet.
        if to == End::Client {
            let _ = end.send_preface();
        }
    }
}
