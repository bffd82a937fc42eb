//! Listeners that settings require, and the SYNs that concern them.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use viaduct_sys::capture::filter::SynFilter;
use viaduct_sys::nft::intercept::Selector;

use super::Settings;
use crate::engine::listen_set::{self, ListenSet, SynSourceConfig};

/// An address and a prefix length.
type Prefix = (IpAddr, u8);

impl Settings {
    /// Opens the listen sets of all loops. Errors: an address is in use, or SYNs cannot be seen.
    pub fn listen_sets(&self) -> Result<Vec<ListenSet>> {
        let (ways, ports) = self.scope();
        let (sources, destinations) = ends(&ways);
        let (sources, destinations, ports) = (&sources[..], &destinations[..], &ports[..]);
        let filter = SynFilter { sources, destinations, ports, share: None };
        let seen = self.engine.limits.early.is_some() && self.engine.target.may_be_in_syn();
        let held = self.holds.then_some((self.syn_queue(), self.max_held()));
        let wanted =
            seen.then_some(SynSourceConfig { filter, held, may_be_late: self.may_be_late });
        self.engine.listen_sets(wanted)
    }

    /// Maximum number of held SYNs.
    pub fn max_held(&self) -> u32 {
        let (most, _) = self.engine.limits.early.unwrap_or_default();
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Number of the queue that holds SYNs: the port of the first listen address.
    pub fn syn_queue(&self) -> u16 {
        self.engine.listen.first().map_or(0, SocketAddr::port)
    }

    /// Sources, destinations and ports of the SYNs that concern the proxy.
    pub fn scope(&self) -> (Vec<Selector>, Vec<u16>) {
        match &self.intercept {
            Some(intercept) => (intercept.ways.clone(), intercept.ports.clone()),
            None => {
                let listen = &self.engine.listen;
                let ports = listen.iter().map(SocketAddr::port).collect();
                (vec![Selector { from: Vec::new(), to: listen_set::prefixes(listen) }], ports)
            }
        }
    }
}

/// All sources and destinations of `ways`. The list of sources is empty if an entry matches
/// any source.
fn ends(ways: &[Selector]) -> (Vec<Prefix>, Vec<Prefix>) {
    let all = |end: fn(&Selector) -> &Vec<Prefix>| ways.iter().flat_map(end).copied().collect();
    let anywhere = ways.iter().any(|way| way.from.is_empty());
    (if anywhere { Vec::new() } else { all(|way| &way.from) }, all(|way| &way.to))
}
