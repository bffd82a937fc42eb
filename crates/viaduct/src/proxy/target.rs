//! Where a flow goes, and by which hop.

use std::net::{IpAddr, SocketAddr};
use std::{fmt, io};

use ipnet::IpNet;
use viaduct_proto::flow::Failure;
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::{Languages, Secret};
use viaduct_proto::split::proxy;

/// Where flows go.
#[derive(Clone, Debug)]
pub enum Target {
    /// All to one place.
    Fixed(SocketAddr),
    /// Each to where its client meant to, as tproxy says.
    Meant {
        /// With the client's address.
        keep_client: bool,
    },
    /// Each to where its client says.
    Asked(Terms),
}

/// Who may say so, how, and where to: an open proxy is somebody else's weapon.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What is understood.
    pub languages: Languages,
    /// The name and password that clients must know.
    pub secret: Secret,
    /// Clients' addresses.
    pub from: Vec<IpNet>,
    /// Servers' addresses.
    pub to: Vec<IpNet>,
}

/// A connection to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub to: SocketAddr,
    /// With which address, if not our own.
    pub from: Option<SocketAddr>,
    /// What goes before all else.
    pub first: Vec<u8>,
}

impl Target {
    /// Whether sockets take other hosts' addresses.
    pub fn is_transparent(&self) -> bool {
        matches!(self, Target::Meant { .. })
    }

    /// The ports whose SYNs begin flows; none means all. `None`: a SYN does not tell where to.
    pub fn ports(&self, listen: &[SocketAddr]) -> Option<Vec<u16>> {
        match self {
            Target::Fixed(_) => Some(listen.iter().map(SocketAddr::port).collect()),
            Target::Meant { .. } => Some(Vec::new()),
            Target::Asked(_) => None,
        }
    }

    /// Where the flow that `tuple` names goes, by `next` if there is one.
    pub fn route(&self, tuple: &Tuple, next: Option<SocketAddr>) -> Route {
        let (to, from) = match *self {
            Target::Fixed(to) => (to, None),
            Target::Meant { keep_client } => (tuple.to, keep_client.then_some(tuple.client)),
            Target::Asked(_) => (tuple.to, None),
        };
        Route::by(next, tuple.client, to, from)
    }
}

impl Route {
    /// The way of `client` to `to`; by a hop, which is told both, if there is one.
    pub fn by(
        next: Option<SocketAddr>,
        client: SocketAddr,
        to: SocketAddr,
        from: Option<SocketAddr>,
    ) -> Route {
        match next {
            None => Route { to, from, first: Vec::new() },
            Some(hop) => {
                let addresses = proxy::Addresses { source: client, destination: to };
                Route { to: hop, from: None, first: proxy::emit(&addresses) }
            }
        }
    }
}

impl Terms {
    /// Whether a client of this address may ask.
    pub fn may_ask(&self, client: IpAddr) -> bool {
        holds(&self.from, client)
    }

    /// Whether it may go there.
    pub fn may_go(&self, to: IpAddr) -> bool {
        holds(&self.to, to)
    }
}

fn holds(prefixes: &[IpNet], ip: IpAddr) -> bool {
    prefixes.iter().any(|net| net.contains(&ip.to_canonical()))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Fixed(to) => to.fmt(f),
            Target::Meant { .. } => f.write_str("where each client meant to"),
            Target::Asked(_) => f.write_str("where each client says"),
        }
    }
}

/// What an error of a connection means to whoever asked for it.
pub fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::TimedOut => Failure::TimedOut,
        io::ErrorKind::ConnectionReset => Failure::Reset,
        _ => Failure::Unreachable,
    }
}
