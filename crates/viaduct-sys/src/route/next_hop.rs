//! Next-hop lookup: output interface and link-layer addresses.
//!
//! For packets that bypass the kernel's routing ([`crate::capture::raw_gso`]). There is no hop
//! where the kernel would still have to resolve it (a neighbour not heard of for a while), or would
//! do more than forward (a tunnel, IPsec); such packets are to be sent through the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use crate::route::local_addresses::{ROUTE_HEAD, ROUTE_KIND, family, route_query};
use crate::route::netlink::{self, Message};

/// Bytes of a link-layer address.
const LINK: usize = 6;
/// Size of `struct ndmsg`, and the offset of a neighbour's state in it.
const NEIGHBOUR_HEAD: usize = 12;
const STATE: usize = 8;
/// States of a neighbour whose link-layer address the kernel has confirmed or is confirming.
const CONFIRMED: u16 = 0x02 | 0x08 | 0x10 | 0x80; // REACHABLE, DELAY, PROBE, PERMANENT
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Size of `struct ifinfomsg`, and the offset of an interface's type in it.
const INTERFACE_HEAD: usize = 16;
const INTERFACE_TYPE: usize = 2;
/// Constant of `linux/rtnetlink.h`, which libc lacks.
const RTAX_MTU: u16 = 2;
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
/// Constants of `linux/xfrm.h` for the number of policies, which libc lacks.
const XFRM_MSG_GETSPDINFO: u16 = 0x25;
const XFRM_MSG_NEWSPDINFO: u16 = 0x24;
const XFRMA_SPD_INFO: u16 = 1;

/// Result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Interface index.
    pub interface: u32,
    /// Next router; the destination itself on the last link.
    pub via: IpAddr,
    /// MTU of the route, if it has one or a router has reported one.
    pub mtu: Option<usize>,
}

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface index.
    pub interface: u32,
    /// Link-layer address of the interface, and that of the next host.
    pub own: [u8; LINK],
    /// See `own`.
    pub next: [u8; LINK],
    /// MTU of the interface.
    pub mtu: usize,
}

/// Next-hop lookup in the kernel's tables.
#[derive(Debug)]
pub struct NextHopLookup {
    routes: OwnedFd,
    /// `None` if the kernel lacks IPsec.
    policies: Option<OwnedFd>,
}

impl NextHopLookup {
    /// Opens lookups in the calling thread's network namespace.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<NextHopLookup> {
        let routes = netlink::open(libc::NETLINK_ROUTE, 0)?;
        Ok(NextHopLookup { routes, policies: netlink::open(libc::NETLINK_XFRM, 0).ok() })
    }

    /// Returns the route of packets to `ip`; `None` if they are not simply forwarded.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub fn route(&self, ip: IpAddr) -> io::Result<Option<Route>> {
        let route = netlink::ask(&self.routes, route_query(ip), libc::RTM_NEWROUTE)?;
        Ok(route.and_then(|route| parse_route(&route, ip)))
    }

    /// Returns the next hop, over Ethernet or the loopback interface; `None` where the kernel
    /// itself has to send.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub fn next_hop(&self, Route { interface, via, .. }: Route) -> io::Result<Option<NextHop>> {
        if self.has_policies()? {
            return Ok(None);
        }
        let Some((kind, own, mtu)) = self.interface(interface)? else { return Ok(None) };
        let next = match kind {
            ARPHRD_LOOPBACK => Some([0; LINK]),
            ARPHRD_ETHER => self.neighbour(interface, via)?,
            _ => None,
        };
        Ok(next.map(|next| NextHop { interface, own, next, mtu }))
    }

    /// Returns whether IPsec policies may apply to packets that leave.
    fn has_policies(&self) -> io::Result<bool> {
        let Some(socket) = &self.policies else { return Ok(false) };
        let ask = Message::of_routing(XFRM_MSG_GETSPDINFO, 0, &[0; 4]);
        let said = netlink::ask(socket, ask, XFRM_MSG_NEWSPDINFO)?;
        let leaving = said.and_then(|said| word(netlink::find(said.get(4..)?, XFRMA_SPD_INFO)?, 4));
        Ok(leaving != Some(0))
    }

    fn interface(&self, number: u32) -> io::Result<Option<(u16, [u8; LINK], usize)>> {
        let mut head = [0; INTERFACE_HEAD];
        head[4..8].copy_from_slice(&number.to_ne_bytes());
        let ask = Message::of_routing(libc::RTM_GETLINK, 0, &head);
        let said = netlink::ask(&self.routes, ask, libc::RTM_NEWLINK)?;
        Ok(said.and_then(|said| {
            let attributes = said.get(INTERFACE_HEAD..)?;
            let kind = u16::from_ne_bytes(*said.get(INTERFACE_TYPE..)?.first_chunk()?);
            let own = *netlink::find(attributes, libc::IFLA_ADDRESS)?.first_chunk()?;
            let mtu = word(netlink::find(attributes, libc::IFLA_MTU)?, 0)?;
            Some((kind, own, mtu as usize))
        }))
    }

    fn neighbour(&self, interface: u32, ip: IpAddr) -> io::Result<Option<[u8; LINK]>> {
        let (family, octets) = family(ip);
        let mut head = [0; NEIGHBOUR_HEAD];
        head[0] = family;
        head[4..8].copy_from_slice(&interface.to_ne_bytes());
        let ask = Message::of_routing(libc::RTM_GETNEIGH, 0, &head).with(NDA_DST, &octets);
        let said = netlink::ask(&self.routes, ask, libc::RTM_NEWNEIGH)?;
        Ok(said.and_then(|said| {
            let state = u16::from_ne_bytes(*said.get(STATE..)?.first_chunk()?);
            let address = netlink::find(said.get(NEIGHBOUR_HEAD..)?, NDA_LLADDR)?;
            (state & CONFIRMED != 0).then_some(*address.first_chunk()?)
        }))
    }
}

fn parse_route(route: &[u8], ip: IpAddr) -> Option<Route> {
    let attributes = route.get(ROUTE_HEAD..)?;
    if ![libc::RTN_UNICAST, libc::RTN_LOCAL].contains(route.get(ROUTE_KIND)?)
        || netlink::find(attributes, libc::RTA_ENCAP).is_some()
    {
        return None;
    }
    let interface = word(netlink::find(attributes, libc::RTA_OIF)?, 0)?;
    let metrics = netlink::find(attributes, libc::RTA_METRICS);
    let mtu = metrics.and_then(|all| word(netlink::find(all, RTAX_MTU)?, 0));
    let mtu = mtu.map(|mtu| mtu as usize);
    // `RTA_VIA` has the router's address family before its address.
    let via = netlink::find(attributes, libc::RTA_VIA).and_then(|via| via.get(2..));
    let via = netlink::find(attributes, libc::RTA_GATEWAY).or(via);
    let via = match via.map(|via| (via.len(), via)) {
        None => ip,
        Some((4, via)) => Ipv4Addr::from(*via.first_chunk()?).into(),
        Some((16, via)) => Ipv6Addr::from(*via.first_chunk()?).into(),
        Some(_) => return None,
    };
    Some(Route { interface, via, mtu })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_a_hop_and_what_no_route_leads_to_is_none() {
        let hops = NextHopLookup::new().unwrap();
        for ip in ["127.0.0.5", "::1"] {
            let way = hops.route(ip.parse().unwrap()).unwrap().expect("a way");
            let hop = hops.next_hop(way).unwrap().expect("a hop");
            assert_eq!((hop.own, hop.next, hop.mtu), ([0; 6], [0; 6], 65_536), "{ip}");
        }
    }
}
