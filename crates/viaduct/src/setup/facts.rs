//! Properties of this machine, from which the defaults of the questions follow.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use viaduct_sys::route::links::{Link, Links};
use viaduct_sys::route::survey::{ForwardRoute, OwnAddress, forward_routes, own_addresses};

/// Interfaces, addresses and routes of a machine. Lookups use only these values.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Name of the machine.
    pub host_name: String,
    /// Interfaces.
    pub links: Links,
    /// Own addresses.
    pub addresses: Vec<OwnAddress>,
    /// Routes of the main table. Of several routes to the same prefix, the first is used.
    pub routes: Vec<ForwardRoute>,
    /// True if packets are forwarded: IPv4, IPv6.
    pub forwards: [bool; 2],
}

impl Facts {
    /// Reads the properties of this machine, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses a netlink request.
    pub fn read() -> Result<Facts> {
        let is_on = |key: &str| {
            let value = fs::read_to_string(format!("/proc/sys/net/{key}"));
            value.is_ok_and(|value| value.trim() == "1")
        };
        Ok(Facts {
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            links: Links::read().context("cannot list the interfaces")?,
            addresses: own_addresses().context("cannot list the addresses")?,
            routes: forward_routes().context("cannot list the routes")?,
            forwards: [is_on("ipv4/ip_forward"), is_on("ipv6/conf/all/forwarding")],
        })
    }

    /// Name for the site: the permitted characters of the first label of the machine's name.
    pub fn site_name(&self) -> Option<String> {
        let label = self.host_name.split('.').next().unwrap_or_default();
        let name: String =
            label.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(64).collect();
        (!name.is_empty()).then_some(name)
    }

    /// Interface by which packets leave for the first of `targets` that has a route. If none has a
    /// route, the interface of the default route.
    pub fn wan(&self, targets: &[IpAddr]) -> Option<&Link> {
        let default = |route: &&ForwardRoute| route.to.1 == 0;
        let by_target = targets.iter().find_map(|&ip| self.route_to(ip));
        let route = by_target.or_else(|| self.routes.iter().find(default))?;
        self.links.at(route.interface)
    }

    /// Longest prefix match.
    fn route_to(&self, ip: IpAddr) -> Option<&ForwardRoute> {
        let has = |route: &&ForwardRoute| net(route.to).is_some_and(|net| net.contains(&ip));
        // Of equal keys `min_by_key` returns the first.
        self.routes.iter().filter(has).min_by_key(|route| u8::MAX - route.to.1)
    }

    /// Returns the addresses of the interface `name`.
    pub fn addresses_of(&self, name: &str) -> impl Iterator<Item = &OwnAddress> {
        let index = self.links.named(name).map(|link| link.index);
        self.addresses.iter().filter(move |own| Some(own.interface) == index)
    }

    /// Own address of a family on the interface `wan`; of any family if `is_ipv4` is `None`, IPv4
    /// first.
    pub fn wan_address(&self, wan: &str, is_ipv4: Option<bool>) -> Option<&OwnAddress> {
        let fits = |own: &&OwnAddress| is_ipv4.is_none_or(|is| own.ip.is_ipv4() == is);
        self.addresses_of(wan).filter(fits).min_by_key(|own| !own.ip.is_ipv4())
    }

    /// Returns whether `ip` is an address of this machine.
    pub fn has_address(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.ip == ip)
    }

    /// Prefixes of the hosts behind this machine: those connected to its other Ethernet
    /// interfaces, joined where they are adjacent.
    pub fn site_prefixes(&self, wan: &str) -> Vec<IpNet> {
        let is_lan = |route: &&ForwardRoute| {
            let link = self.links.at(route.interface);
            route.is_connected
                && link.is_some_and(|link| link.name != wan && link.is_running && link.is_ethernet)
        };
        let lan = self.routes.iter().filter(is_lan).filter_map(|route| net(route.to));
        IpNet::aggregate(&lan.filter(|net| !is_link_local(net.addr())).collect())
    }
}

/// Returns whether `ip` is a link-local address, or an IPv6 multicast address.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
    }
}

/// Returns whether `ip` is reachable only in its own network: the peer may see another address.
pub fn is_private(ip: IpAddr) -> bool {
    match ip {
        // The last range is that of carrier-grade NAT (RFC 6598).
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private() || v4.is_link_local() || a == 100 && b & 0xc0 == 64
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// Address in the text of an endpoint; `None` for the name of a host.
pub fn ip_of(text: &str) -> Option<IpAddr> {
    text.parse::<SocketAddr>().ok().map(|at| at.ip())
}

fn net((ip, length): (IpAddr, u8)) -> Option<IpNet> {
    IpNet::new(ip, length).ok()
}
