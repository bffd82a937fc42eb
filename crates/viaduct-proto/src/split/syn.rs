//! A SYN, as a tap saw it: who wants to go where.

use std::net::SocketAddr;

use super::Parsed;
use super::early::Tuple;
use super::option::Hop;
use super::proxy::{self, Addresses};
use crate::wire::ip::{Error, Header};

const TCP: u8 = 6;
/// TCP's header without options, bytes.
const HEAD: usize = 20;
const SYN: u8 = 0x02;
const SYN_ACK_RST_FIN: u8 = 0x17;

/// A SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// Its addresses.
    pub tuple: Tuple,
    /// What its option says, if it has one.
    pub hop: Option<Hop>,
    /// What a whole PROXY header at the start of its data (Fast Open) says, if there is one. The same
    /// bytes come in the stream.
    pub header: Option<Addresses>,
}

impl Syn {
    /// From a packet that begins with its IP header; `None` if it is no SYN.
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

    /// From the headers of such a packet, without its data: what the kernel saves of it.
    pub fn parse_headers(headers: &[u8]) -> Option<Syn> {
        let mut packet = headers.to_vec();
        if let Err(Error::Short { want, .. }) = Header::parse(headers) {
            packet.resize(want, 0);
        }
        Syn::parse(&packet)
    }

    /// Where the flow comes from and goes to, if it is told.
    pub fn told(&self) -> Option<Addresses> {
        let hop = self.hop.map(|hop| Addresses {
            source: hop.source.into(),
            destination: hop.destination.into(),
        });
        hop.or(self.header)
    }
}

/// The options in the headers of a TCP packet, which begin with its IP header; `None` if they are cut.
pub fn options(headers: &[u8]) -> Option<&[u8]> {
    let at = match headers.first()? >> 4 {
        4 => usize::from(headers[0] & 0xf) * 4,
        // As the kernel keeps them: without extensions, or behind ones that are no matter here.
        6 if headers.get(6) == Some(&TCP) => 40,
        _ => return None,
    };
    let tcp = headers.get(at..)?;
    let length = usize::from(tcp.get(12)? >> 4) * 4;
    tcp.get(HEAD..length)
}
