//! Exchange of routing messages with the kernel (`rtnetlink(7)`), typed by the crate
//! `netlink-packet-route`.
//!
//! ```text
//!   RouteSocket::request ── message ──▶ kernel        RouteEvents::any ◀── changes ── kernel
//!                    messages or error ◀─┘
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, ParseableParametrized as _};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::{self, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP};
use super::prefix::full_length;

/// Returns the value of the first attribute in a list that matches a pattern, if any.
macro_rules! first {
    ($attributes:expr, $pattern:pat => $value:expr) => {
        $attributes.iter().find_map(|attribute| match attribute {
            $pattern => Some($value),
            _ => None,
        })
    };
}
pub(crate) use first;

#[derive(Debug)]
pub(crate) struct RouteSocket(OwnedFd);

impl RouteSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<RouteSocket> {
        netlink::open(libc::NETLINK_ROUTE, 0).map(RouteSocket)
    }

    /// Sends a message with additional `flags`, and returns the kernel's parsable answers.
    pub(crate) fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.exchange(message, flags)?
    }

    /// Sends a question and returns the first answer; `None` if the kernel refuses.
    pub(crate) fn ask(
        &self,
        question: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        let answers = self.exchange(question, flags)?;
        Ok(answers.ok().and_then(|answers| answers.into_iter().next()))
    }

    /// Returns the route of packets to `ip`; `None` if there is none.
    pub(crate) fn route_to(&self, ip: IpAddr) -> io::Result<Option<RouteMessage>> {
        let question = route(RouteHeader::default(), (ip, full_length(ip)));
        match self.ask(RouteNetlinkMessage::GetRoute(question), 0)? {
            Some(RouteNetlinkMessage::NewRoute(route)) => Ok(Some(route)),
            _ => Ok(None),
        }
    }

    /// Returns the routes of a family, of all tables, in the kernel's order.
    pub(crate) fn routes(&self, family: AddressFamily) -> io::Result<Vec<RouteMessage>> {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let answers = self.request(RouteNetlinkMessage::GetRoute(question), NLM_F_DUMP)?;
        let route = |answer: RouteNetlinkMessage| match answer {
            RouteNetlinkMessage::NewRoute(route) => Some(route),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(route).collect())
    }

    /// Returns the addresses of all interfaces, IPv4's first.
    pub(crate) fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let own = |answer: RouteNetlinkMessage| match answer {
            // On a point-to-point link `Address` is the far end's address.
            RouteNetlinkMessage::NewAddress(of) => {
                first!(of.attributes, AddressAttribute::Local(ip) => *ip)
                    .or_else(|| first!(of.attributes, AddressAttribute::Address(ip) => *ip))
            }
            _ => None,
        };
        Ok(self.request(question, NLM_F_DUMP)?.into_iter().filter_map(own).collect())
    }

    fn exchange(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<io::Result<Vec<RouteNetlinkMessage>>> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        let mut answers = Vec::new();
        let accepted = netlink::exchange(&self.0, &bytes, |kind, payload| {
            answers.extend(parse(kind, payload));
        })?;
        Ok(accepted.map(|()| answers))
    }
}

/// Socket that receives notifications of changes.
#[derive(Debug)]
pub(crate) struct RouteEvents(OwnedFd);

impl RouteEvents {
    /// Receives notifications of `groups`, one bit each, in the thread's network namespace.
    pub(crate) fn of(groups: u32) -> io::Result<RouteEvents> {
        netlink::open(libc::NETLINK_ROUTE, groups).map(RouteEvents)
    }

    /// Reads all queued messages; true if any `matters`, or if messages were lost.
    pub(crate) fn any(&self, matters: impl Fn(&RouteNetlinkMessage) -> bool) -> bool {
        netlink::any_event(&self.0, |kind, payload| {
            parse(kind, payload).is_some_and(|message| matters(&message))
        })
    }
}

impl AsFd for RouteEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Parses a message's payload; `None` if it is of an unknown kind or malformed.
pub(crate) fn parse(kind: u16, payload: &[u8]) -> Option<RouteNetlinkMessage> {
    RouteNetlinkMessage::parse_with_param(payload, kind).ok()
}

/// Sends one request with additional `flags`, in the calling thread's network namespace.
pub(crate) fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    RouteSocket::open()?.request(message, flags).map(drop)
}

/// Gives the interface `index` an address that is usable at once.
pub(crate) fn add_address(index: u32, own: IpAddr, scope: AddressScope) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: family(own),
        prefix_len: full_length(own),
        // Only IPv6 has duplicate address detection.
        flags: if own.is_ipv6() { AddressHeaderFlags::Nodad } else { AddressHeaderFlags::empty() },
        scope,
        index,
    };
    message.attributes.push(AddressAttribute::Local(own));
    request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE)
}

/// Builds a route to a prefix, whose family and length replace those in `header`.
pub(crate) fn route(mut header: RouteHeader, (to, length): (IpAddr, u8)) -> RouteMessage {
    (header.address_family, header.destination_prefix_length) = (family(to), length);
    let mut message = RouteMessage::default();
    message.header = header;
    if length > 0 {
        message.attributes.push(RouteAttribute::Destination(to.into()));
    }
    message
}

/// Builds the route that makes a prefix local on interface `index`, for lookups in `table`.
pub(crate) fn local_route(to: (IpAddr, u8), index: u32, table: u32) -> RouteMessage {
    let header = RouteHeader {
        protocol: RouteProtocol::Static,
        scope: RouteScope::Host,
        kind: RouteType::Local,
        ..RouteHeader::default()
    };
    let mut message = route(header, to);
    message.attributes.extend([RouteAttribute::Oif(index), RouteAttribute::Table(table)]);
    message
}

pub(crate) fn table(route: &RouteMessage) -> u32 {
    let number = first!(route.attributes, RouteAttribute::Table(table) => *table);
    number.unwrap_or_else(|| route.header.table.into())
}

pub(crate) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
