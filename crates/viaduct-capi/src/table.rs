//! Which descriptor is which server or client.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use viaduct::trickles::{Connector, Flow, Listener};

/// What stands behind a descriptor.
#[derive(Debug)]
pub(crate) enum End {
    /// A server.
    Server(Box<Listener>),
    /// A client's connection.
    Client(Box<Client>),
}

/// A client's connection, with a port of its own.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) connector: Connector,
    pub(crate) flow: Flow,
    /// What was read of a stream, and not yet taken.
    pub(crate) left: BTreeMap<u32, bytes::Bytes>,
    /// The server is a plain TCP server, or there is none.
    pub(crate) fallen: Option<c_int>,
}

type Shared = Arc<Mutex<End>>;

static TABLE: Mutex<BTreeMap<c_int, Shared>> = Mutex::new(BTreeMap::new());

/// Enters it; its descriptor.
pub(crate) fn enter(end: End) -> c_int {
    let fd = match &end {
        End::Server(listener) => listener.as_fd().as_raw_fd(),
        End::Client(client) => client.connector.as_fd().as_raw_fd(),
    };
    table().insert(fd, Arc::new(Mutex::new(end)));
    fd
}

/// Takes it out, and closes it when nobody uses it any more.
pub(crate) fn leave(fd: c_int) -> c_int {
    let gone = table().remove(&fd);
    if gone.is_some() { 0 } else { -libc::EBADF }
}

/// Does something with the server `fd`.
pub(crate) fn server(fd: c_int, act: impl FnOnce(&mut Listener) -> c_int) -> c_int {
    with(fd, |end| match end {
        End::Server(listener) => act(listener),
        End::Client(_) => -libc::EOPNOTSUPP,
    })
}

/// Does something with the connection `fd`.
pub(crate) fn client(fd: c_int, act: impl FnOnce(&mut Client) -> c_int) -> c_int {
    with(fd, |end| match end {
        End::Client(client) => act(client),
        End::Server(_) => -libc::EOPNOTSUPP,
    })
}

/// Does something with either.
pub(crate) fn with(fd: c_int, act: impl FnOnce(&mut End) -> c_int) -> c_int {
    let Some(shared) = table().get(&fd).cloned() else { return -libc::EBADF };
    // A panic is a defect of ours; what it left is in order.
    let mut end = shared.lock().unwrap_or_else(PoisonError::into_inner);
    act(&mut end)
}

fn table() -> MutexGuard<'static, BTreeMap<c_int, Shared>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}
