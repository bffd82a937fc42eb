//! The tunnel's frames, and all their numbers. Everything is big endian.
//!
//! ```text
//!  frame     kind 1 | session 4 | length of the body 2 | body
//!
//!  of the link (session 0)
//!   1 HELLO    version 1 | instance 8 | link 4 | tokens 8 | floor 4 | sessions 4
//!   2 GRANT    tokens 8
//!   3 GONE     link 4
//!   4 PING     anything 8
//!   5 PONG     the same
//!   6 LEAVE
//!  of a session
//!  16 SYN      destination | client, an address each; empty from the other end
//!  17 DATA     bytes, 1 to 16384
//!  18 FIN
//!  19 FINACK
//!  20 RST      why 1
//!  21 ACK      bytes freed 4
//!
//!  address    0, none | 1, 4 bytes, port 2 | 4, 16 bytes, port 2 | 3, length 1, name, port 2
//! ```
//!
//! Addresses have the form of SOCKS5. [`Parser`] is the only place that reads any of this.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::flow::{Address, Failure};
use crate::split::socks::name_of;

/// Version of the whole format; a peer of another version is refused.
pub const VERSION: u8 = 1;
/// Bytes before a frame's body.
pub const HEAD: usize = 7;
/// Most bytes of a session in one frame.
pub const MOST_DATA: usize = 16_384;
/// Most bytes of any other frame's body: those of a SYN with the longest name.
const MOST_BODY: usize = 1 + 1 + 253 + 2 + 1 + 16 + 2;

const HELLO: u8 = 1;
const GRANT: u8 = 2;
const GONE: u8 = 3;
const PING: u8 = 4;
const PONG: u8 = 5;
const LEAVE: u8 = 6;
const SYN: u8 = 16;
const DATA: u8 = 17;
const FIN: u8 = 18;
const FINACK: u8 = 19;
const RST: u8 = 20;
const ACK: u8 = 21;

const HELLO_LEN: usize = 29;

const NONE: u8 = 0;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The first frame of a link, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Tells the sender's tunnel from the one that it had before it was started again.
    pub instance: u64,
    /// The link's number, chosen by whoever dialled; the answer repeats it.
    pub link: u32,
    /// All tokens: bytes of buffer that the sender has for all sessions of all links together.
    pub tokens: u64,
    /// Bytes that each session may have outstanding besides.
    pub floor: u32,
    /// Sessions that the receiver of this frame may have open on this link at once.
    pub sessions: u32,
}

/// What a SYN of the end that opens says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Where the session goes.
    pub to: Address,
    /// Who it is for.
    pub source: Option<SocketAddr>,
}

/// A frame, or a piece of one: DATA is handed on as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// How the link begins.
    Hello(Hello),
    /// All tokens from now on, as in the HELLO; never fewer than before.
    Grant(u64),
    /// The sender holds nothing any more of a link that broke.
    Gone(u32),
    /// To be answered.
    Ping(u64),
    /// The answer.
    Pong(u64),
    /// The sender opens no more sessions on this link.
    Leave,
    /// Opens a session's direction from its sender.
    Syn(Option<Box<Opening>>),
    /// Bytes of the session.
    Data(&'a [u8]),
    /// The last of them was before.
    Fin,
    /// All of them up to the FIN have been consumed.
    FinAck,
    /// The session is over, in both directions.
    Rst(Failure),
    /// So many bytes have been consumed, and their room is free.
    Ack(u32),
}

/// Bytes that are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// No such frame.
    #[error("a frame of kind {0}, which is none")]
    Kind(u8),
    /// Too short or too long.
    #[error("a frame of kind {kind} with a body of {length} bytes")]
    Length {
        /// The frame's kind.
        kind: u8,
        /// Its body's length.
        length: usize,
    },
    /// A session where there is none, or none where there is one.
    #[error("a frame of kind {kind} for session {session}")]
    Session {
        /// The frame's kind.
        kind: u8,
        /// The session that it names.
        session: u32,
    },
    /// A version that is not ours.
    #[error("version {0}; {VERSION} is expected")]
    Version(u8),
    /// A SYN without a destination that makes sense.
    #[error("an address that is none")]
    Address,
    /// A reason that is none.
    #[error("a reset for reason {0}, which is none")]
    Reason(u8),
}

/// Reads frames from a stream that comes in pieces of any size.
#[derive(Debug, Default)]
pub struct Parser {
    /// The beginning of a frame whose end has not come.
    partial: Vec<u8>,
    /// Of a DATA frame: its session, and how much is still to come.
    session: u32,
    data: usize,
}

impl Parser {
    /// The next frame and its session (0 is the link), taken off the front of `bytes`; `None` when
    /// all has been taken.
    pub fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<(u32, Frame<'a>)>, Malformed> {
        loop {
            if self.data > 0 {
                let (piece, rest) = bytes.split_at(self.data.min(bytes.len()));
                *bytes = rest;
                self.data -= piece.len();
                return Ok((!piece.is_empty()).then_some((self.session, Frame::Data(piece))));
            }
            if !self.fill(bytes, HEAD) {
                return Ok(None);
            }
            let (kind, session, length) = head(&self.partial)?;
            if kind == DATA {
                (self.session, self.data) = (session, length);
                self.partial.clear();
                continue;
            }
            if !self.fill(bytes, HEAD + length) {
                return Ok(None);
            }
            let frame = body(kind, &self.partial[HEAD..])?;
            self.partial.clear();
            return Ok(Some((session, frame)));
        }
    }

    /// Whether the stream stands between two frames.
    pub fn is_between(&self) -> bool {
        self.partial.is_empty() && self.data == 0
    }

    /// Takes from `bytes` until `length` are held; false if there were too few.
    fn fill(&mut self, bytes: &mut &[u8], length: usize) -> bool {
        let missing = length.saturating_sub(self.partial.len());
        let (piece, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(piece);
        *bytes = rest;
        self.partial.len() >= length
    }
}

/// A link's HELLO, if it has come whole: whoever accepts links learns from it to which tunnel one
/// belongs. The bytes are then given to that tunnel from the first on.
pub fn peek_hello(bytes: &[u8]) -> Result<Option<Hello>, Malformed> {
    match Parser::default().next(&mut &*bytes)? {
        Some((_, Frame::Hello(hello))) => Ok(Some(hello)),
        Some(_) => Err(Malformed::Kind(bytes[0])),
        None if bytes.first().is_some_and(|&kind| kind != HELLO) => Err(Malformed::Kind(bytes[0])),
        None => Ok(None),
    }
}

/// A frame's kind, session and length of body, if they go together.
fn head(bytes: &[u8]) -> Result<(u8, u32, usize), Malformed> {
    let (kind, session, length) = match *bytes {
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
        SYN => length <= MOST_BODY,
        DATA => (1..=MOST_DATA).contains(&length),
        RST => length == 1,
        _ => return Err(Malformed::Kind(kind)),
    };
    if !fits {
        return Err(Malformed::Length { kind, length });
    }
    if (session == 0) != (kind < SYN) {
        return Err(Malformed::Session { kind, session });
    }
    Ok((kind, session, length))
}

fn body<'a>(kind: u8, bytes: &[u8]) -> Result<Frame<'a>, Malformed> {
    let mut rest = bytes;
    let length = Malformed::Length { kind, length: bytes.len() };
    let frame = match kind {
        HELLO => hello(&mut rest)?,
        GRANT => taken(&mut rest).map(|tokens| Frame::Grant(u64::from_be_bytes(tokens))),
        GONE => taken(&mut rest).map(|link| Frame::Gone(u32::from_be_bytes(link))),
        PING => taken(&mut rest).map(|any| Frame::Ping(u64::from_be_bytes(any))),
        PONG => taken(&mut rest).map(|any| Frame::Pong(u64::from_be_bytes(any))),
        LEAVE => Some(Frame::Leave),
        SYN if bytes.is_empty() => Some(Frame::Syn(None)),
        SYN => Some(Frame::Syn(Some(opening(&mut rest).ok_or(Malformed::Address)?))),
        FIN => Some(Frame::Fin),
        FINACK => Some(Frame::FinAck),
        RST => Some(Frame::Rst(failure(&mut rest)?)),
        ACK => taken(&mut rest).map(|freed| Frame::Ack(u32::from_be_bytes(freed))),
        _ => return Err(Malformed::Kind(kind)),
    };
    frame.filter(|_| rest.is_empty()).ok_or(length)
}

fn hello<'a>(rest: &mut &[u8]) -> Result<Option<Frame<'a>>, Malformed> {
    let [version] = taken(rest).unwrap_or_default();
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    Ok((|| {
        Some(Frame::Hello(Hello {
            instance: u64::from_be_bytes(taken(rest)?),
            link: u32::from_be_bytes(taken(rest)?),
            tokens: u64::from_be_bytes(taken(rest)?),
            floor: u32::from_be_bytes(taken(rest)?),
            sessions: u32::from_be_bytes(taken(rest)?),
        }))
    })())
}

fn opening(rest: &mut &[u8]) -> Option<Box<Opening>> {
    let to = address(rest)??;
    let source = match address(rest)? {
        None => None,
        Some(Address::Ip(at)) => Some(at),
        Some(Address::Name(..)) => return None,
    };
    rest.is_empty().then(|| Box::new(Opening { to, source }))
}

/// An address, which may be none; `None` if it is malformed.
fn address(rest: &mut &[u8]) -> Option<Option<Address>> {
    let [kind] = taken(rest)?;
    let ip: IpAddr = match kind {
        NONE => return Some(None),
        IPV4 => Ipv4Addr::from(taken::<4>(rest)?).into(),
        IPV6 => Ipv6Addr::from(taken::<16>(rest)?).into(),
        NAME => {
            let [length] = taken(rest)?;
            let (name, after) = rest.split_at_checked(usize::from(length))?;
            *rest = after;
            return Some(Some(Address::Name(name_of(name)?, u16::from_be_bytes(taken(rest)?))));
        }
        _ => return None,
    };
    Some(Some(Address::Ip(SocketAddr::new(ip, u16::from_be_bytes(taken(rest)?)))))
}

fn failure(rest: &mut &[u8]) -> Result<Failure, Malformed> {
    let [reason] = taken(rest).unwrap_or([u8::MAX]);
    let known = [
        Failure::Reset,
        Failure::Refused,
        Failure::Unreachable,
        Failure::TimedOut,
        Failure::Denied,
    ];
    known.into_iter().find(|&why| reason_of(why) == reason).ok_or(Malformed::Reason(reason))
}

fn reason_of(why: Failure) -> u8 {
    match why {
        Failure::Reset => 0,
        Failure::Refused => 1,
        Failure::Unreachable => 2,
        Failure::TimedOut => 3,
        Failure::Denied => 4,
    }
}

fn taken<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*bytes)
}

impl Frame<'_> {
    /// Appends the frame to `out`. A name longer than 253 bytes is cut, which no host's is; of
    /// DATA there may be 1 to [`MOST_DATA`] bytes.
    pub fn emit(&self, session: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(self.kind());
        out.extend(session.to_be_bytes());
        out.extend([0, 0]);
        match self {
            Frame::Hello(hello) => {
                out.push(VERSION);
                out.extend(hello.instance.to_be_bytes());
                out.extend(hello.link.to_be_bytes());
                out.extend(hello.tokens.to_be_bytes());
                out.extend(hello.floor.to_be_bytes());
                out.extend(hello.sessions.to_be_bytes());
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

/// Appends the head of a DATA frame of `length` bytes, 1 to [`MOST_DATA`]; they follow.
pub(super) fn emit_data_head(session: u32, length: usize, out: &mut Vec<u8>) {
    out.push(DATA);
    out.extend(session.to_be_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<(u32, Frame<'static>)> {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let open = |to: Address, source| Frame::Syn(Some(Box::new(Opening { to, source })));
        let hello = Hello { instance: 9, link: 3, tokens: 1 << 40, floor: 4096, sessions: 100 };
        vec![
            (0, Frame::Hello(hello)),
            (0, Frame::Grant(1 << 33)),
            (0, Frame::Gone(2)),
            (0, Frame::Ping(u64::MAX)),
            (0, Frame::Pong(5)),
            (0, Frame::Leave),
            (1, open(Address::Ip(at("10.0.0.1:80")), Some(at("[fd00::1]:9")))),
            (3, open(Address::Ip(at("[fd00::2]:443")), None)),
            (5, open(Address::Name("a".repeat(253), 8080), Some(at("[fd00::1]:9")))),
            (1, Frame::Syn(None)),
            (1, Frame::Data(b"some bytes")),
            (u32::MAX, Frame::Fin),
            (1, Frame::FinAck),
            (1, Frame::Rst(Failure::Denied)),
            (1, Frame::Ack(123_456)),
        ]
    }

    #[test]
    fn frames_read_as_written_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        frames().iter().for_each(|(session, frame)| frame.emit(*session, &mut stream));
        for cut in [1, 2, 6, 8, 100, stream.len()] {
            let (mut parser, mut read, mut data) = (Parser::default(), Vec::new(), Vec::new());
            for mut piece in stream.chunks(cut) {
                while let Some((session, frame)) = parser.next(&mut piece).unwrap() {
                    match frame {
                        Frame::Data(bytes) => data.extend_from_slice(bytes),
                        frame => read.push((session, format!("{frame:?}"))),
                    }
                }
            }
            let all = frames().into_iter().filter(|(_, f)| !matches!(f, Frame::Data(_)));
            let expected: Vec<_> = all.map(|(s, f)| (s, format!("{f:?}"))).collect();
            assert_eq!((read, &data[..]), (expected, &b"some bytes"[..]), "in pieces of {cut}");
            assert!(parser.is_between());
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_with_its_reason() {
        let parse = |bytes: &[u8]| Parser::default().next(&mut &*bytes).map(|_| ());
        assert_eq!(parse(&[99, 0, 0, 0, 0, 0, 0]), Err(Malformed::Kind(99)));
        let too_long = Malformed::Length { kind: DATA, length: 16_385 };
        assert_eq!(parse(&[DATA, 0, 0, 0, 1, 0x40, 1]), Err(too_long));
        assert_eq!(
            parse(&[PING, 0, 0, 0, 1, 0, 8]),
            Err(Malformed::Session { kind: PING, session: 1 })
        );
        assert_eq!(parse(&[RST, 0, 0, 0, 1, 0, 1, 77]), Err(Malformed::Reason(77)));
        assert_eq!(parse(&[SYN, 0, 0, 0, 1, 0, 1, NONE]), Err(Malformed::Address));
        let mut hello = Vec::new();
        frames()[0].1.emit(0, &mut hello);
        assert_eq!(peek_hello(&hello[..20]), Ok(None));
        assert_eq!(peek_hello(&hello).unwrap().unwrap().link, 3);
        hello[HEAD] = 2;
        assert_eq!(peek_hello(&hello), Err(Malformed::Version(2)));
    }
}
