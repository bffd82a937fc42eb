//! Routes, rules and addresses of the calling thread's network namespace.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use crate::route::interface::index;
use crate::route::netlink::{self, Message};

const FLAGS: u16 = netlink::NLM_F_ACK | netlink::NLM_F_CREATE;
const DESTINATION: u16 = libc::RTA_DST;
const PREFERRED_SOURCE: u16 = libc::RTA_PREFSRC;
const LOCAL_ADDRESS: u16 = 2;
const RULE_INTERFACE: u16 = 3;
const RULE_PRIORITY: u16 = 6;
const RULE_MARK: u16 = 10;
/// Address flag: usable at once, without duplicate address detection.
const NODAD: u8 = 2;
/// Rule action: look up in a table.
const TO_TABLE: u8 = 1;

/// Makes every address of a family local on `interface`, for look-ups in this table.
pub(super) fn make_all_local(family: libc::c_int, interface: &str, table: u8) -> io::Result<()> {
    let head = route(family, 0, table, libc::RT_SCOPE_HOST, libc::RTN_LOCAL);
    let index = index(interface)?;
    request(
        Message::of_routing(libc::RTM_NEWROUTE, FLAGS, &head)
            .with(libc::RTA_OIF, &index.to_ne_bytes()),
    )
}

/// Makes all addresses of an IPv6 prefix local on `interface`, beside other routes.
pub(super) fn make_prefix_local(interface: &str, (to, length): (Ipv6Addr, u8)) -> io::Result<()> {
    let table = libc::RT_TABLE_LOCAL;
    let head = route(libc::AF_INET6, length, table, libc::RT_SCOPE_HOST, libc::RTN_LOCAL);
    request(
        Message::of_routing(libc::RTM_NEWROUTE, FLAGS | netlink::NLM_F_APPEND, &head)
            .with(DESTINATION, &to.octets())
            .with(libc::RTA_OIF, &index(interface)?.to_ne_bytes()),
    )
}

/// Routes a prefix out by `interface`, with `own` as the default source address.
pub(super) fn add_route(
    interface: &str,
    (to, length): (IpAddr, u8),
    own: Option<IpAddr>,
) -> io::Result<()> {
    let flags = FLAGS | netlink::NLM_F_REPLACE;
    prefix(libc::RTM_NEWROUTE, flags, interface, (to, length), own)
}

/// Removes the route to a prefix.
pub(super) fn delete_route(interface: &str, to: (IpAddr, u8)) -> io::Result<()> {
    prefix(libc::RTM_DELROUTE, netlink::NLM_F_ACK, interface, to, None)
}

fn prefix(
    kind: u16,
    flags: u16,
    interface: &str,
    (to, length): (IpAddr, u8),
    own: Option<IpAddr>,
) -> io::Result<()> {
    let head =
        route(family(to), length, libc::RT_TABLE_MAIN, libc::RT_SCOPE_LINK, libc::RTN_UNICAST);
    let mut message = Message::of_routing(kind, flags, &head)
        .with(libc::RTA_OIF, &index(interface)?.to_ne_bytes());
    if let Some(own) = own {
        message = message.with(PREFERRED_SOURCE, &octets(own));
    }
    if length > 0 {
        message = message.with(DESTINATION, &octets(to));
    }
    request(message)
}

/// Gives `interface` an address.
pub(super) fn add_address(interface: &str, own: IpAddr) -> io::Result<()> {
    let scope = if own.is_loopback() { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    let (length, flags) = if own.is_ipv4() { (32, 0) } else { (128, NODAD) };
    // `struct ifaddrmsg`.
    let mut head = vec![family(own) as u8, length, flags, scope];
    head.extend(index(interface)?.to_ne_bytes());
    request(Message::of_routing(libc::RTM_NEWADDR, FLAGS, &head).with(LOCAL_ADDRESS, &octets(own)))
}

fn family(ip: IpAddr) -> libc::c_int {
    if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Packets that come in and are looked up as local.
pub(super) enum Incoming<'a> {
    /// IPv4 packets that come in by this interface.
    By(&'a str),
    /// IPv6 packets with this mark.
    Marked(u32),
}

/// Makes incoming packets be looked up in `table`, and removes the rule for the local table:
/// packets that leave do so even if they are for this host.
pub(super) fn set_lookup_rules(comes: &Incoming<'_>, table: u8) -> io::Result<()> {
    let (family, attribute, value) = match comes {
        Incoming::By(name) => {
            (libc::AF_INET, RULE_INTERFACE, CString::new(*name)?.into_bytes_with_nul())
        }
        Incoming::Marked(mark) => (libc::AF_INET6, RULE_MARK, mark.to_ne_bytes().to_vec()),
    };
    // `struct fib_rule_hdr`.
    let head = |table| [family as u8, 0, 0, 0, table, 0, 0, TO_TABLE, 0, 0, 0, 0];
    request(
        Message::of_routing(libc::RTM_NEWRULE, FLAGS, &head(table))
            .with(attribute, &value)
            .with(RULE_PRIORITY, &1u32.to_ne_bytes()),
    )?;
    request(
        Message::of_routing(libc::RTM_DELRULE, netlink::NLM_F_ACK, &head(libc::RT_TABLE_LOCAL))
            .with(RULE_PRIORITY, &0u32.to_ne_bytes()),
    )
}

/// `struct rtmsg`.
fn route(family: libc::c_int, length: u8, table: u8, scope: u8, kind: u8) -> [u8; 12] {
    [family as u8, length, 0, 0, table, libc::RTPROT_STATIC, scope, kind, 0, 0, 0, 0]
}

/// Sends a request to the kernel and waits for its answer.
pub(super) fn request(message: Message) -> io::Result<()> {
    let socket = netlink::open(libc::NETLINK_ROUTE, 0)?;
    netlink::send(&socket, &message.bytes())?;
    netlink::read_acks(&socket)
}
