//! Compared proxies: viaduct and others, each between its own client and server. Each runs in a
//! [`Pair`] of network namespaces of its own, because the kernel's packet processing for one would
//! slow down the others.

use std::any::Any;

use crate::experiments::cores::first_and_last;
use crate::experiments::prelude::*;
use crate::load::{Load, Server, Shape};
use crate::topology::Pair;
use crate::topology::programs::{Relay, Software};

const PORT: u16 = 7000;
/// Congestion control of all sockets.
pub(super) const CONGESTION_CONTROL: &str = "cubic";

/// Compared proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Viaduct,
    Other(Software),
}

impl Contender {
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Viaduct => "viaduct",
            Contender::Other(software) => software.name(),
        }
    }
}

/// Running contender, idle until clients connect.
pub(super) struct Testbed {
    // The fields are dropped in this order.
    _process: Box<dyn Any>,
    _server: Server,
    pub(super) pair: Pair,
    /// Listening address.
    pub(super) address: SocketAddr,
    pub(super) pid: u32,
}

impl Testbed {
    /// Starts the contender on the machine's last core, and its server on the first core, where
    /// the load runs as well.
    pub(super) fn build(contender: Contender, journal: &Journal) -> Result<Testbed> {
        let (first, last) = first_and_last()?;
        let pair = Pair::build(journal)?;
        for host in [&pair.load, &pair.middle] {
            host.set_congestion_control(CONGESTION_CONTROL)?;
        }
        let server = Server::start(&pair.load, first)?;
        let (node, address) = (&pair.middle, SocketAddr::new(pair.middle.v4().into(), PORT));
        let (pid, process): (u32, Box<dyn Any>) = match contender {
            Contender::Viaduct => {
                let (listen, to) = (address.to_string(), server.address().to_string());
                // Room for connections of an earlier load that are not closed yet.
                let options = ["--listen", &listen, "--to", &to, "--flows", "9500"];
                let mut proxy = Proxy::start_on(node, last, &options)?;
                (proxy.process().id(), Box::new(proxy))
            }
            Contender::Other(software) => {
                let relay = Relay::start(software, node, last, address, server.address())?;
                (relay.pid(), Box::new(relay))
            }
        };
        Ok(Testbed { _process: process, _server: server, pair, address, pid })
    }

    /// Starts a load on the contender.
    pub(super) fn load(&self, shape: Shape) -> Result<Load> {
        Ok(Load::start(&self.pair.load, first_and_last()?.0, shape, self.address))
    }
}
