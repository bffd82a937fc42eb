//! Calls between the parts of a chain.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;

use super::handler::Output;

/// Destination of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IP address and port.
    Ip(SocketAddr),
    /// Host name, to be resolved where the connection is made, and port.
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

/// Direction of a flow, as the application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// From the network.
    Read,
    /// To the network.
    Write,
}

/// Reason for the failure of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// No listener at the destination.
    #[error("refused")]
    Refused,
    /// No route to the destination.
    #[error("unreachable")]
    Unreachable,
    /// No answer in time.
    #[error("timed out")]
    TimedOut,
    /// Reset by the other end.
    #[error("reset")]
    Reset,
    /// Forbidden by a rule.
    #[error("denied")]
    Denied,
    /// No room for another flow, or no file descriptor left.
    #[error("no room for more")]
    Full,
}

/// Option of the socket at the bottom of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// Send small writes at once (`TCP_NODELAY`).
    NoDelay(bool),
    /// Send keep-alive probes when idle (`SO_KEEPALIVE`).
    KeepAlive(bool),
}

/// Call of an upstream flow to the flow below it.
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

/// Call of a downstream flow to the flow above it.
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

/// Position in a chain that calls can be made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Node(usize),
    Bottom(usize),
}

/// Upstream neighbour of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    Top,
    Node(usize, Output),
}
