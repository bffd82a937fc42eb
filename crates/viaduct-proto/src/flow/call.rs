//! What the parts of a chain say to each other.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;

use super::handler::Output;

/// Where a flow goes to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An address and a port.
    Ip(SocketAddr),
    /// The name of a host, to be looked up by whoever connects, and a port.
    Name(String, u16),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Address::Ip(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// One direction of a flow, as the application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// What comes from the network.
    Read,
    /// What goes to the network.
    Write,
}

/// Why a flow failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// Nobody listens there.
    #[error("refused")]
    Refused,
    /// There is no way there.
    #[error("unreachable")]
    Unreachable,
    /// Nothing was heard in time.
    #[error("timed out")]
    TimedOut,
    /// The other end broke it off.
    #[error("reset")]
    Reset,
    /// A rule forbids it.
    #[error("denied")]
    Denied,
    /// There is no room for one more flow, or no descriptor is left.
    #[error("no room for more")]
    Full,
}

/// A setting of the socket at the bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// Send small writes at once (`TCP_NODELAY`).
    NoDelay(bool),
    /// Send probes when nothing is said (`SO_KEEPALIVE`).
    KeepAlive(bool),
}

/// What an upstream flow asks of the one below it.
#[derive(Clone, Debug)]
pub(super) enum Down {
    Connect(Address),
    Bind(Address),
    Listen(u32),
    Accept,
    Write(Bytes),
    Shutdown(Half),
    Close,
    Abort,
    MayAvail(bool),
    SetOption(SocketOption),
}

/// What a downstream flow tells the one above it.
#[derive(Clone, Debug)]
pub(super) enum Up {
    Connected(Result<(), Failure>),
    AcceptReady,
    Accepted,
    Avail(Bytes),
    Finished,
    Failed(Failure),
    MayWrite(bool),
}

/// A place in a chain that calls can be made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Node(usize),
    Bottom(usize),
}

/// Who is upstream of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    Top,
    Node(usize, Output),
}
