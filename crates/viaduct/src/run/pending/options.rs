//! Options that programs have set on their sockets.

use std::collections::{HashMap, VecDeque};
use std::io;

use tracing::debug;
use viaduct_proto::wrap::Socket;
use viaduct_sys::socket::tcp::Mirrored;

use super::Interposition;
use crate::engine::aware::{ProgramRequest, RequestKind, SocketId};

/// Sockets whose options are remembered; the oldest are dropped first.
const MAX_SOCKETS: usize = 65_536;

/// Options of sockets, by socket cookie.
#[derive(Debug, Default)]
pub struct Options {
    known: HashMap<u64, Mirrored>,
    /// Cookies in order of insertion.
    order: VecDeque<u64>,
}

impl Options {
    /// Returns the options of a socket, to be changed.
    pub fn of(&mut self, socket: u64) -> &mut Mirrored {
        if !self.known.contains_key(&socket) {
            self.order.push_back(socket);
            if self.order.len() > MAX_SOCKETS {
                let oldest = self.order.pop_front();
                oldest.map(|oldest| self.known.remove(&oldest));
            }
        }
        self.known.entry(socket).or_default()
    }

    /// Returns the options of a socket.
    pub fn get(&self, socket: u64) -> Mirrored {
        if self.known.is_empty() {
            return Mirrored::default();
        }
        self.known.get(&socket).copied().unwrap_or_default()
    }
}

impl Interposition {
    /// Returns whether options that a program sets on such a socket are mirrored. They are not
    /// where the program's connections are its own (offload).
    pub fn mirrors_of(&self, is: Socket) -> bool {
        self.offload.is_none() && is.is_tcp()
    }

    /// Mirrors an option that a program has set on a socket; `read` reads it from there.
    /// `socket_id` identifies the socket's flow if it is connected.
    pub fn mirror(
        &self,
        cookie: u64,
        socket_id: Option<SocketId>,
        read: impl FnOnce(&mut Mirrored) -> io::Result<()>,
    ) {
        let mut sockets = self.sockets();
        let mirrored = sockets.mirrored.of(cookie);
        if let Err(error) = read(mirrored) {
            return debug!("an option of a socket: {error}");
        }
        let mirrored = *mirrored;
        drop(sockets);
        if let Some(socket_id) = socket_id {
            self.carrier.mirror(socket_id, mirrored);
        }
    }

    /// Asks the handlers of a socket's flow for the value of an option. `answer` is dropped if
    /// there is no such flow here.
    pub fn getsockopt(
        &self,
        socket_id: SocketId,
        (level, name): (i32, i32),
        answer: impl FnOnce(Option<i32>) + Send + 'static,
    ) {
        let kind = RequestKind::Option(level, name, Box::new(answer));
        self.carrier.request(ProgramRequest { candidates: vec![socket_id], kind });
    }
}
