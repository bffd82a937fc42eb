//! Dummy links of a capture namespace. A link-local address includes an interface index, so the
//! namespace gets an interface with the same index as the host's.

use std::io;
use std::net::Ipv6Addr;

use super::routes;
use crate::route::interface::Interface;
use crate::route::link_message::LinkMessage;

/// Bit that is added to a link's index for its other end; no interface of the host has such
/// an index.
const OTHER_END: u32 = 1 << 30;
const LINK_LOCAL: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// Adds a link with the index `number` to the calling thread's network namespace, and makes every
/// link-local address local on it. Errors: the kernel has no veth pairs, or no IPv6.
pub fn add_link(number: u32) -> io::Result<()> {
    let (name, other) = (format!("link{number}"), format!("other{number}"));
    let far = LinkMessage::of(number | OTHER_END).named(&other);
    routes::make_pair(LinkMessage::of(number).named(&name), &far)?;
    // Keeps both ends from sending packets of their own.
    for name in [&name, &other] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        let raised = Interface::new(name).and_then(|interface| interface.set_up());
        raised.map_err(|error| io::Error::other(error.to_string()))?;
    }
    routes::make_prefix_local(&name, LINK_LOCAL)
}
