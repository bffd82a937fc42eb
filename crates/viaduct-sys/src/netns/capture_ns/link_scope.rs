//! Links of a capture namespace for link-local addresses, which include an interface index: an
//! interface of the same index as the host's, with nothing behind it.

use std::io;
use std::net::Ipv6Addr;

use super::routes;
use super::uplink::{IFLA_IFNAME, IFLA_LINKINFO, INFO_DATA, INFO_KIND, VETH_PEER};
use crate::route::interface::Interface;
use crate::route::netlink::{Attributes, Message, NLM_F_ACK, NLM_F_CREATE};

/// Added to a link's index for that of its other end, so that it differs from all of the
/// host's.
const OTHER_END: u32 = 1 << 30;
const LINK_LOCAL: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// Adds a link of this index to the calling thread's network namespace; every link-local
/// address is local there.
///
/// # Errors
/// The kernel has no veth pairs, or no IPv6.
pub fn add_link(number: u32) -> io::Result<()> {
    let (name, other) = (format!("link{number}"), format!("other{number}"));
    // `struct ifinfomsg`: family, type, number; flags, and which of them are meant.
    let head = |number: u32| {
        let mut head = vec![0; 4];
        head.extend(number.to_ne_bytes());
        head.resize(16, 0);
        head
    };
    let word = |name: &str| [name.as_bytes(), b"\0"].concat();
    let peer = Attributes::behind(&head(number | OTHER_END)).with(IFLA_IFNAME, &word(&other));
    let info = Attributes::default()
        .with(INFO_KIND, b"veth")
        .nest(INFO_DATA, &Attributes::default().nest(VETH_PEER, &peer));
    let flags = NLM_F_ACK | NLM_F_CREATE;
    routes::request(
        Message::of_routing(libc::RTM_NEWLINK, flags, &head(number))
            .with(IFLA_IFNAME, &word(&name))
            .nest(IFLA_LINKINFO, &info),
    )?;
    // Keeps both from sending packets of their own.
    for name in [&name, &other] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        let raised = Interface::new(name).and_then(|interface| interface.set_up());
        raised.map_err(|error| io::Error::other(error.to_string()))?;
    }
    routes::make_prefix_local(&name, LINK_LOCAL)
}
