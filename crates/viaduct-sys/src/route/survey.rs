//! Addresses and routes of this machine, for the first config of a gateway.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::route::RouteProtocol;

use crate::route::rtnetlink::{RouteSocket, first};
use crate::route::table_route::TableRoute;

/// Address of an interface, of global scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// Index of the interface.
    pub interface: u32,
    /// Address.
    pub ip: IpAddr,
    /// False if the address has a lifetime, for example one assigned by DHCP.
    pub is_permanent: bool,
}

/// Route of the main table that forwards packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardRoute {
    /// Address and prefix length; length 0 for a default route.
    pub to: (IpAddr, u8),
    /// Index of the output interface; for a multipath route, that of its first path.
    pub interface: u32,
    /// True if the prefix is that of an interface's own address.
    pub is_connected: bool,
}

/// Returns the addresses of global scope that new connections may use, in the kernel's order.
///
/// # Errors
/// The netlink request fails.
pub fn own_addresses() -> io::Result<Vec<OwnAddress>> {
    let addresses = RouteSocket::open()?.dump(&AddressMessage::default())?;
    Ok(addresses.iter().filter_map(read_address).collect())
}

fn read_address(message: &AddressMessage) -> Option<OwnAddress> {
    let attributes = &message.attributes;
    // On a point-to-point link `Address` is the far end's address.
    let ip = first!(attributes, AddressAttribute::Local(ip) => *ip)
        .or_else(|| first!(attributes, AddressAttribute::Address(ip) => *ip))?;
    let flags = first!(attributes, AddressAttribute::Flags(flags) => *flags)?;
    let unfit = AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Dadfailed;
    // For IPv6, `Secondary` marks a temporary address.
    let is_temporary = ip.is_ipv6() && flags.contains(AddressFlags::Secondary);
    let is_usable = message.header.scope == AddressScope::Universe
        && !flags.intersects(unfit)
        && !is_temporary
        && !ip.is_loopback();
    let is_permanent = flags.contains(AddressFlags::Permanent);
    is_usable.then_some(OwnAddress { interface: message.header.index, ip, is_permanent })
}

/// Returns the forwarding routes of the main table, IPv4's first. Among routes to the same prefix,
/// the kernel uses the first.
///
/// # Errors
/// A netlink request fails.
pub fn forward_routes() -> io::Result<Vec<ForwardRoute>> {
    let socket = RouteSocket::open()?;
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let table = TableRoute::main_table(&socket, family)?;
        routes.extend(table.iter().filter(|route| route.forwards()).filter_map(read_route));
    }
    Ok(routes)
}

fn read_route(route: &TableRoute) -> Option<ForwardRoute> {
    let is_kernels = route.protocol() == u8::from(RouteProtocol::Kernel);
    Some(ForwardRoute {
        to: route.destination(),
        interface: route.interface()?,
        is_connected: is_kernels && route.router().is_none(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;
    use crate::route::interface;

    #[test]
    fn addresses_and_routes_of_both_families_are_found() {
        let work = || {
            for line in [
                "link set lo up",
                "link add eth0 type veth peer name far0",
                "link set far0 up",
                "link set eth0 up",
                "addr add 192.0.2.1/30 dev eth0",
                "addr add 198.51.100.1/24 dev eth0 valid_lft 600 preferred_lft 600",
                "addr add 169.254.7.7/16 dev eth0 scope link",
                "addr add 2001:db8::1/64 dev eth0 nodad",
                "route add 10.2.0.0/16 via 192.0.2.2",
                "route add blackhole 10.3.0.0/16",
                "route add default via 2001:db8::2",
            ] {
                tool::run("ip", &line.split(' ').collect::<Vec<_>>(), "").unwrap();
            }
            let eth0 = interface::index("eth0").unwrap();
            let text = |(ip, length): (IpAddr, u8)| format!("{ip}/{length}");
            let routes = forward_routes().unwrap().into_iter();
            let routes: Vec<_> = routes
                .filter(|route| route.interface == eth0)
                .map(|route| (text(route.to), route.is_connected))
                .filter(|(to, _)| !to.starts_with("fe80") && !to.starts_with("169.254"))
                .collect();
            let addresses: Vec<_> = own_addresses()
                .unwrap()
                .into_iter()
                .map(|own| (own.ip.to_string(), own.is_permanent, own.interface == eth0))
                .collect();
            (routes, addresses)
        };
        let (mut routes, addresses) = Netns::new().unwrap().enter(work).unwrap();
        routes.sort_unstable();
        let route = |to: &str, is_connected| (to.to_owned(), is_connected);
        let expected = [
            route("10.2.0.0/16", false),
            route("192.0.2.0/30", true),
            route("198.51.100.0/24", true),
            route("2001:db8::/64", true),
            route("::/0", false),
        ];
        assert_eq!(routes, expected);
        let own = |ip: &str, is_permanent| (ip.to_owned(), is_permanent, true);
        let expected =
            [own("192.0.2.1", true), own("198.51.100.1", false), own("2001:db8::1", true)];
        assert_eq!(addresses, expected);
    }
}
