//! SOCKS5 (RFC 1928), the server's side of CONNECT, with a password (RFC 1929) or none.
//!
//! ```text
//!   client                                   server
//!     5, methods                  ──▶
//!                                 ◀──        5, method
//!     1, name, password           ──▶                       if the method is "password"
//!                                 ◀──        1, 0
//!     5, connect, 0, address      ──▶
//!                                 ◀──        5, reply, 0, address
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Parsed;
use crate::flow::{Address, Failure};
use crate::reader::Reader;

pub(super) const VERSION: u8 = 5;
pub(super) const PASSWORD_VERSION: u8 = 1;
pub(super) const CONNECT: u8 = 1;
pub(super) const ASSOCIATE: u8 = 3;
pub(super) const IPV4: u8 = 1;
pub(super) const NAME: u8 = 3;
pub(super) const IPV6: u8 = 4;

/// Authentication method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No authentication.
    None = 0,
    /// User name and password (RFC 1929).
    Password = 2,
}

/// User name and password of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub name: Vec<u8>,
    /// Password.
    pub password: Vec<u8>,
}

/// Parses a greeting; the value is true if the greeting offers `method`.
pub fn greeting(bytes: &[u8], method: Method) -> Parsed<bool> {
    match *bytes {
        [] | [VERSION] => Parsed::Short,
        [VERSION, count, ref methods @ ..] => match methods.get(..usize::from(count)) {
            Some(methods) => Parsed::Whole(methods.contains(&(method as u8)), 2 + methods.len()),
            None => Parsed::Short,
        },
        _ => Parsed::Wrong("not SOCKS5"),
    }
}

/// Reply to a greeting: the chosen method, or 0xff if none is acceptable.
pub fn choice(method: Option<Method>) -> [u8; 2] {
    [VERSION, method.map_or(0xff, |method| method as u8)]
}

/// Parses a user name and a password.
pub fn credentials(bytes: &[u8]) -> Parsed<Credentials> {
    let mut rest = match *bytes {
        [] => return Parsed::Short,
        [PASSWORD_VERSION, ref rest @ ..] => Reader(rest),
        _ => return Parsed::Wrong("an unknown version of the SOCKS password protocol"),
    };
    let Some(name) = rest.counted_u8() else { return Parsed::Short };
    let Some(password) = rest.counted_u8() else { return Parsed::Short };
    let len = bytes.len() - rest.0.len();
    Parsed::Whole(Credentials { name: name.to_vec(), password: password.to_vec() }, len)
}

/// Reply to a password.
pub fn verdict(right: bool) -> [u8; 2] {
    [PASSWORD_VERSION, u8::from(!right)]
}

/// Parses a CONNECT request into its destination.
pub fn request(bytes: &[u8]) -> Parsed<Address> {
    let rest = match *bytes {
        [VERSION, CONNECT, 0, ref rest @ ..] => rest,
        [VERSION, CONNECT] | [VERSION] | [] => return Parsed::Short,
        [VERSION, CONNECT, ..] => {
            return Parsed::Wrong("a SOCKS request whose third byte is not 0");
        }
        [VERSION, ..] => return Parsed::Wrong("a SOCKS request that is not CONNECT"),
        _ => return Parsed::Wrong("not SOCKS5"),
    };
    address(rest).behind(bytes.len() - rest.len())
}

/// Parses an address, as in requests, replies and datagrams: type, address of that type, port.
pub(super) fn address(bytes: &[u8]) -> Parsed<Address> {
    let mut after = Reader(bytes);
    let Some(kind) = after.u8() else { return Parsed::Short };
    let host = match kind {
        IPV4 => after.array::<4>().map(|octets| Host::Ip(Ipv4Addr::from(octets).into())),
        IPV6 => after.array::<16>().map(|octets| Host::Ip(Ipv6Addr::from(octets).into())),
        NAME => match after.counted_u8().map(host_of) {
            Some(None) => return Parsed::Wrong("an invalid host name"),
            host => host.flatten(),
        },
        _ => return Parsed::Wrong("an address of a type unknown to SOCKS5"),
    };
    let (Some(host), Some(port)) = (host, after.u16()) else { return Parsed::Short };
    let address = match host {
        Host::Ip(ip) => Address::Ip(SocketAddr::new(ip, port)),
        Host::Name(name) => Address::Name(name, port),
    };
    Parsed::Whole(address, bytes.len() - after.0.len())
}

/// Appends an address to `out`; `None` for a name that is empty or has more than 255 bytes.
pub(super) fn put_address(out: &mut Vec<u8>, to: &Address) -> Option<()> {
    let port = match to {
        Address::Ip(SocketAddr::V4(to)) => {
            out.push(IPV4);
            out.extend(to.ip().octets());
            to.port()
        }
        Address::Ip(SocketAddr::V6(to)) => {
            out.push(IPV6);
            out.extend(to.ip().octets());
            to.port()
        }
        Address::Name(name, port) => {
            let count = u8::try_from(name.len()).ok().filter(|&count| count > 0)?;
            out.extend([NAME, count]);
            out.extend(name.as_bytes());
            *port
        }
    };
    out.extend(port.to_be_bytes());
    Some(())
}

/// Reply to an invalid `request`: command not supported (7) if it is not CONNECT, address type
/// not supported (8), or general failure (1).
pub fn objection(request: &[u8]) -> [u8; 10] {
    let code = match *request {
        [VERSION, command, ..] if command != CONNECT => 7,
        [VERSION, CONNECT, 0, kind, ..] if ![IPV4, NAME, IPV6].contains(&kind) => 8,
        _ => 1,
    };
    [VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

/// Host of a name field: an IP address in text form is read as that address.
fn host_of(bytes: &[u8]) -> Option<Host> {
    let address = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    address.map(Host::Ip).or_else(|| name_of(bytes).map(Host::Name))
}

enum Host {
    Ip(IpAddr),
    Name(String),
}

/// Reply to a request. The bound address is left zero: no client needs it.
pub fn reply(result: Result<(), Failure>) -> [u8; 10] {
    let code = match result {
        Ok(()) => 0,
        Err(Failure::Denied) => 2,
        Err(Failure::Unreachable) => 4,
        Err(Failure::Refused) => 5,
        Err(Failure::TimedOut) => 6,
        Err(Failure::Reset | Failure::Full) => 1,
    };
    [VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

/// Parses a host name: letters, digits, dots, hyphens and underscores.
pub(crate) fn name_of(bytes: &[u8]) -> Option<String> {
    let fine = |&b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let good = !bytes.is_empty() && bytes.len() <= 253 && bytes.iter().all(fine);
    good.then(|| String::from_utf8_lossy(bytes).into_owned())
}
