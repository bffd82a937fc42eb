//! Reading of frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::emit::reason_of;
use super::{
    ACK, DATA, FIN, FINACK, Frame, GONE, GRANT, HEAD, HELLO, HELLO_LEN, Hello, IPV4, IPV6, LEAVE,
    MAX_BODY, MAX_DATA, Malformed, NAME, NONE, Opening, PING, PONG, RST, SYN, VERSION,
};
use crate::flow::{Address, Failure};
use crate::reader::Reader;
use crate::split::socks::name_of;

/// Parser of frames, from bytes that arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct Parser {
    /// Beginning of an incomplete frame.
    partial: Vec<u8>,
    /// Stream of the current DATA frame.
    stream: u32,
    /// Bytes of the current DATA frame that are still to come.
    data: usize,
}

impl Parser {
    /// Next frame and its stream (0 is the link), removed from the front of `from`; `None`
    /// when all bytes have been taken.
    pub fn next<'a>(&mut self, from: &mut &'a [u8]) -> Result<Option<(u32, Frame<'a>)>, Malformed> {
        loop {
            if self.data > 0 {
                let (piece, rest) = from.split_at(self.data.min(from.len()));
                *from = rest;
                self.data -= piece.len();
                return Ok((!piece.is_empty()).then_some((self.stream, Frame::Data(piece))));
            }
            if !self.fill(from, HEAD) {
                return Ok(None);
            }
            let (kind, stream, length) = head(&self.partial)?;
            if kind == DATA {
                (self.stream, self.data) = (stream, length);
                self.partial.clear();
                continue;
            }
            if !self.fill(from, HEAD + length) {
                return Ok(None);
            }
            let frame = body(kind, &self.partial[HEAD..])?;
            self.partial.clear();
            return Ok(Some((stream, frame)));
        }
    }

    /// Returns whether the bytes so far end at a frame boundary.
    pub fn is_between(&self) -> bool {
        self.partial.is_empty() && self.data == 0
    }

    /// Moves bytes from `bytes` until `length` bytes are held; false if there were too few.
    fn fill(&mut self, bytes: &mut &[u8], length: usize) -> bool {
        let missing = length.saturating_sub(self.partial.len());
        let (piece, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(piece);
        *bytes = rest;
        self.partial.len() >= length
    }
}

/// HELLO of a link, if it is complete. An acceptor of links learns from the HELLO to which tunnel a
/// link belongs, and then passes all bytes, including the HELLO, to that tunnel.
pub fn peek_hello(bytes: &[u8]) -> Result<Option<Hello>, Malformed> {
    match Parser::default().next(&mut &*bytes)? {
        Some((_, Frame::Hello(hello))) => Ok(Some(hello)),
        Some(_) => Err(Malformed::Kind(bytes[0])),
        None if bytes.first().is_some_and(|&kind| kind != HELLO) => Err(Malformed::Kind(bytes[0])),
        None => Ok(None),
    }
}

/// Kind, stream and body length of a frame, if they are consistent.
fn head(bytes: &[u8]) -> Result<(u8, u32, usize), Malformed> {
    let (kind, stream, length) = match *bytes {
        [kind, a, b, c, d, high, low, ..] => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            (kind, u32::from_be_bytes([a, b, c, d]), length)
        }
        _ => return Err(Malformed::Length { kind: 0, length: bytes.len() }),
    };
    let fits = match kind {
        HELLO => length == HELLO_LEN,
        GONE | ACK => length == 4,
        GRANT | PING | PONG => length == 8,
        LEAVE | FIN | FINACK => length == 0,
        SYN => length <= MAX_BODY,
        DATA => (1..=MAX_DATA).contains(&length),
        RST => length == 1,
        _ => return Err(Malformed::Kind(kind)),
    };
    if !fits {
        return Err(Malformed::Length { kind, length });
    }
    if (stream == 0) != (kind < SYN) {
        return Err(Malformed::Stream { kind, stream });
    }
    Ok((kind, stream, length))
}

fn body<'a>(kind: u8, bytes: &[u8]) -> Result<Frame<'a>, Malformed> {
    let mut rest = Reader(bytes);
    let length = Malformed::Length { kind, length: bytes.len() };
    let frame = match kind {
        HELLO => hello(&mut rest)?,
        GRANT => rest.u64().map(Frame::Grant),
        GONE => rest.u32().map(Frame::Gone),
        PING => rest.u64().map(Frame::Ping),
        PONG => rest.u64().map(Frame::Pong),
        LEAVE => Some(Frame::Leave),
        SYN if bytes.is_empty() => Some(Frame::Syn(None)),
        SYN => Some(Frame::Syn(Some(opening(&mut rest).ok_or(Malformed::Address)?))),
        FIN => Some(Frame::Fin),
        FINACK => Some(Frame::FinAck),
        RST => Some(Frame::Rst(failure(&mut rest)?)),
        ACK => rest.u32().map(Frame::Ack),
        _ => return Err(Malformed::Kind(kind)),
    };
    frame.filter(|_| rest.is_empty()).ok_or(length)
}

fn hello<'a>(rest: &mut Reader<'_>) -> Result<Option<Frame<'a>>, Malformed> {
    let version = rest.u8().unwrap_or_default();
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    Ok((|| {
        Some(Frame::Hello(Hello {
            instance: rest.u64()?,
            link: rest.u32()?,
            tokens: rest.u64()?,
            least_window: rest.u32()?,
            streams: rest.u32()?,
        }))
    })())
}

fn opening(rest: &mut Reader<'_>) -> Option<Box<Opening>> {
    let to = address(rest)??;
    let source = match address(rest)? {
        None => None,
        Some(Address::Ip(at)) => Some(at),
        Some(Address::Name(..)) => return None,
    };
    rest.is_empty().then(|| Box::new(Opening { to, source }))
}

/// Reads an address. `Some(None)` is the absent address; `None` means that it is malformed.
fn address(rest: &mut Reader<'_>) -> Option<Option<Address>> {
    let ip: IpAddr = match rest.u8()? {
        NONE => return Some(None),
        IPV4 => Ipv4Addr::from(rest.array::<4>()?).into(),
        IPV6 => Ipv6Addr::from(rest.array::<16>()?).into(),
        NAME => {
            let name = rest.counted_u8()?;
            return Some(Some(Address::Name(name_of(name)?, rest.u16()?)));
        }
        _ => return None,
    };
    Some(Some(Address::Ip(SocketAddr::new(ip, rest.u16()?))))
}

fn failure(rest: &mut Reader<'_>) -> Result<Failure, Malformed> {
    let reason = rest.u8().unwrap_or(u8::MAX);
    let known = [
        Failure::Reset,
        Failure::Refused,
        Failure::Unreachable,
        Failure::TimedOut,
        Failure::Denied,
    ];
    known.into_iter().find(|&why| reason_of(why) == reason).ok_or(Malformed::Reason(reason))
}
