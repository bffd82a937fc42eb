//! Client's end of a flow: the request for a destination, the connection to a program until it is
//! established, and the client itself.

use std::io;

use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::Preface;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::urgent;

use super::{End, Flow};
use crate::engine::conn::Conn;

/// Maximum number of bytes of a refused client that are read and dropped.
const MAX_DISCARDED: usize = 64 << 10;

/// Position at which reading from the client stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStop {
    /// After all received bytes, or at the maximum length of a request.
    All,
    /// At an urgent byte.
    Mark,
    /// At the end of the stream.
    End,
}

/// Client that is not ready for payload.
#[derive(Debug)]
pub(super) enum PendingClient {
    /// Client that names its destination, or waits for the answer.
    Requesting(Box<ClientRequest>),
    /// Program's connection that is not established yet; it becomes the client's end.
    Coming(Conn),
}

/// Client's request for a destination.
#[derive(Debug)]
pub struct ClientRequest {
    /// Parser of the request.
    pub preface: Preface,
    /// Addresses of the client's connection.
    pub tuple: Tuple,
    /// Bytes received and not parsed yet.
    pub bytes: Vec<u8>,
    /// True if the connection was begun and the client waits for its result.
    pub begun: bool,
}

impl Flow {
    /// Client's request, until the client has got its answer.
    pub fn request(&mut self) -> Option<&mut ClientRequest> {
        match &mut self.pending_client {
            Some(PendingClient::Requesting(request)) => Some(request),
            Some(PendingClient::Coming(_)) | None => None,
        }
    }

    /// Clears the request: the client has received its answer.
    pub fn clear_request(&mut self) {
        if self.request().is_some() {
            self.pending_client = None;
        }
    }

    /// Reads the client's bytes up to an urgent byte, until `most` bytes wait to be parsed. If
    /// `past` is set and the next byte is urgent, reads past that byte.
    pub fn read_preface(&mut self, most: usize, mut past: bool) -> io::Result<ReadStop> {
        let (Some(client), Some(PendingClient::Requesting(request))) =
            (&mut self.ends[0].conn, &mut self.pending_client)
        else {
            return Ok(ReadStop::All);
        };
        let mut chunk = [0; 1024];
        while request.bytes.len() < most {
            // An urgent byte after the request must be passed on as urgent, so reading stops before
            // it.
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
                // Bytes received before the client broke may be a complete request.
                Err(_) if !request.bytes.is_empty() => {
                    self.ends[0].is_broken = true;
                    return Ok(ReadStop::End);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(ReadStop::All)
    }

    /// Sends the client a refusal. The client's further bytes are read and dropped: a connection
    /// that is closed with unread bytes is reset, and the client might never read the refusal.
    pub fn reject(&mut self, words: &[u8]) {
        self.queue_preface(End::Client, words);
        let client = self.ends[0].conn.as_mut().filter(|_| !words.is_empty());
        let Some(client) = client else { return };
        let mut chunk = [0; 4096];
        for _ in 0..MAX_DISCARDED / chunk.len() {
            let Ok(Some(1..)) = client.read(&mut chunk) else { return };
        }
    }

    /// Queues preface bytes for an end.
    pub fn queue_preface(&mut self, to: End, words: &[u8]) {
        let end = &mut self.ends[to as usize];
        end.preface_out.extend(words);
        // Sent immediately, because without a server no event drives the flow yet.
        if to == End::Client {
            let _ = end.send_preface();
        }
    }

    /// Returns whether the client's end is present.
    pub fn has_client(&self) -> bool {
        self.ends[0].conn.is_some()
    }

    /// Sets the client's connection.
    pub fn set_client(&mut self, client: Conn, now: Instant) {
        (self.ends[0].conn, self.times.moved) = (Some(client), now);
        self.pace();
        self.ready(End::Client, true, true);
    }

    /// If the client is a stream of a tunnel, accepts it, because the server side is established.
    pub fn accept_client(&self) {
        if let Some(client) = &self.ends[0].conn {
            client.accept();
        }
    }

    /// Sets the program's connection, which is not established yet.
    pub fn set_coming(&mut self, client: Conn, now: Instant) {
        self.pending_client = Some(PendingClient::Coming(client));
        (self.times.begun, self.times.moved) = (now, now);
    }

    /// Program's connection, if it is not established yet.
    pub(super) fn coming(&self) -> Option<&Conn> {
        match &self.pending_client {
            Some(PendingClient::Coming(client)) => Some(client),
            Some(PendingClient::Requesting(_)) | None => None,
        }
    }

    /// Returns whether a program's connection is not established yet.
    pub fn is_coming(&self) -> bool {
        self.coming().is_some()
    }

    /// Checks whether the program's connection is established; it then becomes the client's end.
    /// `Err` if it failed.
    pub fn check_coming(&mut self, now: Instant) -> io::Result<()> {
        let is_made = self.coming().map_or(Ok(false), Conn::check_connected)?;
        if is_made && let Some(PendingClient::Coming(client)) = self.pending_client.take() {
            self.set_client(client, now);
        }
        Ok(())
    }
}
