//! A SYN, as a tap saw it: who wants to go where.

use std::net::SocketAddr;

use super::early::Tuple;
use super::option::Hop;
use crate::wire::ip::Header;

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
}

impl Syn {
    /// From a packet that begins with its IP header; `None` if it is no SYN.
    pub fn parse(packet: &[u8]) -> Option<Syn> {
        let header = Header::parse(packet).ok()?;
        let tcp = packet.get(header.header_len..).filter(|_| header.protocol == TCP)?;
        let (head, after) = tcp.split_at_checked(HEAD)?;
        if head[13] & SYN_ACK_RST_FIN != SYN {
            return None;
        }
        let options = after.get(..(usize::from(head[12] >> 4) * 4).checked_sub(HEAD)?)?;
        let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let tuple = Tuple {
            client: SocketAddr::new(header.source, port(0)),
            to: SocketAddr::new(header.destination, port(2)),
        };
        Some(Syn { tuple, hop: Hop::find(options) })
    }
}
