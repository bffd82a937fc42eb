//! What is known of sockets whose connects were heard.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use viaduct_proto::wrap::Errno;

/// Sockets whose names are remembered; of more, the oldest are forgotten.
const SOCKETS: usize = 65_536;

/// What is known of a socket.
#[derive(Debug)]
pub(super) struct Known {
    /// Where it was meant to go.
    pub(super) peer: SocketAddr,
    /// Its own address, as the far end sees it.
    pub(super) own: Option<SocketAddr>,
    /// Why it does not get there, until its program has asked.
    pub(super) refused: Option<Errno>,
}

/// Sockets by cookie.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) known: HashMap<u64, Known>,
    /// In the order in which they came.
    order: VecDeque<u64>,
}

impl Names {
    pub(super) fn set(&mut self, cookie: u64, known: Known) {
        if self.known.insert(cookie, known).is_some() {
            return;
        }
        self.order.push_back(cookie);
        while self.order.len() > SOCKETS {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.known.remove(&oldest));
        }
    }

    /// Its place in the order stays: it is soon over.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.known.remove(&cookie);
    }
}
