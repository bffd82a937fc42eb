//! What a client says before its flow begins: where it wants to go, in whichever of the protocols it
//! speaks and the hop understands.
//!
//! ```text
//!   bytes ──▶ Preface ──┬─▶ more bytes are needed, or something is to be said first
//!                       ├─▶ connect there; then the answer, and what came behind is the flow's
//!                       └─▶ no: the last words, and the end
//! ```

use std::net::SocketAddr;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::socks::{Credentials, Method};
use super::{Parsed, connect, proxy, socks};
use crate::flow::{Address, Failure};

/// Longest preface, bytes; an HTTP head is the longest.
pub const LONGEST: usize = connect::LONGEST;

/// What a hop understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Languages {
    /// A TCP option in the SYN. It is no preface: who has heard it asks for none.
    pub option: bool,
    /// PROXY protocol, version 2.
    pub proxy: bool,
    /// SOCKS5.
    pub socks: bool,
    /// HTTP CONNECT.
    pub connect: bool,
}

impl Languages {
    /// Whether there is one that a preface may be in.
    pub fn have_prefaces(&self) -> bool {
        self.proxy || self.socks || self.connect
    }
}

/// Who may use a hop: anybody, or those who know this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secret(pub Option<Credentials>);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for more bytes.
    Wait,
    /// Say this, and go on.
    Say(Vec<u8>),
    /// Connect there.
    Connect {
        /// Where to.
        to: Address,
        /// Who wants to, if a hop before this one has told.
        source: Option<SocketAddr>,
    },
    /// Say this, if anything, and end the connection.
    Refuse(Vec<u8>, Refusal),
}

/// Why nothing comes of what a client said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not understood.
    #[error("{0}")]
    Unclear(&'static str),
    /// It does not know the password.
    #[error("its password is wrong")]
    Denied,
    /// It wanted nothing but to see whether somebody is there.
    #[error("it is a health check")]
    HealthCheck,
}

/// A client's preface in the making.
#[derive(Clone, Debug)]
pub struct Preface {
    languages: Languages,
    secret: Secret,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    First,
    SocksPassword,
    SocksRequest,
    Done(Language),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Proxy,
    Socks,
    Connect,
}

impl Preface {
    /// Of a client that may speak one of `languages`.
    pub fn new(languages: Languages, secret: Secret) -> Preface {
        Preface { languages, secret, state: State::First }
    }

    /// Takes what it understands from the front of `bytes`. Call it again after [`Step::Say`], and
    /// when more bytes have come.
    pub fn handle(&mut self, bytes: &mut Vec<u8>) -> Step {
        let step = match (self.state, bytes.first()) {
            (_, None) => Step::Wait,
            (State::First, Some(5)) if self.languages.socks => self.greet(bytes),
            (State::First, Some(b'A'..=b'Z')) if self.languages.connect => self.connect(bytes),
            (State::First, Some(b'\r')) if self.languages.proxy => self.proxy(bytes),
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

    /// What the client is to be told once the connection is there, or is not.
    pub fn answer(&self, result: Result<(), Failure>) -> Vec<u8> {
        match self.state {
            State::Done(Language::Socks) => socks::reply(result).to_vec(),
            State::Done(Language::Connect) => connect::response(result),
            _ => Vec::new(),
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
            Ok(given) if self.knows(&given) => {
                self.say(socks::verdict(true).to_vec(), State::SocksRequest)
            }
            Ok(_) => Step::Refuse(socks::verdict(false).to_vec(), Refusal::Denied),
            Err(step) => step,
        }
    }

    fn request(&mut self, bytes: &mut Vec<u8>) -> Step {
        match take(bytes, socks::request) {
            Ok(to) => self.go(Language::Socks, to, None),
            Err(Step::Refuse(_, why)) => Step::Refuse(socks::objection(bytes).to_vec(), why),
            Err(step) => step,
        }
    }

    fn connect(&mut self, bytes: &mut Vec<u8>) -> Step {
        match take(bytes, connect::parse) {
            Ok(request) if self.may(request.authorization.as_deref()) => {
                self.go(Language::Connect, request.to, None)
            }
            Ok(_) => Step::Refuse(connect::PASSWORD_WANTED.to_vec(), Refusal::Denied),
            Err(Step::Refuse(_, why)) => Step::Refuse(connect::objection(bytes), why),
            Err(step) => step,
        }
    }

    fn proxy(&mut self, bytes: &mut Vec<u8>) -> Step {
        match take(bytes, proxy::parse) {
            // PROXY has no passwords: who may speak it is told by address.
            Ok(Some(addresses)) => {
                self.go(Language::Proxy, addresses.destination.into(), Some(addresses.source))
            }
            Ok(None) => Step::Refuse(Vec::new(), Refusal::HealthCheck),
            Err(step) => step,
        }
    }

    fn say(&mut self, words: Vec<u8>, after: State) -> Step {
        self.state = after;
        Step::Say(words)
    }

    fn go(&mut self, language: Language, to: Address, source: Option<SocketAddr>) -> Step {
        self.state = State::Done(language);
        Step::Connect { to, source }
    }

    fn knows(&self, given: &Credentials) -> bool {
        self.secret.0.as_ref().is_none_or(|right| {
            same(&right.name, &given.name) & same(&right.password, &given.password)
        })
    }

    fn may(&self, authorization: Option<&[u8]>) -> bool {
        let Some(right) = &self.secret.0 else { return true };
        let pair = [&right.name[..], b":", &right.password].concat();
        let right = format!("Basic {}", BASE64_STANDARD.encode(pair));
        authorization.is_some_and(|given| same(right.as_bytes(), given))
    }
}

/// Takes a message from the front of `bytes`; otherwise what is to be done without one.
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

/// Whether two secrets are the same, in a time that does not tell where they differ.
fn same(right: &[u8], given: &[u8]) -> bool {
    let differ = right.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
    differ == 0 && right.len() == given.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Languages = Languages { option: true, proxy: true, socks: true, connect: true };

    fn me() -> Secret {
        Secret(Some(Credentials { name: b"me".to_vec(), password: b"pw".to_vec() }))
    }

    /// What is said, byte by byte, and how it ends.
    fn talk(mut preface: Preface, said: &[u8]) -> (Vec<u8>, Step, Vec<u8>) {
        let (mut bytes, mut answers) = (Vec::new(), Vec::new());
        for &byte in said {
            bytes.push(byte);
            loop {
                match preface.handle(&mut bytes) {
                    Step::Wait => break,
                    Step::Say(words) => answers.extend(words),
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
        let header = proxy::emit(&proxy::Addresses { source, destination });
        let (_, step, answer) = talk(Preface::new(ALL, Secret::default()), &header);
        assert_eq!(step, Step::Connect { to: destination.into(), source: Some(source) });
        assert!(answer.is_empty());
    }

    #[test]
    fn passwords_are_asked_for_and_checked() {
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
        assert_eq!(http("Proxy-Authorization: Basic bWU6cHc=\r\n"), there("10.0.0.1:80"));
        assert!(matches!(http(""), Step::Refuse(words, _) if words.starts_with(b"HTTP/1.1 407")));
    }

    #[test]
    fn what_is_wrong_is_told_in_the_clients_language() {
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
        let none = Languages::default();
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
