//! HTTP CONNECT (RFC 9110, 9.3.6): the head of a request, and its responses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::Parsed;
use super::socks::name_of;
use crate::flow::{Address, Failure};

/// Maximum length of a request's head in bytes.
pub const LONGEST: usize = 8 << 10;

/// First words of requests. Requests other than CONNECT are read to their end only to be
/// answered with an error.
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
    /// The connection can carry another request after this one (RFC 9112, 9.3).
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
    let Some(len) = head(bytes) else {
        return match bytes.len() {
            0..LONGEST if may_begin(bytes) => Parsed::Short,
            0..LONGEST => Parsed::Wrong("no HTTP CONNECT"),
            _ => Parsed::Wrong("an HTTP head that is too long"),
        };
    };
    if len > LONGEST {
        return Parsed::Wrong("an HTTP head that is too long");
    }
    let mut lines = bytes[..len].split(|&b| b == b'\n').map(<[u8]>::trim_ascii_end);
    let Some(line) = lines.next() else { return Parsed::Wrong("no HTTP CONNECT") };
    let Some(target) = target(line) else { return Parsed::Wrong("no HTTP CONNECT") };
    let mut persists = !line.ends_with(b" HTTP/1.0");
    let mut closes = false;
    let Some(to) = authority(target) else {
        return Parsed::Wrong("an HTTP CONNECT without host and port");
    };
    let mut authorization = None;
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some((name, value)) = split_once(line, b':') else {
            return Parsed::Wrong("an HTTP header without a colon");
        };
        if name.eq_ignore_ascii_case(b"Proxy-Authorization") {
            authorization = Some(value.trim_ascii().to_vec());
        }
        if name.eq_ignore_ascii_case(b"Connection")
            || name.eq_ignore_ascii_case(b"Proxy-Connection")
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

/// Complete response, followed by the flow or by nothing. A failure has a line with the reason.
pub fn response(result: Result<(), Failure>) -> Vec<u8> {
    let (status, why) = match result {
        Ok(()) => return b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec(),
        Err(Failure::Denied) => ("403 Forbidden", "flows may not go there"),
        Err(Failure::TimedOut) => ("504 Gateway Timeout", "the server does not answer"),
        Err(Failure::Refused) => ("502 Bad Gateway", "the server refuses the connection"),
        Err(Failure::Unreachable) => ("502 Bad Gateway", "no way to the server is known"),
        Err(Failure::Full) => ("503 Service Unavailable", "there is no room for more flows"),
        Err(Failure::Reset) => ("502 Bad Gateway", "the way to the server broke"),
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

/// Response to an invalid `request`, according to which of its length, method, version and
/// target is wrong. Empty if `request` is not HTTP.
pub fn objection(request: &[u8]) -> Vec<u8> {
    if !may_begin(request) {
        return Vec::new();
    }
    let line = request.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii_end();
    let version = line.rsplit(|&b| b == b' ').next().unwrap_or_default();
    let (connect, spoken) = (line.starts_with(b"CONNECT "), version.starts_with(b"HTTP/1."));
    if head(request).is_none_or(|len| len > LONGEST) {
        let why = format!("the head of a request may have {LONGEST} bytes");
        return refusal("431 Request Header Fields Too Large", &why);
    }
    let (status, why) = match (connect, spoken) {
        (false, _) => ("405 Method Not Allowed\r\nAllow: CONNECT", "CONNECT is expected"),
        (true, false) => ("505 HTTP Version Not Supported", "HTTP/1.1 is expected"),
        (true, true) => {
            ("400 Bad Request", "CONNECT host:port, and a colon in each header, are expected")
        }
    };
    refusal(status, why)
}

/// Length of the head, including its empty line.
fn head(bytes: &[u8]) -> Option<usize> {
    let mut start = 0;
    for (at, _) in bytes.iter().enumerate().filter(|(_, b)| **b == b'\n') {
        let line = bytes[start..at].trim_ascii_end();
        if line.is_empty() && start > 0 {
            return Some(at + 1);
        }
        start = at + 1;
    }
    None
}

/// Returns whether `bytes` may be the beginning of a request.
fn may_begin(bytes: &[u8]) -> bool {
    METHODS.iter().any(|method| {
        let known = bytes.len().min(method.len());
        bytes[..known] == method[..known]
    })
}

/// Target of a request line.
fn target(line: &[u8]) -> Option<&[u8]> {
    let (target, version) = split_once(line.strip_prefix(b"CONNECT ")?, b' ')?;
    version.starts_with(b"HTTP/1.").then_some(target)
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
