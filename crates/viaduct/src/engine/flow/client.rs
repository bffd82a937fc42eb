//! Client's end of a flow: the request for a destination, the connection to a program that is
//! still being made, and the client itself.

use std::io;

use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::Preface;
use viaduct_proto::time::Instant;

use super::{End, Flow};
use crate::engine::conn::Conn;

/// Client that is not ready for payload.
#[derive(Debug)]
pub(super) enum PendingClient {
    /// Names its destination, or waits for the answer.
    Requesting(Box<ClientRequest>),
    /// A program's connection that is still being made; it becomes the client's end.
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

    /// Tells a client that waits for the second half that it is established.
    pub fn accept_client(&self) {
        if let Some(client) = &self.ends[0].conn {
            client.accept();
        }
    }

    /// Sets the program's connection, which is still being made.
    pub fn set_coming(&mut self, client: Conn, now: Instant) {
        (self.pending_client, self.times.moved) = (Some(PendingClient::Coming(client)), now);
    }

    /// Program's connection, if it is still being made.
    pub(super) fn coming(&self) -> Option<&Conn> {
        match &self.pending_client {
            Some(PendingClient::Coming(client)) => Some(client),
            Some(PendingClient::Requesting(_)) | None => None,
        }
    }

    /// Returns whether a program's connection is being made.
    pub fn is_coming(&self) -> bool {
        self.coming().is_some()
    }

    /// Checks whether the program's connection is made; it then becomes the client's end.
    /// `Err`: it failed.
    pub fn check_coming(&mut self, now: Instant) -> io::Result<()> {
        let is_made = self.coming().map_or(Ok(false), Conn::check_connected)?;
        if is_made && let Some(PendingClient::Coming(client)) = self.pending_client.take() {
            self.set_client(client, now);
        }
        Ok(())
    }
}
