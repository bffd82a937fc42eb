//! Next-hop lookup: output interface and link-layer addresses.
//!
//! Packets that bypass the kernel's routing need this lookup ([`crate::capture::raw_gso`]). The
//! result is `None` if the kernel would still have to resolve the neighbour, or would do more than
//! forward (a tunnel, IPsec). Such packets are to be sent through the kernel.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteMetric, RouteType};

use crate::route::link_message::{IFLA_ADDRESS, IFLA_MTU, LinkMessage};
use crate::route::netlink::{self, Message, NLM_F_ACK};
use crate::route::rtnetlink::{RouteSocket, family, first};
use crate::route::table_route::router;

/// Bytes of a link-layer address.
const ADDRESS_LEN: usize = 6;
/// Constants of `linux/xfrm.h`, missing in libc, to query the number of IPsec policies.
const XFRM_MSG_GETSPDINFO: u16 = 0x25;
const XFRM_MSG_NEWSPDINFO: u16 = 0x24;
const XFRMA_SPD_INFO: u16 = 1;

/// Result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Interface index.
    pub interface: u32,
    /// IP address of the next hop: a router, or the destination itself if it is on the link.
    pub via: IpAddr,
    /// MTU of the route, if one is set or a router has reported one.
    pub mtu: Option<usize>,
}

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface index.
    pub interface: u32,
    /// Link-layer address of the interface.
    pub own: [u8; ADDRESS_LEN],
    /// Link-layer address of the next hop.
    pub next: [u8; ADDRESS_LEN],
    /// MTU of the interface.
    pub mtu: usize,
}

/// Next-hop lookup in the kernel's tables.
#[derive(Debug)]
pub struct NextHopLookup {
    routes: RouteSocket,
    /// `None` if the socket could not be opened, as in a kernel without IPsec.
    policies: Option<OwnedFd>,
}

impl NextHopLookup {
    /// Opens netlink sockets in the calling thread's network namespace. Errors: no descriptor is
    /// left.
    pub fn new() -> io::Result<NextHopLookup> {
        let routes = RouteSocket::open()?;
        Ok(NextHopLookup { routes, policies: netlink::open(libc::NETLINK_XFRM, 0).ok() })
    }

    /// Returns the route of packets to `ip`; `None` if the kernel drops them, or does more than
    /// forward them. Errors: the netlink request fails.
    pub fn route(&self, ip: IpAddr) -> io::Result<Option<Route>> {
        Ok(self.routes.route_to(ip)?.and_then(|route| read_route(&route, ip)))
    }

    /// Returns the next hop, over Ethernet or the loopback interface; `None` if the packets have to
    /// be sent through the kernel. Errors: the netlink request fails.
    pub fn next_hop(&self, Route { interface, via, .. }: Route) -> io::Result<Option<NextHop>> {
        if self.has_policies()? {
            return Ok(None);
        }
        let Some((kind, own, mtu)) = self.interface(interface)? else { return Ok(None) };
        let next = match kind {
            libc::ARPHRD_LOOPBACK => Some([0; ADDRESS_LEN]),
            libc::ARPHRD_ETHER => self.neighbour(interface, via)?,
            _ => None,
        };
        Ok(next.map(|next| NextHop { interface, own, next, mtu }))
    }

    /// Returns whether IPsec policies may apply to outbound packets.
    fn has_policies(&self) -> io::Result<bool> {
        let Some(socket) = &self.policies else { return Ok(false) };
        let ask = Message::with_head(XFRM_MSG_GETSPDINFO, NLM_F_ACK, &[0; 4]);
        let said = netlink::ask(socket, ask, XFRM_MSG_NEWSPDINFO)?;
        // The first count is of inbound policies, the second of outbound policies.
        let leaving = said.and_then(|said| {
            let counts = netlink::find(said.get(4..)?, XFRMA_SPD_INFO)?;
            Some(u32::from_ne_bytes(*counts.get(4..)?.first_chunk()?))
        });
        Ok(leaving != Some(0))
    }

    /// Returns an interface's hardware type, link-layer address and MTU.
    fn interface(&self, index: u32) -> io::Result<Option<(u16, [u8; ADDRESS_LEN], usize)>> {
        let Some(link) = self.routes.get(&LinkMessage::of(index), 0)? else { return Ok(None) };
        let own = link.attribute(IFLA_ADDRESS).and_then(|own| own.first_chunk().copied());
        let mtu = link.number(IFLA_MTU);
        Ok(own.zip(mtu).map(|(own, mtu)| (link.hardware, own, mtu as usize)))
    }

    /// Returns a neighbour's link-layer address, if the kernel has confirmed or is confirming it.
    fn neighbour(&self, interface: u32, ip: IpAddr) -> io::Result<Option<[u8; ADDRESS_LEN]>> {
        let mut question = NeighbourMessage::default();
        (question.header.family, question.header.ifindex) = (family(ip), interface);
        question.attributes.push(NeighbourAttribute::Destination(ip.into()));
        let Some(neighbour) = self.routes.get(&question, 0)? else { return Ok(None) };
        let is_confirmed = matches!(
            neighbour.header.state,
            NeighbourState::Reachable
                | NeighbourState::Delay
                | NeighbourState::Probe
                | NeighbourState::Permanent
        );
        let address =
            first!(neighbour.attributes, NeighbourAttribute::LinkLayerAddress(address) => address);
        let address = address.and_then(|address| address.first_chunk().copied());
        Ok(address.filter(|_| is_confirmed))
    }
}

/// Reads the answer for packets to `ip`; `None` if the kernel drops them, or does more than forward
/// them, such as encapsulation.
fn read_route(route: &RouteMessage, ip: IpAddr) -> Option<Route> {
    if !matches!(route.header.kind, RouteType::Unicast | RouteType::Local) {
        return None;
    }
    let (mut interface, mut via, mut mtu) = (None, ip, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => via = router(attribute)?,
            RouteAttribute::Metrics(metrics) => {
                mtu = first!(metrics, RouteMetric::Mtu(mtu) => *mtu as usize);
            }
            RouteAttribute::Encap(_) => return None,
            _ => {}
        }
    }
    Some(Route { interface: interface?, via, mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_have_a_next_hop() {
        let hops = NextHopLookup::new().unwrap();
        for ip in ["127.0.0.5", "::1"] {
            let route = hops.route(ip.parse().unwrap()).unwrap().expect("a route");
            let hop = hops.next_hop(route).unwrap().expect("a next hop");
            assert_eq!((hop.own, hop.next, hop.mtu), ([0; 6], [0; 6], 65_536), "{ip}");
        }
    }
}
