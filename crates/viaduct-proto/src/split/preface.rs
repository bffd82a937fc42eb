//! Preface of a client: the protocol exchange before its flow begins, which names the
//! destination in one of the protocols that the client speaks and the hop accepts.
//!
//! ```text
//!   bytes ──▶ Preface ──┬─▶ more bytes are needed, or a reply is sent first, such as a request
//!                       │   for a password
//!                       ├─▶ connect; then the reply. Bytes behind the preface are the flow's
//!                       └─▶ refused: a last reply, and the connection ends
//! ```

use std::net::SocketAddr;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::proxy::Addresses;
use super::socks::{Credentials, Method};
use super::{Parsed, connect, proxy, socks};
use crate::flow::{Address, Failure};

/// Maximum bytes of a preface that are buffered at once; an HTTP head is its longest part.
pub const LONGEST: usize = connect::LONGEST;

/// Requests with a missing or wrong password after which a connection is closed.
const MAX_ATTEMPTS: u8 = 3;

/// Protocols that a hop accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// A TCP option in the SYN. A connection that has it needs no preface.
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
    /// Send this, and go on.
    Say(Vec<u8>),
    /// Send this, and go on: the password was wrong, and the client may try again.
    Deny(Vec<u8>),
    /// Connect to the destination.
    Connect {
        /// Destination.
        to: Address,
        /// Original client, if an earlier hop has told its address.
        source: Option<SocketAddr>,
    },
    /// Send this, if it is not empty, and end the connection.
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
    /// A health check, which asks for no connection.
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    First,
    SocksPassword,
    SocksRequest,
    /// Bytes left of a PROXY header, and the addresses it gave.
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
    /// Exchange with a client that may speak one of `protocols`.
    pub fn new(protocols: Protocols, secret: Secret) -> Preface {
        Preface { protocols, secret, state: State::First, attempts: 0, user: None }
    }

    /// Consumes messages from the front of `bytes` and returns the next step. Call it again
    /// after [`Step::Say`], and when more bytes have arrived.
    pub fn handle(&mut self, bytes: &mut Vec<u8>) -> Step {
        let step = match (self.state, bytes.first()) {
            (State::ProxyRest(rest, addresses), _) => self.proxy_rest(bytes, rest, addresses),
            (_, None) => Step::Wait,
            (State::First, Some(5)) if self.protocols.socks => self.greet(bytes),
            (State::First, Some(b'A'..=b'Z')) if self.protocols.connect => self.connect(bytes),
            (State::First, Some(b'\r')) if self.protocols.proxy => self.proxy(bytes),
            (State::First, _) => unclear("it speaks nothing that is understood"),
            (State::SocksPassword, _) => self.password(bytes),
            (State::SocksRequest, _) => self.request(bytes),
            (State::Done(_), _) => Step::Wait,
        };
        match step {
            Step::Wait if bytes.len() >= LONGEST => unclear("it is too long"),
            step => step,
        }
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
                let why = Refusal::Unclear("it offers no fitting method");
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
            Ok(start) => self.proxy_rest(bytes, start.rest, start.addresses),
            Err(step) => step,
        }
    }

    /// Drops the rest of a PROXY header. PROXY has no passwords: its use is authorized by
    /// source address.
    fn proxy_rest(
        &mut self,
        bytes: &mut Vec<u8>,
        rest: usize,
        addresses: Option<Addresses>,
    ) -> Step {
        let dropped = bytes.drain(..rest.min(bytes.len())).len();
        if dropped < rest {
            self.state = State::ProxyRest(rest - dropped, addresses);
            return Step::Wait;
        }
        match addresses {
            Some(Addresses { source, destination }) => {
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

/// Takes a message from the front of `bytes`. Without one, the error is the step to take.
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Protocols = Protocols { option: true, proxy: true, socks: true, connect: true };

    fn me() -> Secret {
        Secret(Some(Credentials { name: b"me".to_vec(), password: b"pw".to_vec() }))
    }

    /// Feeds `said` byte by byte; returns the replies, the last step and the final answer.
    fn talk(mut preface: Preface, said: &[u8]) -> (Vec<u8>, Step, Vec<u8>) {
        let (mut bytes, mut answers) = (Vec::new(), Vec::new());
        for &byte in said {
            bytes.push(byte);
            loop {
                match preface.handle(&mut bytes) {
                    Step::Wait => break,
                    Step::Say(words) | Step::Deny(words) => answers.extend(words),
                    end => {
                        let answer = preface.answer(Ok(()));
                        return (answers, end, answer);
                    }
                }
            }
        }
        (answers, Step::Wait, Vec::new())
    }

    fn there(text: &str) -> Step {
        Step::Connect { to: Address::Ip(text.parse().unwrap()), source: None }
    }

    #[test]
    fn each_language_leads_there() {
        let socks = b"\x05\x01\x00\x05\x01\x00\x01\x0a\x00\x00\x01\x00\x50";
        let (answers, step, answer) = talk(Preface::new(ALL, Secret::default()), socks);
        assert_eq!((&answers[..], step), (&[5, 0][..], there("10.0.0.1:80")));
        assert_eq!(answer[..2], [5, 0]);
        let http = b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n";
        let (_, step, answer) = talk(Preface::new(ALL, Secret::default()), http);
        assert_eq!(step, there("10.0.0.1:80"));
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        let source = "10.0.0.9:1".parse().unwrap();
        let destination: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let header = proxy::emit(&Addresses { source, destination });
        let (_, step, answer) = talk(Preface::new(ALL, Secret::default()), &header);
        assert_eq!(step, Step::Connect { to: destination.into(), source: Some(source) });
        assert!(answer.is_empty());
    }

    #[test]
    fn passwords_are_requested_and_checked() {
        let socks = |password: &[u8]| {
            let said =
                [&b"\x05\x02\x00\x02\x01\x02me\x02"[..], password, b"\x05\x01\0\x01"].concat();
            talk(Preface::new(ALL, me()), &[&said[..], &[10, 0, 0, 1, 0, 80]].concat())
        };
        assert_eq!(socks(b"pw").1, there("10.0.0.1:80"));
        let denied = Step::Refuse(vec![1, 1], Refusal::Denied);
        assert_eq!(socks(b"px").1, denied);
        let none = talk(Preface::new(ALL, me()), &[5, 1, 0]);
        assert!(matches!(none.1, Step::Refuse(words, _) if words == [5, 0xff]));
        let http = |header: &str| {
            let said = format!("CONNECT 10.0.0.1:80 HTTP/1.1\r\n{header}\r\n");
            talk(Preface::new(ALL, me()), said.as_bytes()).1
        };
        for scheme in ["Basic ", "basic ", "BASIC   ", "bAsIc  "] {
            let header = format!("Proxy-Authorization: {scheme}bWU6cHc= \t\r\n");
            assert_eq!(http(&header), there("10.0.0.1:80"), "{scheme}");
        }
        assert_eq!(http(""), Step::Wait, "the connection may bear another request");
    }

    #[test]
    fn a_client_may_authenticate_on_the_same_connection_after_a_407() {
        let request = |headers: &str| format!("CONNECT 10.0.0.1:80 HTTP/1.1\r\n{headers}\r\n");
        let right = request("Proxy-Authorization: basic bWU6cHc=\r\n");
        let wrong = request("Proxy-Authorization: Basic bWU6cHg=\r\n");
        let talk = |said: &[&str]| {
            let (answers, step, _) = talk(Preface::new(ALL, me()), said.concat().as_bytes());
            (String::from_utf8(answers).unwrap(), step)
        };
        for first in [request(""), request("Authorization: Basic bWU6cHc=\r\n"), wrong.clone()] {
            let (answers, step) = talk(&[&first, &right]);
            assert_eq!(step, there("10.0.0.1:80"), "{first}");
            assert!(
                answers.starts_with("HTTP/1.1 407 ") && !answers.contains("close"),
                "{answers}"
            );
            assert!(answers.contains("\r\nContent-Length: 0\r\n"), "{answers}");
        }
        // The end of the connection is announced, even if the client has asked for it.
        let old = request("").replace("1.1", "1.0");
        let closing = request("Connection: x, Close\r\n");
        for (said, right) in [
            (&[&wrong, &wrong, &wrong, &right][..], Refusal::Denied),
            // A client that gives no password counts as unauthenticated, not as denied.
            (&[&old, &right], Refusal::Unauthenticated),
            (&[&closing, &right], Refusal::Unauthenticated),
        ] {
            let said: Vec<&str> = said.iter().map(|one| one.as_str()).collect();
            let Step::Refuse(words, why) = talk(&said).1 else { panic!("{said:?}") };
            assert_eq!(why, right, "{said:?}");
            let words = String::from_utf8(words).unwrap();
            assert!(
                words.contains("407") && words.contains("\r\nConnection: close\r\n"),
                "{words}"
            );
        }
        let kept = request("Proxy-Connection: Keep-Alive\r\n").replace("1.1", "1.0");
        assert_eq!(talk(&[&kept, &right]).1, there("10.0.0.1:80"));
    }

    #[test]
    fn extensions_of_a_proxy_header_are_dropped_and_never_held() {
        let source = "10.0.0.9:1".parse().unwrap();
        let destination: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let there = Step::Connect { to: destination.into(), source: Some(source) };
        let header = |extensions: usize| {
            let mut header = proxy::emit(&Addresses { source, destination });
            let length = u16::try_from(12 + extensions).unwrap();
            header[14..16].copy_from_slice(&length.to_be_bytes());
            [header, vec![4; extensions]].concat()
        };
        for extensions in [0, 1, 520, 4_000, 65_535 - 12] {
            let (mut preface, mut bytes) = (Preface::new(ALL, Secret::default()), Vec::new());
            let said = [&header(extensions)[..], b"data"].concat();
            let mut steps = said.chunks(1_000).map(|piece| {
                bytes.extend(piece);
                let step = preface.handle(&mut bytes);
                assert!(bytes.len() <= 64 || step != Step::Wait, "{} are held", bytes.len());
                step
            });
            assert_eq!(steps.find(|step| *step != Step::Wait), Some(there.clone()), "{extensions}");
            drop(steps);
            assert!(b"data".starts_with(&bytes[..]), "{extensions}");
        }
        let mut local = header(700);
        local[12] = 0x20;
        let (.., step, _) = talk(Preface::new(ALL, Secret::default()), &local);
        assert_eq!(step, Step::Refuse(Vec::new(), Refusal::HealthCheck));
    }

    #[test]
    fn errors_are_reported_in_the_clients_protocol() {
        let told = |said: &[u8]| match talk(Preface::new(ALL, Secret::default()), said) {
            (_, Step::Refuse(words, Refusal::Unclear(_)), _) => words,
            other => panic!("{said:?}: {other:?}"),
        };
        let socks = [
            (&[5, 2, 0, 1, 10, 0, 0, 1, 0, 80][..], 7),
            (&[5, 3, 0, 1, 10, 0, 0, 1, 0, 80], 7),
            (&[5, 1, 0, 9, 10, 0, 0, 1, 0, 80], 8),
            (&[5, 1, 0, 3, 0, 0, 80], 1),
        ];
        for (request, code) in socks {
            let words = told(&[&[5, 1, 0], request].concat());
            assert_eq!((&words[..2], words.len()), (&[5, code][..], 10), "{request:?}");
        }
        let http = [
            ("CONNECT 10.0.0.1 HTTP/1.1", "400"),
            ("CONNECT 10.0.0.1:99999 HTTP/1.1", "400"),
            ("CONNECT 10.0.0.1:80 HTTP/2.0", "505"),
            ("GET http://10.0.0.1/ HTTP/1.1", "405"),
        ];
        for (line, status) in http {
            let words = String::from_utf8(told(format!("{line}\r\n\r\n").as_bytes())).unwrap();
            assert!(words.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {words}");
        }
        assert!(told(b"PROXY TCP4").is_empty());
        let literal = [&[5, 1, 0, 5, 1, 0, 3, 7][..], b"fd00::1", &[0, 80]].concat();
        let literal = talk(Preface::new(ALL, Secret::default()), &literal).1;
        assert_eq!(literal, there("[fd00::1]:80"));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let none = Protocols::default();
        for said in [&b"\x05"[..], b"C", b"\r", b"GET / HTTP/1.1\r\n"] {
            let (.., step, _) = talk(Preface::new(none, Secret::default()), said);
            assert!(matches!(step, Step::Refuse(words, _) if words.is_empty()), "{said:?}");
        }
        let endless = [b"CONNECT a:1 HTTP/1.1\r\nx: ".to_vec(), vec![b'y'; LONGEST]].concat();
        let (_, step, _) = talk(Preface::new(ALL, me()), &endless);
        let Step::Refuse(words, Refusal::Unclear(_)) = step else { panic!("{step:?}") };
        let words = String::from_utf8(words).unwrap();
        assert!(words.starts_with("HTTP/1.1 431 "), "{words}");
        assert!(words.ends_with("\r\n\r\nthe head of a request may have 8192 bytes\n"), "{words}");
    }
}
