//! Writing of frames.

use std::net::IpAddr;

use super::{
    ACK, DATA, FIN, FINACK, Frame, GONE, GRANT, HEAD, HELLO, IPV4, IPV6, LEAVE, NAME, NONE, PING,
    PONG, RST, SYN, VERSION,
};
use crate::flow::{Address, Failure};

impl Frame<'_> {
    /// Appends the frame to `out`. A name longer than 253 bytes, which no host has, is
    /// truncated. DATA must have 1 to [`MAX_DATA`](super::MAX_DATA) bytes.
    pub fn emit(&self, stream: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(self.kind());
        out.extend(stream.to_be_bytes());
        out.extend([0, 0]);
        match self {
            Frame::Hello(hello) => {
                out.push(VERSION);
                out.extend(hello.instance.to_be_bytes());
                out.extend(hello.link.to_be_bytes());
                out.extend(hello.tokens.to_be_bytes());
                out.extend(hello.least_window.to_be_bytes());
                out.extend(hello.streams.to_be_bytes());
            }
            Frame::Gone(number) | Frame::Ack(number) => out.extend(number.to_be_bytes()),
            Frame::Grant(any) | Frame::Ping(any) | Frame::Pong(any) => {
                out.extend(any.to_be_bytes());
            }
            Frame::Syn(Some(opening)) => {
                emit_address(&opening.to, out);
                match opening.source {
                    Some(source) => emit_address(&Address::Ip(source), out),
                    None => out.push(NONE),
                }
            }
            Frame::Data(bytes) => out.extend_from_slice(bytes),
            Frame::Rst(why) => out.push(reason_of(*why)),
            Frame::Leave | Frame::Syn(None) | Frame::Fin | Frame::FinAck => {}
        }
        let length = (out.len() - start - HEAD) as u16;
        out[start + 5..start + HEAD].copy_from_slice(&length.to_be_bytes());
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello(_) => HELLO,
            Frame::Grant(_) => GRANT,
            Frame::Gone(_) => GONE,
            Frame::Ping(_) => PING,
            Frame::Pong(_) => PONG,
            Frame::Leave => LEAVE,
            Frame::Syn(_) => SYN,
            Frame::Data(_) => DATA,
            Frame::Fin => FIN,
            Frame::FinAck => FINACK,
            Frame::Rst(_) => RST,
            Frame::Ack(_) => ACK,
        }
    }
}

/// Appends the head of a DATA frame of `length` bytes, 1 to [`MAX_DATA`], which the caller must
/// append.
pub(in crate::tunnel) fn emit_data_head(stream: u32, length: usize, out: &mut Vec<u8>) {
    out.push(DATA);
    out.extend(stream.to_be_bytes());
    out.extend((length as u16).to_be_bytes());
}

fn emit_address(address: &Address, out: &mut Vec<u8>) {
    let port = match address {
        Address::Ip(at) => {
            match at.ip() {
                IpAddr::V4(ip) => {
                    out.push(IPV4);
                    out.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(IPV6);
                    out.extend(ip.octets());
                }
            }
            at.port()
        }
        Address::Name(name, port) => {
            let name = &name.as_bytes()[..name.len().min(253)];
            out.extend([NAME, name.len() as u8]);
            out.extend(name);
            *port
        }
    };
    out.extend(port.to_be_bytes());
}

pub(super) fn reason_of(why: Failure) -> u8 {
    match why {
        Failure::Reset => 0,
        Failure::Refused => 1,
        // Earlier versions have no code for `Full`.
        Failure::Unreachable | Failure::Full => 2,
        Failure::TimedOut => 3,
        Failure::Denied => 4,
    }
}
