//! Exchange of routing messages with the kernel (`rtnetlink(7)`). The bodies of most messages are
//! types of the crate `netlink-packet-route`. The crate's type for all messages is not used,
//! because that type contains the parsers of all kinds of interfaces and of traffic control.
//!
//! ```text
//!   RouteSocket::add, delete, get, dump ── message ──▶ kernel
//!                             bodies or error ◀─┘
//!
//!   RouteEvents::any ◀── changes ── kernel
//! ```

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{Emitable as _, Parseable};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::RuleMessage;

use super::netlink::{self, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP};
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

/// Body of a routing message.
pub(crate) trait Body: Sized {
    /// Type of the message that adds or reports an object. The next two numbers are the types of
    /// the messages that delete and that query an object.
    const NEW: u16;

    fn bytes(&self) -> Vec<u8>;

    /// Parses a body; `None` if it is malformed.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

macro_rules! body {
    ($message:ty, $new:expr) => {
        impl Body for $message {
            const NEW: u16 = $new;

            fn bytes(&self) -> Vec<u8> {
                let mut bytes = vec![0; self.buffer_len()];
                self.emit(&mut bytes);
                bytes
            }

            fn parse(bytes: &[u8]) -> Option<Self> {
                <$message as Parseable<[u8]>>::parse(bytes).ok()
            }
        }
    };
}

body!(AddressMessage, libc::RTM_NEWADDR);
body!(NeighbourMessage, libc::RTM_NEWNEIGH);
body!(RouteMessage, libc::RTM_NEWROUTE);
body!(RuleMessage, libc::RTM_NEWRULE);

#[derive(Debug)]
pub(crate) struct RouteSocket(OwnedFd);

impl RouteSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<RouteSocket> {
        netlink::open(libc::NETLINK_ROUTE, 0).map(RouteSocket)
    }

    /// Adds an object; `flags` specify what happens if the object exists.
    pub(crate) fn add<T: Body>(&self, object: &T, flags: u16) -> io::Result<()> {
        self.exchange(T::NEW, object, flags)?.map(drop)
    }

    /// Deletes the first object that matches.
    pub(crate) fn delete<T: Body>(&self, object: &T) -> io::Result<()> {
        self.exchange(T::NEW + 1, object, 0)?.map(drop)
    }

    /// Requests an object, with additional `flags`; `None` if the kernel refuses.
    pub(crate) fn get<T: Body>(&self, question: &T, flags: u16) -> io::Result<Option<T>> {
        let answers = self.exchange(T::NEW + 2, question, flags)?;
        Ok(answers.ok().and_then(|answers| answers.into_iter().next()))
    }

    /// Requests all objects, in the kernel's order. Malformed answers are left out.
    pub(crate) fn dump<T: Body>(&self, question: &T) -> io::Result<Vec<T>> {
        self.exchange(T::NEW + 2, question, NLM_F_DUMP)?
    }

    /// Returns the route of packets to `ip`; `None` if there is none.
    pub(crate) fn route_to(&self, ip: IpAddr) -> io::Result<Option<RouteMessage>> {
        self.get(&route(RouteHeader::default(), (ip, full_length(ip))), 0)
    }

    /// Returns the routes of a family, of all tables, in the kernel's order.
    pub(crate) fn routes(&self, family: AddressFamily) -> io::Result<Vec<RouteMessage>> {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        self.dump(&question)
    }

    /// Returns the addresses of all interfaces, IPv4's first.
    pub(crate) fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let own = |of: AddressMessage| {
            // On a point-to-point link `Address` is the far end's address.
            first!(of.attributes, AddressAttribute::Local(ip) => *ip)
                .or_else(|| first!(of.attributes, AddressAttribute::Address(ip) => *ip))
        };
        Ok(self.dump(&AddressMessage::default())?.into_iter().filter_map(own).collect())
    }

    /// Sends a message, and returns the objects in the kernel's answers.
    fn exchange<T: Body>(&self, kind: u16, body: &T, flags: u16) -> io::Result<io::Result<Vec<T>>> {
        let request = Message::with_head(kind, flags | NLM_F_ACK, &body.bytes()).bytes();
        let mut answers = Vec::new();
        let accepted = netlink::exchange(&self.0, &request, |kind, payload| {
            if kind == T::NEW {
                answers.extend(T::parse(payload));
            }
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

    /// Reads all queued messages. Returns true if `matters` is true for the type and body of any of
    /// them, or if messages were lost.
    pub(crate) fn any(&self, matters: impl FnMut(u16, &[u8]) -> bool) -> bool {
        netlink::any_event(&self.0, matters)
    }
}

impl AsFd for RouteEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the route that a notification of type `kind` is about; `None` if it is about another
/// object or malformed.
pub(crate) fn changed_route(kind: u16, body: &[u8]) -> Option<RouteMessage> {
    let is_route = kind == libc::RTM_NEWROUTE || kind == libc::RTM_DELROUTE;
    is_route.then(|| Body::parse(body))?
}

/// Adds an address to the interface `index`. The address is usable immediately.
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
    RouteSocket::open()?.add(&message, NLM_F_CREATE)
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
