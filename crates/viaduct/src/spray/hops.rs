//! Next hops to replicas: the device for each address of a replica.

use std::net::IpAddr;

use viaduct_sys::nft::spray::Hop;
use viaduct_sys::route::interface;
use viaduct_sys::route::next_hop::NextHopLookup;

use super::config::Replica;

/// Next hops of a replica's addresses, and the addresses that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaHops {
    /// Next hops that can be used: one for each address that is on-link, or for each address if the
    /// replica has a configured device.
    pub hops: Vec<Hop>,
    /// Reason for each address that cannot be reached.
    pub missing: Vec<String>,
}

/// Finds the next hops of a replica's addresses: through its configured device, or otherwise from
/// the kernel's routing tables.
pub fn find(lookup: &NextHopLookup, replica: &Replica) -> ReplicaHops {
    let mut found = ReplicaHops::default();
    for &address in &replica.addresses {
        match device(lookup, replica, address) {
            Ok(device) => found.hops.push(Hop { address, device }),
            Err(why) => found.missing.push(why),
        }
    }
    found
}

fn device(lookup: &NextHopLookup, replica: &Replica, address: IpAddr) -> Result<String, String> {
    if let Some(device) = &replica.device {
        return Ok(device.clone());
    }
    let route = lookup.route(address).map_err(|error| format!("no route to {address}: {error}"))?;
    let route = route.ok_or_else(|| format!("no route to {address}"))?;
    let device = interface::name(route.interface)
        .ok_or_else(|| format!("the interface of the route to {address} has disappeared"))?;
    if device == "lo" {
        return Err(format!("{address} is an address of this machine"));
    }
    if route.via != address {
        return Err(format!(
            "{address} is behind the router {}: use an address on the same link, or set `device` \
             to a tunnel",
            route.via
        ));
    }
    Ok(device)
}
