//! HTTP CONNECT (RFC 9110, 9.3.6): the head of a request, and its responses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use httparse::{EMPTY_HEADER, Error, Header, Status};

use super::Parsed;
use super::socks::name_of;
use crate::flow::{Address, Failure};

/// Maximum length of a request's head in bytes.
pub const LONGEST: usize = 8 << 10;

/// First words of requests. Requests other than CONNECT are also read to their end, so that they
/// can be answered with an error.
const METHODS: [&[u8]; 8] =
    [b"CONNECT ", b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH "];

/// Response to a request without the right name and password. The client may send another
/// request over the same connection (RFC 9112, 9.3), unless the response `closes` it.
pub fn password_wanted(closes: bool) -> Vec<u8> {
    let close = if closes { "Connection: close\r\n" } else { "" };
    let head =
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"viaduct\"";
    format!("{head}\r\n{close}Content-Length: 0\r\n\r\n").into()
}

/// Parsed CONNECT request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Destination.
    pub to: Address,
    /// Value of `Proxy-Authorization`, if present.
    pub authorization: Option<Vec<u8>>,
    /// True if the connection can carry another request after this one (RFC 9112, 9.3).
    pub persists: bool,
}

impl Request {
    /// Returns the token of `Proxy-Authorization`, if its scheme is Basic. Schemes are
    /// case-insensitive (RFC 9110, 11.1) and separated from their tokens by blanks.
    pub fn basic(&self) -> Option<&[u8]> {
        let (scheme, token) = split_once(self.authorization.as_deref()?, b' ')?;
        scheme.eq_ignore_ascii_case(b"Basic").then(|| token.trim_ascii())
    }
}

/// Parses the request at the start of `bytes`, up to the end of its head.
pub fn parse(bytes: &[u8]) -> Parsed<Request> {
    if !may_begin(bytes) {
        return Parsed::Wrong("not an HTTP CONNECT");
    }
    let (front, mut headers) = front(bytes);
    let mut head = httparse::Request::new(&mut headers);
    let len = match head.parse(front) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if bytes.len() < LONGEST => return Parsed::Short,
        Ok(Status::Partial) => return Parsed::Wrong("an HTTP head that is too long"),
        Err(Error::HeaderName) => return Parsed::Wrong("an HTTP header without a colon"),
        Err(_) => return Parsed::Wrong("not an HTTP CONNECT"),
    };
    let (Some("CONNECT"), Some(target)) = (head.method, head.path) else {
        return Parsed::Wrong("not an HTTP CONNECT");
    };
    let Some(to) = authority(target.as_bytes()) else {
        return Parsed::Wrong("an HTTP CONNECT without host and port");
    };
    let (mut authorization, mut persists, mut closes) = (None, head.version == Some(1), false);
    for Header { name, value } in &*head.headers {
        if name.eq_ignore_ascii_case("Proxy-Authorization") {
            authorization = Some(value.to_vec());
        }
        if name.eq_ignore_ascii_case("Connection") || name.eq_ignore_ascii_case("Proxy-Connection")
        {
            let says = |word: &[u8]| {
                value.split(|&b| b == b',').any(|one| one.trim_ascii().eq_ignore_ascii_case(word))
            };
            closes |= says(b"close");
            persists |= says(b"keep-alive");
        }
    }
    // RFC 9112, 9.3: `close` takes precedence.
    Parsed::Whole(Request { to, authorization, persists: persists && !closes }, len)
}

/// Complete response to a request. If the connect succeeded, the flow follows the response;
/// otherwise the response has a line with the reason.
pub fn response(result: Result<(), Failure>) -> Vec<u8> {
    let (status, why) = match result {
        Ok(()) => return b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec(),
        Err(Failure::Denied) => ("403 Forbidden", "the destination is not allowed"),
        Err(Failure::TimedOut) => ("504 Gateway Timeout", "the server does not answer"),
        Err(Failure::Refused) => ("502 Bad Gateway", "the server refuses the connection"),
        Err(Failure::Unreachable) => ("502 Bad Gateway", "there is no route to the server"),
        Err(Failure::Full) => ("503 Service Unavailable", "there is no room for more flows"),
        Err(Failure::Reset) => ("502 Bad Gateway", "the connection to the server broke"),
    };
    refusal(status, why)
}

/// Response with a line that gives the reason; the connection is closed after it.
fn refusal(head: &str, why: &str) -> Vec<u8> {
    let length = why.len() + 1;
    let head = format!(
        "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: \
            {length}"
    );
    format!("{head}\r\n\r\n{why}\n").into()
}

/// Response to an invalid `request`. The status tells whether the length, method, version or target
/// is wrong. Empty if `request` is not HTTP.
pub fn objection(request: &[u8]) -> Vec<u8> {
    if !may_begin(request) {
        return Vec::new();
    }
    let (front, mut headers) = front(request);
    let mut head = httparse::Request::new(&mut headers);
    let (status, why) = match (head.parse(front), head.method) {
        (Ok(Status::Partial), _) => {
            let why = format!("the head of a request may have {LONGEST} bytes");
            return refusal("431 Request Header Fields Too Large", &why);
        }
        (Err(Error::Version), Some("CONNECT")) => {
            ("505 HTTP Version Not Supported", "HTTP/1.1 is expected")
        }
        (_, Some("CONNECT")) => {
            ("400 Bad Request", "CONNECT host:port, and a colon in each header, are expected")
        }
        _ => ("405 Method Not Allowed\r\nAllow: CONNECT", "CONNECT is expected"),
    };
    refusal(status, why)
}

/// Returns the bytes that may belong to the head of a request, and room for its headers.
fn front(bytes: &[u8]) -> (&[u8], Vec<Header<'_>>) {
    let front = &bytes[..bytes.len().min(LONGEST)];
    let lines = front.iter().filter(|&&byte| byte == b'\n').count();
    (front, vec![EMPTY_HEADER; lines])
}

/// Returns whether `bytes` may be the beginning of a request.
fn may_begin(bytes: &[u8]) -> bool {
    METHODS.iter().any(|method| {
        let known = bytes.len().min(method.len());
        bytes[..known] == method[..known]
    })
}

/// Parses `host:port`, `1.2.3.4:port` or `[::1]:port`.
fn authority(text: &[u8]) -> Option<Address> {
    let at = text.iter().rposition(|&b| b == b':')?;
    let (host, port) = (&text[..at], &text[at + 1..]);
    let port = std::str::from_utf8(port).ok()?;
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = port.parse::<u16>().ok().filter(|&port| digits && port != 0)?;
    if let Some(inner) = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")) {
        let ip: Ipv6Addr = std::str::from_utf8(inner).ok()?.parse().ok()?;
        return Some(Address::Ip(SocketAddr::new(ip.into(), port)));
    }
    let name = name_of(host)?;
    Some(match name.parse::<IpAddr>() {
        Ok(ip) => Address::Ip(SocketAddr::new(ip, port)),
        Err(_) => Address::Name(name, port),
    })
}

fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = bytes.iter().position(|&b| b == at)?;
    Some((&bytes[..position], &bytes[position + 1..]))
}
