//! Messages about an interface: a header and attributes, of which few are read. `LinkMessage` of
//! the crate `netlink-packet-route` is not used: it also parses the settings of every type of
//! interface, which would make the program 0.3 MB larger.
//!
//! ```text
//!   family u8 │ - u8 │ hardware type u16 │ index u32 │ flags u32 │ changed flags u32 │ attributes
//! ```

use crate::route::netlink::{Attributes, find};
use crate::route::rtnetlink::Body;

/// Link-layer address. This and the other attributes are from `linux/if_link.h` and
/// `linux/veth.h`.
pub(crate) const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
/// Index of the underlying interface, such as that of a VLAN.
pub(crate) const IFLA_LINK: u16 = 5;
pub(crate) const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const HEAD: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct LinkMessage {
    /// Hardware type: `ARPHRD_ETHER` or another.
    pub(crate) hardware: u16,
    /// Index; 0 for a new interface, whose index the kernel chooses, and in a query of
    /// all interfaces.
    pub(crate) index: u32,
    /// Flags, such as `IFF_RUNNING`.
    pub(crate) flags: u32,
    /// Mask of the flags that a request sets.
    pub(crate) changes: u32,
    attributes: Attributes,
}

impl LinkMessage {
    /// Builds a message about the interface `index`.
    pub(crate) fn of(index: u32) -> LinkMessage {
        LinkMessage { index, ..LinkMessage::default() }
    }

    /// Sets the name.
    pub(crate) fn named(self, name: &str) -> LinkMessage {
        self.with(IFLA_IFNAME, &terminated(name))
    }

    pub(crate) fn with(self, kind: u16, value: &[u8]) -> LinkMessage {
        LinkMessage { attributes: self.attributes.with(kind, value), ..self }
    }

    /// Builds a request for a veth pair, whose ends are `self` and `other`.
    pub(crate) fn paired_with(self, other: &LinkMessage) -> LinkMessage {
        let peer = Attributes::default().with(VETH_INFO_PEER, &other.bytes());
        let info = Attributes::default().with(IFLA_INFO_KIND, &terminated("veth"));
        let info = info.nest(IFLA_INFO_DATA, &peer);
        LinkMessage { attributes: self.attributes.nest(IFLA_LINKINFO, &info), ..self }
    }

    pub(crate) fn attribute(&self, kind: u16) -> Option<&[u8]> {
        find(self.attributes.bytes(), kind)
    }

    /// Returns an attribute that is a number.
    pub(crate) fn number(&self, kind: u16) -> Option<u32> {
        self.attribute(kind)?.first_chunk().map(|&number| u32::from_ne_bytes(number))
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.attribute(IFLA_IFNAME).and_then(text)
    }

    /// Returns the type of a virtual interface, such as `vlan`.
    pub(crate) fn kind(&self) -> Option<&str> {
        find(self.attribute(IFLA_LINKINFO)?, IFLA_INFO_KIND).and_then(text)
    }
}

impl Body for LinkMessage {
    const NEW: u16 = libc::RTM_NEWLINK;

    fn bytes(&self) -> Vec<u8> {
        let [low, high] = self.hardware.to_ne_bytes();
        let mut bytes = vec![libc::AF_UNSPEC as u8, 0, low, high];
        for field in [self.index, self.flags, self.changes] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend(self.attributes.bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<LinkMessage> {
        let (head, attributes) = bytes.split_at_checked(HEAD)?;
        let field = |at: usize| Some(u32::from_ne_bytes(*head.get(at..)?.first_chunk()?));
        Some(LinkMessage {
            hardware: u16::from_ne_bytes(*head.get(2..)?.first_chunk()?),
            index: field(4)?,
            flags: field(8)?,
            changes: field(12)?,
            attributes: Attributes::parse(attributes),
        })
    }
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// Reads a text, which ends with a NUL byte.
fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_message_equals_the_built_message() {
        let peer = LinkMessage::of(8).named("other");
        let sent = LinkMessage { flags: 0x80, changes: 0x40, ..LinkMessage::of(7) };
        let sent = sent.named("one").with(IFLA_MTU, &1400_u32.to_ne_bytes()).paired_with(&peer);
        let bytes = sent.bytes();
        let read = LinkMessage::parse(&bytes).unwrap();
        assert_eq!((read.index, read.flags, read.changes), (7, 0x80, 0x40));
        assert_eq!(
            (read.name(), read.kind(), read.number(IFLA_MTU)),
            (Some("one"), Some("veth"), Some(1400))
        );
        assert_eq!((read.number(IFLA_MASTER), read.attribute(IFLA_ADDRESS)), (None, None));
        assert!(LinkMessage::parse(&bytes[..HEAD - 1]).is_none());
        assert_eq!(LinkMessage::parse(&bytes[..HEAD + 6]).unwrap().name(), None);
    }
}
