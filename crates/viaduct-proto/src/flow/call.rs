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
    /// Host name and port. The name is resolved where the connection is made.
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
    /// Reset by the other end, or broken.
    #[error("reset")]
    Reset,
    /// Forbidden by a rule, or an end failed to authenticate.
    #[error("denied")]
    Denied,
    /// No room for another flow, or no file descriptor left.
    #[error("no room for more")]
    Full,
}

/// Transport of the connections below an output flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputTransport {
    /// The kernel's TCP.
    Tcp,
    /// [Trickles](crate::trickles).
    Trickles,
}

/// Socket option with an integer value, as `setsockopt(2)` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOption {
    /// Level, such as `SOL_SOCKET`.
    pub level: i32,
    /// Name, such as `SO_KEEPALIVE`.
    pub name: i32,
    /// Value.
    pub value: i32,
}

/// Options that were set, each with its last value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions(Vec<SocketOption>);

impl SocketOptions {
    /// Sets an option.
    pub fn set(&mut self, option: SocketOption) {
        self.0.retain(|of| (of.level, of.name) != (option.level, option.name));
        self.0.push(option);
    }

    /// Value of an option; `None` if it was not set.
    pub fn get(&self, level: i32, name: i32) -> Option<i32> {
        self.iter().find(|of| (of.level, of.name) == (level, name)).map(|of| of.value)
    }

    /// Options in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = SocketOption> {
        self.0.iter().copied()
    }
}

/// Call of an upstream flow to the flow below it.
#[derive(Clone, Debug)]
pub(super) enum Down {
    Connect(Address),
    Bind(Address),
    Listen,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    Top,
    Node(usize, Output),
}
