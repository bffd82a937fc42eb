//! Where a flow goes.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};

use viaduct_sys::tcp::{self, TcpOptions};

use viaduct_proto::split::early::Tuple;

/// Where flows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// All to one place.
    Fixed(SocketAddr),
    /// Each to where its client meant to.
    Meant {
        /// With the client's address.
        keep_client: bool,
    },
}

impl Target {
    /// Whether sockets take other hosts' addresses.
    pub fn is_transparent(&self) -> bool {
        matches!(self, Target::Meant { .. })
    }

    /// Begins the connection of the flow that `tuple` names.
    pub fn connect(&self, tuple: &Tuple, options: TcpOptions) -> io::Result<TcpStream> {
        match *self {
            Target::Fixed(to) => tcp::connect(to, None, options),
            Target::Meant { keep_client } => {
                tcp::connect(tuple.to, keep_client.then_some(tuple.client), options)
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Fixed(to) => to.fmt(f),
            Target::Meant { .. } => f.write_str("where each client meant to"),
        }
    }
}
