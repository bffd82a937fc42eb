//! SYN as a tap captures it: addresses, and the destination that it announces.

use std::net::SocketAddr;

use super::Parsed;
use super::early::Tuple;
use super::option::Hop;
use super::proxy::{self, Addresses};
use crate::wire::ip::{Error, Header};

const TCP: u8 = 6;
/// Length of the TCP header without options, in bytes.
const HEAD: usize = 20;
const SYN: u8 = 0x02;
const SYN_ACK_RST_FIN: u8 = 0x17;

/// A parsed SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// Source and destination of the SYN.
    pub tuple: Tuple,
    /// Addresses in its TCP option, if it has one.
    pub hop: Option<Hop>,
    /// Addresses in a complete PROXY header at the start of its data (Fast Open). The same
    /// bytes arrive in the stream.
    pub header: Option<Addresses>,
}

impl Syn {
    /// Parses a packet that begins with its IP header; `None` if it is not a SYN.
    pub fn parse(packet: &[u8]) -> Option<Syn> {
        let header = Header::parse(packet).ok()?;
        let tcp = packet.get(header.header_len..header.total_len);
        let (head, after) = tcp.filter(|_| header.protocol == TCP)?.split_at_checked(HEAD)?;
        if head[13] & SYN_ACK_RST_FIN != SYN {
            return None;
        }
        let options = (usize::from(head[12] >> 4) * 4).checked_sub(HEAD)?;
        let (options, data) = after.split_at_checked(options)?;
        let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let tuple = Tuple {
            client: SocketAddr::new(header.source, port(0)),
            to: SocketAddr::new(header.destination, port(2)),
        };
        let header = match proxy::parse(data) {
            Parsed::Whole(addresses, _) => addresses,
            Parsed::Short | Parsed::Wrong(_) => None,
        };
        Some(Syn { tuple, hop: Hop::find(options), header })
    }

    /// Parses the headers of a SYN without its data, as the kernel saves them.
    pub fn parse_headers(headers: &[u8]) -> Option<Syn> {
        let mut packet = headers.to_vec();
        if let Err(Error::Short { want, .. }) = Header::parse(headers) {
            packet.resize(want, 0);
        }
        Syn::parse(&packet)
    }

    /// Announced source and destination of the flow, if any.
    pub fn addresses(&self) -> Option<Addresses> {
        let hop = self.hop.map(|hop| Addresses::new(hop.source.into(), hop.destination.into()));
        hop.or(self.header)
    }
}

/// Options of a TCP packet that begins with its IP header; `None` if they are truncated, or follow
/// IPv6 extension headers.
pub fn options(headers: &[u8]) -> Option<&[u8]> {
    let at = match headers.first()? >> 4 {
        4 => usize::from(headers[0] & 0xf) * 4,
        // IPv6 without extension headers, as the kernel saves it; others are not read.
        6 if headers.get(6) == Some(&TCP) => 40,
        _ => return None,
    };
    let tcp = headers.get(at..)?;
    let length = usize::from(tcp.get(12)? >> 4) * 4;
    tcp.get(HEAD..length)
}
