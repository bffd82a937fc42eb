//! Socket options. The program sets them on its own end, and the handlers on connections to
//! the network.

use viaduct_proto::flow::{BottomId, SocketOption};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::Mirrored;

use super::ChainIo;
use crate::engine::conn::Conn;

impl ChainIo {
    /// Tells the handlers which options of the program's own end have changed.
    pub fn mirror(&mut self, mirrored: Mirrored, now: Instant) {
        let before = std::mem::replace(&mut self.mirrored, mirrored);
        for (level, name, value) in mirrored.since(before) {
            self.chain.setsockopt(now, SocketOption { level, name, value });
        }
        self.act();
    }

    /// Value that the program sees for an option; `None` means the value of its own socket.
    pub fn getsockopt(&mut self, level: i32, name: i32, now: Instant) -> Option<i32> {
        self.chain.getsockopt(now, level, name)
    }

    /// Options that the handlers have set on the flow's own connection.
    pub fn main_options(&self) -> Mirrored {
        self.options(self.net_conns[0].id)
    }

    /// Options that the handlers have set on a connection, which may not be open yet.
    pub fn options(&self, id: BottomId) -> Mirrored {
        let mut options = Mirrored::default();
        for SocketOption { level, name, value } in self.chain.options(id) {
            options.set(level, name, value);
        }
        options
    }

    /// Applies the options that the handlers have set since the last call.
    pub(super) fn apply_options(&mut self, main: Option<&Conn>) {
        if !std::mem::take(&mut self.sets_options) {
            return;
        }
        for net_conn in self.net_conns.iter().filter(|net_conn| !net_conn.gone) {
            if let Some(stream) = net_conn.conn.as_ref().or(main).and_then(Conn::tcp) {
                self.options(net_conn.id).apply_later(stream);
            }
        }
    }
}
