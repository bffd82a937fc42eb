//! Those that are compared: viaduct and what others have, each between a client and a server of its
//! own. They share no machine: what one has the kernel do with packets would cost the others.

use std::any::Any;
use std::net::SocketAddr;

use anyhow::Result;

use crate::experiments::cores::first_and_last;
use crate::load::{Load, Server, Shape};
use crate::proxies::Proxy;
use crate::topology::programs::{Relay, Software};
use crate::topology::{Journal, Pair};

const PORT: u16 = 7000;
/// Of all sockets at all ends.
pub(super) const CONGESTION_CONTROL: &str = "cubic";

/// Who.
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

/// One of them at work: idle until spoken to.
pub(super) struct Stall {
    // In the order in which they end.
    _process: Box<dyn Any>,
    _server: Server,
    pub(super) pair: Pair,
    /// Where it listens.
    pub(super) address: SocketAddr,
    pub(super) pid: u32,
}

impl Stall {
    /// The load and the server are on the machine's first core, the contender is on its last.
    pub(super) fn build(contender: Contender, journal: &Journal) -> Result<Stall> {
        let (first, last) = first_and_last()?;
        let pair = Pair::build(journal)?;
        for host in [pair.load(), pair.middle()] {
            host.set_congestion_control(CONGESTION_CONTROL)?;
        }
        let server = Server::start(pair.load(), first)?;
        let (node, address) = (pair.middle(), SocketAddr::new(pair.middle().v4().into(), PORT));
        let (pid, process): (u32, Box<dyn Any>) = match contender {
            Contender::Viaduct => {
                let (listen, to) = (address.to_string(), server.address().to_string());
                // Beside those that are measured some of the crowd before may be left.
                let options = ["--listen", &listen, "--to", &to, "--flows", "9500"];
                let mut proxy = Proxy::start_on(node, last, &options)?;
                (proxy.process().id(), Box::new(proxy))
            }
            Contender::Other(software) => {
                let relay = Relay::start(software, node, last, address, server.address())?;
                (relay.pid(), Box::new(relay))
            }
        };
        Ok(Stall { _process: process, _server: server, pair, address, pid })
    }

    /// Puts a load on it.
    pub(super) fn load(&self, shape: Shape) -> Result<Load> {
        Ok(Load::start(self.pair.load(), first_and_last()?.0, shape, self.address))
    }
}
