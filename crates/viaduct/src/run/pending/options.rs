//! Options that programs have set on their sockets.

use std::collections::{HashMap, VecDeque};

use viaduct_sys::socket::tcp::Mirrored;

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
