//! Options that programs have set on their sockets.

use std::io;

use tracing::debug;
use viaduct_proto::wrap::Socket;
use viaduct_sys::socket::tcp::Mirrored;

use super::Interposition;
use crate::engine::aware::{ProgramRequest, RequestKind, SocketId};

impl Interposition {
    /// Returns whether options that a program sets on a socket of this kind are mirrored to its
    /// flow. With `offload` they are not, because the program's own socket is then the connection
    /// to the far end.
    pub fn mirrors_of(&self, is: Socket) -> bool {
        self.offload.is_none() && is.is_tcp()
    }

    /// Mirrors an option that a program has set on a socket; `read` reads the option from the
    /// socket. `socket_id` identifies the socket's flow, if it may have one.
    pub fn mirror(
        &self,
        cookie: u64,
        socket_id: Option<SocketId>,
        read: impl FnOnce(&mut Mirrored) -> io::Result<()>,
    ) {
        let mut sockets = self.sockets();
        let mut mirrored = sockets.mirrored.get(cookie).copied().unwrap_or_default();
        if let Err(error) = read(&mut mirrored) {
            return debug!("cannot read a socket option: {error}");
        }
        sockets.mirrored.set(cookie, mirrored);
        drop(sockets);
        if let Some(socket_id) = socket_id {
            self.carrier.mirror(socket_id, mirrored);
        }
    }

    /// Requests the value of an option from the handlers of a socket's flow. `answer` gets `None`
    /// if there is no such flow, or no handler supplies a value. With a shared master, `answer` is
    /// dropped without a call.
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
