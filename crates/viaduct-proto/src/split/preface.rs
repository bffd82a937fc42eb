//! Preface of a client: the exchange before its flow begins, in which the client names the
//! destination by one of the protocols that the hop accepts.
//!
//! ```text
//!   bytes ──▶ Preface ──┬─▶ more bytes are needed, or a reply is sent first, such as a request
//!                       │   for a password
//!                       ├─▶ connect; then the reply. Bytes after the preface are the flow's
//!                       └─▶ refused: a last reply, and the connection ends
//! ```

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::extension::Onward;
use super::proxy::Addresses;
use super::socks::{Credentials, Method};
use super::{Parsed, connect, proxy, socks};
use crate::flow::{Address, Failure};
use crate::placement::Prefix;

/// Maximum bytes of a preface that are buffered at once; an HTTP head is its longest part.
pub const LONGEST: usize = connect::LONGEST;

/// Number of CONNECT requests with a missing or wrong password after which a connection is closed.
const MAX_ATTEMPTS: u8 = 3;

/// Protocols that a hop accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// A TCP option in the SYN. A connection with this option needs no preface.
    pub option: bool,
    /// PROXY protocol, version 2.
    pub proxy: bool,
    /// SOCKS5.
    pub socks: bool,
    /// HTTP CONNECT.
    pub connect: bool,
}

impl Protocols {
    /// Returns whether any protocol with a preface is accepted.
    pub fn have_prefaces(&self) -> bool {
        self.proxy || self.socks || self.connect
    }
}

/// Credentials that clients of a hop must give; `None` admits any client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secret(pub Option<Credentials>);

/// Next step of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for more bytes.
    Wait,
    /// Send these bytes, and continue.
    Say(Vec<u8>),
    /// Send these bytes, and continue: the password was wrong, and the client may try again.
    Deny(Vec<u8>),
    /// Connect to the destination.
    Connect {
        /// Destination.
        to: Address,
        /// Original client, if an earlier hop has announced its address.
        source: Option<SocketAddr>,
    },
    /// Send a report about these networks, for which another hop has asked, and end the connection.
    Report(Vec<Prefix>),
    /// Send these bytes, if there are any, and end the connection.
    Refuse(Vec<u8>, Refusal),
}

/// Reason to refuse a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The preface is invalid.
    #[error("{0}")]
    Unclear(&'static str),
    /// The password is wrong.
    #[error("its password is wrong")]
    Denied,
    /// No password was given.
    #[error("it gives no password")]
    Unauthenticated,
    /// A health check, which requests no connection.
    #[error("it is a health check")]
    HealthCheck,
}

/// State of the exchange with one client.
#[derive(Clone, Debug)]
pub struct Preface {
    protocols: Protocols,
    secret: Secret,
    state: State,
    /// Requests so far with a missing or wrong password.
    attempts: u8,
    /// User name that the client gave, whether or not the password was right.
    user: Option<String>,
    /// Rest of the route that an earlier hop has chosen.
    onward: Onward,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    First,
    SocksPassword,
    SocksRequest,
    /// Bytes left of a PROXY header, and the addresses in the header.
    ProxyRest(usize, Option<Addresses>),
    Done(Protocol),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Proxy,
    Socks,
    Connect,
}

impl Preface {
    /// Creates the exchange with a client that may speak one of `protocols`.
    pub fn new(protocols: Protocols, secret: Secret) -> Preface {
        let (state, onward) = (State::First, Onward::Open);
        Preface { protocols, secret, state, attempts: 0, user: None, onward }
    }

    /// Consumes messages from the front of `bytes` and returns the next step. Call it again after
    /// [`Step::Say`] or [`Step::Deny`], and when more bytes have arrived.
    pub fn handle(&mut self, bytes: &mut Vec<u8>) -> Step {
        let step = match (self.state, bytes.first()) {
            (State::ProxyRest(rest, addresses), _) => self.proxy_rest(bytes, rest, addresses),
            (_, None) => Step::Wait,
            (State::First, Some(5)) if self.protocols.socks => self.greet(bytes),
            (State::First, Some(b'A'..=b'Z')) if self.protocols.connect => self.connect(bytes),
            (State::First, Some(b'\r')) if self.protocols.proxy => self.proxy(bytes),
            (State::First, _) => unclear("it speaks no accepted protocol"),
            (State::SocksPassword, _) => self.password(bytes),
            (State::SocksRequest, _) => self.request(bytes),
            (State::Done(_), _) => Step::Wait,
        };
        match step {
            Step::Wait if bytes.len() >= LONGEST => unclear("its preface is too long"),
            step => step,
        }
    }

    /// Returns whether the client has named its destination. Bytes that follow belong to the flow.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    /// Reply to the client once the connection is established or has failed.
    pub fn answer(&self, result: Result<(), Failure>) -> Vec<u8> {
        match self.state {
            State::Done(Protocol::Socks) => socks::reply(result).to_vec(),
            State::Done(Protocol::Connect) => connect::response(result),
            _ => Vec::new(),
        }
    }

    /// User name that the client gave, whether or not the password was right.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Rest of the route that an earlier hop has chosen.
    pub fn onward(&self) -> Onward {
        self.onward
    }

    /// Name of the protocol that the client speaks, once that is known.
    pub fn protocol(&self) -> Option<&'static str> {
        match self.state {
            State::First => self.user.is_some().then_some("http"),
            State::SocksPassword | State::SocksRequest | State::Done(Protocol::Socks) => {
                Some("socks5")
            }
            State::ProxyRest(..) | State::Done(Protocol::Proxy) => Some("proxy"),
            State::Done(Protocol::Connect) => Some("http"),
        }
    }

    fn greet(&mut self, bytes: &mut Vec<u8>) -> Step {
        let method = if self.secret.0.is_some() { Method::Password } else { Method::None };
        let after = match method {
            Method::Password => State::SocksPassword,
            Method::None => State::SocksRequest,
        };
        match take(bytes, |bytes| socks::greeting(bytes, method)) {
            Ok(true) => self.say(socks::choice(Some(method)).to_vec(), after),
            Ok(false) => {
                let why = Refusal::Unclear("it offers no suitable authentication method");
                Step::Refuse(socks::choice(None).to_vec(), why)
            }
            Err(step) => step,
        }
    }

    fn password(&mut self, bytes: &mut Vec<u8>) -> Step {
        match take(bytes, socks::credentials) {
            Ok(given) => {
                self.user = Some(String::from_utf8_lossy(&given.name).into_owned());
                match self.knows(&given) {
                    true => self.say(socks::verdict(true).to_vec(), State::SocksRequest),
                    false => Step::Refuse(socks::verdict(false).to_vec(), Refusal::Denied),
                }
            }
            Err(step) => step,
        }
    }

    fn request(&mut self, bytes: &mut Vec<u8>) -> Step {
        match take(bytes, socks::request) {
            Ok(to) => self.go(Protocol::Socks, to, None),
            Err(Step::Refuse(_, why)) => Step::Refuse(socks::objection(bytes).to_vec(), why),
            Err(step) => step,
        }
    }

    fn connect(&mut self, bytes: &mut Vec<u8>) -> Step {
        let request = match take(bytes, connect::parse) {
            Ok(request) => request,
            Err(Step::Refuse(_, why)) => return Step::Refuse(connect::objection(bytes), why),
            Err(step) => return step,
        };
        if self.secret.0.is_some()
            && let Some(token) = request.basic()
        {
            let pair = BASE64_STANDARD.decode(token).unwrap_or_default();
            let name = pair.split(|&byte| byte == b':').next().unwrap_or_default();
            self.user = Some(String::from_utf8_lossy(name).into_owned());
        }
        if self.may(&request) {
            return self.go(Protocol::Connect, request.to, None);
        }
        self.attempts += 1;
        let closes = !request.persists || self.attempts >= MAX_ATTEMPTS;
        let words = connect::password_wanted(closes);
        match (closes, request.authorization) {
            (true, None) => Step::Refuse(words, Refusal::Unauthenticated),
            (true, Some(_)) => Step::Refuse(words, Refusal::Denied),
            // The client only asks whether a password is required.
            (false, None) => Step::Say(words),
            (false, Some(_)) => Step::Deny(words),
        }
    }

    fn proxy(&mut self, bytes: &mut Vec<u8>) -> Step {
        match take(bytes, proxy::start) {
            // The rest of a query's header is ignored, and no bytes follow it.
            Ok(proxy::Start { query: Some(networks), .. }) => Step::Report(networks),
            Ok(start) => self.proxy_rest(bytes, start.rest, start.addresses),
            Err(step) => step,
        }
    }

    /// Drops the rest of a PROXY header, and returns the next step. The PROXY protocol is
    /// authorized by source address, not by a password.
    fn proxy_rest(&mut self, bytes: &mut Vec<u8>, rest: usize, told: Option<Addresses>) -> Step {
        let dropped = bytes.drain(..rest.min(bytes.len())).len();
        if dropped < rest {
            self.state = State::ProxyRest(rest - dropped, told);
            return Step::Wait;
        }
        match told {
            Some(Addresses { source, destination, onward }) => {
                self.onward = onward;
                self.go(Protocol::Proxy, destination.into(), Some(source))
            }
            None => Step::Refuse(Vec::new(), Refusal::HealthCheck),
        }
    }

    fn say(&mut self, words: Vec<u8>, after: State) -> Step {
        self.state = after;
        Step::Say(words)
    }

    fn go(&mut self, protocol: Protocol, to: Address, source: Option<SocketAddr>) -> Step {
        self.state = State::Done(protocol);
        Step::Connect { to, source }
    }

    fn knows(&self, given: &Credentials) -> bool {
        self.secret.0.as_ref().is_none_or(|right| {
            same(&right.name, &given.name) & same(&right.password, &given.password)
        })
    }

    fn may(&self, request: &connect::Request) -> bool {
        let Some(right) = &self.secret.0 else { return true };
        let pair = [&right.name[..], b":", &right.password].concat();
        let right = BASE64_STANDARD.encode(pair);
        request.basic().is_some_and(|given| same(right.as_bytes(), given))
    }
}

/// Takes a message from the front of `bytes`. If it is incomplete or invalid, the error is the
/// next step.
fn take<T>(bytes: &mut Vec<u8>, parse: impl Fn(&[u8]) -> Parsed<T>) -> Result<T, Step> {
    match parse(bytes) {
        Parsed::Whole(message, len) => {
            bytes.drain(..len);
            Ok(message)
        }
        Parsed::Short => Err(Step::Wait),
        Parsed::Wrong(why) => Err(unclear(why)),
    }
}

fn unclear(why: &'static str) -> Step {
    Step::Refuse(Vec::new(), Refusal::Unclear(why))
}

/// Compares two secrets in a time that does not depend on where they differ.
fn same(right: &[u8], given: &[u8]) -> bool {
    let differ = right.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
    differ == 0 && right.len() == given.len()
}
