//! Table of servers and clients by descriptor.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use viaduct_trickles::{Connector, Flow, Listener};

/// Server or client of a descriptor.
#[derive(Debug)]
pub(crate) enum End {
    Server(Box<Listener>),
    Client(Box<Client>),
}

/// A client's connection, with a port of its own.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) connector: Connector,
    pub(crate) flow: Flow,
    /// Bytes that were read from each stream, but that the program has not fetched yet.
    pub(crate) unread: BTreeMap<u32, bytes::Bytes>,
    /// Error, if the server is a plain TCP server or has refused the connection, or if the path MTU
    /// is too small.
    pub(crate) error: Option<c_int>,
}

type SharedEnd = Arc<Mutex<End>>;

static TABLE: Mutex<BTreeMap<c_int, SharedEnd>> = Mutex::new(BTreeMap::new());

/// Adds an end. Returns its descriptor.
pub(crate) fn insert(end: End) -> c_int {
    let fd = match &end {
        End::Server(listener) => listener.as_fd().as_raw_fd(),
        End::Client(client) => client.connector.as_fd().as_raw_fd(),
    };
    table().insert(fd, Arc::new(Mutex::new(end)));
    fd
}

/// Removes an end, which is closed when the last call that uses it returns. `-EBADF` if there is
/// none.
pub(crate) fn remove(fd: c_int) -> c_int {
    let gone = table().remove(&fd);
    if gone.is_some() { 0 } else { -libc::EBADF }
}

/// Calls `act` with the server `fd`.
pub(crate) fn server(fd: c_int, act: impl FnOnce(&mut Listener) -> c_int) -> c_int {
    with(fd, |end| match end {
        End::Server(listener) => act(listener),
        End::Client(_) => -libc::EOPNOTSUPP,
    })
}

/// Calls `act` with the connection `fd`.
pub(crate) fn client(fd: c_int, act: impl FnOnce(&mut Client) -> c_int) -> c_int {
    with(fd, |end| match end {
        End::Client(client) => act(client),
        End::Server(_) => -libc::EOPNOTSUPP,
    })
}

/// Calls `act` with the server or the connection `fd`.
pub(crate) fn with(fd: c_int, act: impl FnOnce(&mut End) -> c_int) -> c_int {
    let Some(shared) = table().get(&fd).cloned() else { return -libc::EBADF };
    // A panic is a bug in this library, but it leaves a consistent state.
    let mut end = shared.lock().unwrap_or_else(PoisonError::into_inner);
    act(&mut end)
}

fn table() -> MutexGuard<'static, BTreeMap<c_int, SharedEnd>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}
