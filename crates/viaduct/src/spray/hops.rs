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
            Ok((device, index)) => found.hops.push(Hop { address, device, index }),
            Err(why) => found.missing.push(why),
        }
    }
    found
}

/// Device that leads to an address, and its index.
fn device(
    lookup: &NextHopLookup,
    replica: &Replica,
    address: IpAddr,
) -> Result<(String, u32), String> {
    if let Some(device) = &replica.device {
        let index = interface::index(device);
        let index = index.map_err(|error| format!("no interface {device}: {error}"))?;
        return Ok((device.clone(), index));
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
    Ok((device, route.interface))
}

#[cfg(test)]
mod tests {
    use viaduct_sys::netns::Netns;
    use viaduct_sys::process::tool;

    use super::*;

    #[test]
    fn a_missing_device_is_a_fault_of_its_replica_and_a_device_created_again_another_hop() {
        let replica = Replica {
            name: "b9".to_owned(),
            addresses: vec![[192, 0, 2, 9].into()],
            weight: 1,
            is_drained: false,
            device: Some("b9".to_owned()),
        };
        let ip = |words: &[&str]| tool::run("ip", words, "").unwrap();
        let create = || ip(&["link", "add", "b9", "type", "veth", "peer", "name", "far"]);
        let test = || {
            let lookup = NextHopLookup::new().unwrap();
            let missing = find(&lookup, &replica);
            assert!(missing.hops.is_empty() && missing.missing[0].starts_with("no interface b9"));
            create();
            let first = find(&lookup, &replica);
            assert!(first.hops.len() == 1 && first == find(&lookup, &replica));
            ip(&["link", "del", "b9"]);
            create();
            assert_ne!(find(&lookup, &replica), first);
        };
        Netns::new().unwrap().enter(test).unwrap();
    }
}
