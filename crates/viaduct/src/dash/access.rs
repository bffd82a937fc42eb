//! Conditions under which a request is answered: its `Host`, its method, and the token.
//!
//! A web site can let its own name point to a loopback address (DNS rebinding). The site's scripts
//! can then read from a service that listens there. The scripts' requests carry the site's name in
//! `Host`.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use ring::digest::{Digest, SHA256, digest};

/// Names under which a page at a loopback address is known.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Minimum length of a token in bytes: a shorter token might be guessed.
const MIN_TOKEN: usize = 16;

/// Password of the page, as its hash: hashes need not be compared in constant time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token(Digest);

impl Token {
    /// Creates a token from the text of its file.
    ///
    /// # Errors
    /// The token is too short.
    pub(super) fn new(text: &str) -> Result<Token, String> {
        let token = text.trim();
        if token.len() < MIN_TOKEN {
            return Err(format!(
                "a token of at least {MIN_TOKEN} characters is expected, such as that of \
                 `openssl rand -base64 24`"
            ));
        }
        Ok(Token(digest(&SHA256, token.as_bytes())))
    }

    /// Returns whether `headers` carry the token, as a password or as a bearer token.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, credentials)) = value.and_then(|value| value.split_once(' ')) else {
            return false;
        };
        let given = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => credentials.trim().as_bytes().to_vec(),
            "basic" => {
                let pair = STANDARD.decode(credentials.trim()).unwrap_or_default();
                let colon = pair.iter().position(|&byte| byte == b':');
                colon.map(|colon| pair[colon + 1..].to_vec()).unwrap_or_default()
            }
            _ => return false,
        };
        digest(&SHA256, &given).as_ref() == self.0.as_ref()
    }
}

/// Conditions of access.
#[derive(Clone, Debug)]
pub(super) struct Access {
    hosts: Vec<String>,
    token: Option<Token>,
}

impl Access {
    /// Creates the conditions: names in addition to the local ones, and the token, if one is
    /// needed.
    pub(super) fn new(hosts: &[String], token: Option<Token>) -> Access {
        let local = LOCAL_NAMES.into_iter().map(str::to_owned);
        Access { hosts: local.chain(hosts.iter().cloned()).collect(), token }
    }

    /// Checks a request that arrived at the address `at`.
    ///
    /// # Errors
    /// The request is refused, with this status and text of the response.
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        at: IpAddr,
    ) -> Result<(), (StatusCode, &'static str)> {
        if !self.names_us(request, at) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this name is not one of the dashboard's: use its address, localhost, or --host\n",
            ));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n"));
        }
        match &self.token {
            Some(token) if !token.is_in(request.headers()) => {
                Err((StatusCode::UNAUTHORIZED, "the token is needed, as the password\n"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the request has exactly one `Host`, and whether both `Host` and the URI's
    /// authority, if any, are a name of this page. The port is not compared: it differs if a
    /// port is forwarded.
    fn names_us<B>(&self, request: &Request<B>, at: IpAddr) -> bool {
        let mut values = request.headers().get_all(HOST).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let in_uri = request.uri().authority().map(|authority| authority.as_str());
        let is_ours = |authority: &str| {
            name_of(authority).is_some_and(|name| {
                self.hosts.contains(&name) || name == bracketed(at.to_canonical())
            })
        };
        HeaderValue::to_str(value).is_ok_and(is_ours) && in_uri.is_none_or(is_ours)
    }
}

/// Name or address of `authority` in lower case, without its port. `None` if it has neither form.
fn name_of(authority: &str) -> Option<String> {
    let end = match authority.starts_with('[') {
        true => authority.find(']')? + 1,
        false => authority.find(':').unwrap_or(authority.len()),
    };
    let (name, port) = authority.split_at(end);
    let is_port = |port: &str| {
        port.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    (port.is_empty() || is_port(port)).then(|| name.to_ascii_lowercase())
}

/// Form of an address in a URI.
fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(access: &Access, request: hyper::http::request::Builder) -> Option<u16> {
        let request = request.body(()).unwrap();
        access.check(&request, [192, 0, 2, 1].into()).err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn foreign_names_are_refused_and_ports_are_free() {
        let access = Access::new(&["rome.example".to_owned()], None);
        let get = |host: &str| checked(&access, Request::get("/").header(HOST, host));
        for host in ["localhost:7480", "LOCALHOST", "[::1]:9", "192.0.2.1", "rome.example:9"] {
            assert_eq!(get(host), None, "{host}");
        }
        let foreign = ["evil.example", "localhost.evil.example:7480", "", "[::2]", "[::1", "a:b:c"];
        for host in foreign.into_iter().chain(["localhost:80x", "127.0.0.1@evil", "localhost."]) {
            assert_eq!(get(host), Some(421), "{host}");
        }
        assert_eq!(checked(&access, Request::get("/")), Some(421));
        let two = Request::get("/").header(HOST, "localhost").header(HOST, "evil.example");
        assert_eq!(checked(&access, two), Some(421));
        let absolute = Request::get("http://evil.example/").header(HOST, "localhost");
        assert_eq!(checked(&access, absolute), Some(421));
        let post = Request::post("/").header(HOST, "localhost");
        assert_eq!(checked(&access, post), Some(405));
    }

    #[test]
    fn the_token_is_a_password_or_a_bearer_token() {
        assert!(Token::new("short\n").unwrap_err().contains("at least 16"));
        let access = Access::new(&[], Some(Token::new("0123456789abcdef\n").unwrap()));
        let get = |value: &str| {
            let request = Request::get("/").header(HOST, "localhost");
            checked(&access, request.header(AUTHORIZATION, value))
        };
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        assert_eq!(get(&basic("anyone:0123456789abcdef")), None);
        assert_eq!(get("Bearer 0123456789abcdef"), None);
        for value in [basic("a:0123456789abcdeg"), basic("0123456789abcdef"), "Basic !".to_owned()]
        {
            assert_eq!(get(&value), Some(401), "{value}");
        }
        assert_eq!(checked(&access, Request::get("/").header(HOST, "localhost")), Some(401));
    }
}
