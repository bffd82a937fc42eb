//! Those that are compared: viaduct and what others have, each between the same client and server.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use viaduct_sys::thread::cores;

use crate::load::Server;
use crate::proxies::Proxy;
use crate::topology::programs::{Relay, Software};
use crate::topology::{Journal, Pair};

/// What each listens at is this plus its number.
const PORT: u16 = 7000;

/// Who.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Viaduct,
    Other(Software),
}

/// All of them, in the order in which they are shown.
pub(super) const ALL: [Contender; 4] = [
    Contender::Viaduct,
    Contender::Other(Software::Haproxy),
    Contender::Other(Software::Nginx),
    Contender::Other(Software::Varnish),
];

impl Contender {
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Viaduct => "viaduct",
            Contender::Other(software) => software.name(),
        }
    }
}

/// A machine with all of them, idle until spoken to, and one with the load.
pub(super) struct Arena {
    // Before what they run in.
    running: Vec<Running>,
    _server: Server,
    pub(super) pair: Pair,
    /// The load's core, and that of what stands in between.
    pub(super) cores: (usize, usize),
}

/// One of them.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) pid: u32,
    /// It runs as long as this is kept.
    _process: Box<dyn std::any::Any>,
}

impl Arena {
    pub(super) fn build(journal: &Journal, contenders: &[Contender]) -> Result<Arena> {
        let all = cores();
        let (first, last) = (all.first().context("no core")?, all.last().context("no core")?);
        let pair = Pair::build(journal)?;
        let server = Server::start(pair.load(), *first)?;
        let start = |(n, &contender): (usize, &Contender)| {
            let address = SocketAddr::new(pair.middle().v4().into(), PORT + n as u16);
            Running::start(contender, &pair, *last, address, server.address())
        };
        let running = contenders.iter().enumerate().map(start).collect::<Result<_>>()?;
        Ok(Arena { running, _server: server, pair, cores: (*first, *last) })
    }

    /// In the order in which they were asked for.
    pub(super) fn running(&self) -> &[Running] {
        &self.running
    }
}

impl Running {
    fn start(
        contender: Contender,
        pair: &Pair,
        core: usize,
        at: SocketAddr,
        to: SocketAddr,
    ) -> Result<Running> {
        let node = pair.middle();
        Ok(match contender {
            Contender::Viaduct => {
                let (listen, to) = (at.to_string(), to.to_string());
                let arguments = ["--listen", &listen, "--to", &to];
                let mut proxy = Proxy::start_on(node, core, &arguments)?;
                let pid = proxy.process().id();
                Running { address: at, pid, _process: Box::new(proxy) }
            }
            Contender::Other(software) => {
                let relay = Relay::start(software, node, core, at, to)?;
                Running { address: at, pid: relay.pid(), _process: Box::new(relay) }
            }
        })
    }
}
