//! Head of a request (RFC 9112), as far as static files need it.

use super::path;

/// Maximum length of a head in bytes.
pub const MAX_HEAD: usize = 8192;

/// Headers whose values are kept.
const KEPT: [&str; 6] =
    ["range", "if-range", "if-none-match", "if-match", "if-modified-since", "if-unmodified-since"];
/// Other headers that are interpreted.
const HEEDED: [&str; 4] = ["connection", "content-length", "host", "transfer-encoding"];
/// Known methods that are not allowed (RFC 9110, 9.3; RFC 5789).
const NOT_ALLOWED: [&str; 7] = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
/// Maximum length of a query that is kept, in bytes: it must fit into a [`super::digest::Digest`].
const MAX_QUERY: usize = 256;

/// Returns whether a header is ignored, whatever its value.
pub(super) fn is_ignored(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !KEPT.contains(&&*name) && !HEEDED.contains(&&*name)
}

/// Method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Request for the complete response.
    Get,
    /// Request for only the head of the response.
    Head,
}

/// Reason why a request is answered with an error before any file is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RequestError {
    /// Invalid HTTP, or a request with a body.
    #[error("400 Bad Request")]
    Malformed,
    /// Known method other than GET and HEAD.
    #[error("405 Method Not Allowed")]
    Method,
    /// The head does not end within [`MAX_HEAD`] bytes, or [`super::Digest`] has no room for a part
    /// of it.
    #[error("431 Request Header Fields Too Large")]
    TooLong,
    /// Major version other than 1.
    #[error("505 HTTP Version Not Supported")]
    Version,
    /// Unknown method.
    #[error("501 Not Implemented")]
    Unknown,
}

/// State of the `Host` header while a head is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Host {
    /// The header is optional.
    #[default]
    Free,
    /// The header is required, and has not arrived yet.
    Wanted,
    /// The header has arrived, and must not be repeated.
    Given,
}

/// Request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// GET or HEAD.
    pub method: Method,
    /// Parts of the path below the directory, as raw bytes; none leads out of the directory.
    pub path: Vec<Vec<u8>>,
    /// True if the path ends with a slash: it denotes a directory.
    pub directory: bool,
    /// True if the connection continues after the response.
    pub keep_alive: bool,
    /// True if `Connection: close` was sent, which overrides `keep-alive` (RFC 9112, 9.3).
    pub(super) closes: bool,
    pub(super) host: Host,
    /// Query, kept if `path` has no final slash: if `path` names a directory, the redirect to
    /// `path/` repeats the query.
    pub(super) query: Option<String>,
    pub(super) range: Option<String>,
    pub(super) if_range: Option<String>,
    pub(super) if_none_match: Option<String>,
    pub(super) if_match: Option<String>,
    pub(super) if_modified_since: Option<String>,
    pub(super) if_unmodified_since: Option<String>,
}

impl Request {
    /// Parses the request at the front of `bytes`. Returns it with the length of its head; `None`
    /// if more bytes are needed. Errors: the error selects the response.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, RequestError> {
        let end = b"\r\n\r\n";
        let front = &bytes[..bytes.len().min(MAX_HEAD)];
        // Empty lines before the first line are ignored (RFC 9112, 2.2), but count towards the
        // limit.
        let empty = 2 * front.chunks_exact(2).take_while(|two| two == b"\r\n").count();
        let front = &front[empty..];
        let Some(length) = front.windows(end.len()).position(|window| window == end) else {
            return if bytes.len() >= MAX_HEAD { Err(RequestError::TooLong) } else { Ok(None) };
        };
        let head = std::str::from_utf8(&front[..length]).map_err(|_| RequestError::Malformed)?;
        let request = Request::of(head)?;
        Ok(Some((request, empty + length + end.len())))
    }

    fn of(head: &str) -> Result<Request, RequestError> {
        let mut lines = head.split("\r\n");
        let mut request = Request::begin(lines.next().ok_or(RequestError::Malformed)?)?;
        lines.try_for_each(|line| request.header(line))?;
        request.whole()
    }

    /// Completes the request at the end of its head.
    pub(super) fn whole(mut self) -> Result<Request, RequestError> {
        // `closes` and `host` are needed only while the head is read.
        self.closes = false;
        match std::mem::take(&mut self.host) {
            Host::Wanted => Err(RequestError::Malformed),
            Host::Free | Host::Given => Ok(self),
        }
    }

    /// Request without any of the optional headers.
    pub(super) fn plain(
        method: Method,
        path: Vec<Vec<u8>>,
        directory: bool,
        keep_alive: bool,
    ) -> Request {
        Request {
            method,
            path,
            directory,
            keep_alive,
            closes: false,
            host: Host::Free,
            query: None,
            range: None,
            if_range: None,
            if_none_match: None,
            if_match: None,
            if_modified_since: None,
            if_unmodified_since: None,
        }
    }

    /// Equivalent request line, for logs: the normalized, encoded path, and the query if kept.
    pub fn line(&self) -> String {
        let method = match self.method {
            Method::Get => "GET",
            Method::Head => "HEAD",
        };
        let path: Vec<_> = self.path.iter().map(|part| path::encode(part)).collect();
        let slash = if self.directory && !path.is_empty() { "/" } else { "" };
        let query = self.query.as_deref().map(path::encode_query);
        let query = query.map_or_else(String::new, |query| format!("?{query}"));
        format!("{method} /{}{slash}{query} HTTP/1.1", path.join("/"))
    }

    /// Parses the first line of a head.
    pub(super) fn begin(line: &str) -> Result<Request, RequestError> {
        let mut words = line.split(' ');
        let mut word =
            || words.next().filter(|word| !word.is_empty()).ok_or(RequestError::Malformed);
        let (method, target, version) = (word()?, word()?, word()?);
        if words.next().is_some() {
            return Err(RequestError::Malformed);
        }
        let is_first = is_http_1_0(version)?;
        let method = method_of(method)?;
        let parts = path::parts(target).ok_or(RequestError::Malformed)?;
        let (path, query) = path::split(target);
        let directory = path.ends_with('/') || path.ends_with("/.");
        let moves = !directory && !parts.is_empty();
        let query = query.filter(|query| moves && query.len() <= MAX_QUERY).map(str::to_owned);
        let host = if is_first { Host::Free } else { Host::Wanted };
        Ok(Request { host, query, ..Request::plain(method, parts, directory, !is_first) })
    }

    pub(super) fn header(&mut self, line: &str) -> Result<(), RequestError> {
        let (name, value) = line.split_once(':').ok_or(RequestError::Malformed)?;
        if name.is_empty() || name.contains([' ', '\t']) || value.contains(['\r', '\n', '\0']) {
            return Err(RequestError::Malformed);
        }
        let value = value.trim();
        let name = name.to_ascii_lowercase();
        if let Some(slot) = self.slot(&name) {
            *slot = Some(value.to_owned());
            return Ok(());
        }
        match name.as_str() {
            "connection" => {
                let said =
                    |word: &str| value.split(',').any(|w| w.trim().eq_ignore_ascii_case(word));
                self.closes |= said("close");
                self.keep_alive = !self.closes && (self.keep_alive || said("keep-alive"));
                Ok(())
            }
            // Two `Host` headers could name two hosts (RFC 9112, 3.2).
            "host" if self.host == Host::Given || !is_host(value) => Err(RequestError::Malformed),
            "host" => {
                self.host = Host::Given;
                Ok(())
            }
            // Bodies are not supported: a body would be parsed as the next request.
            "content-length" if value == "0" => Ok(()),
            "content-length" | "transfer-encoding" => Err(RequestError::Malformed),
            _ => Ok(()),
        }
    }

    /// Field for the value of the header `name`, which is in lower case; `None` if the value is not
    /// kept.
    fn slot(&mut self, name: &str) -> Option<&mut Option<String>> {
        let at = KEPT.iter().position(|known| *known == name)?;
        self.slots().into_iter().nth(at)
    }

    /// Fields of the kept values, in the order of [`KEPT`].
    pub(super) fn slots(&mut self) -> [&mut Option<String>; 6] {
        [
            &mut self.range,
            &mut self.if_range,
            &mut self.if_none_match,
            &mut self.if_match,
            &mut self.if_modified_since,
            &mut self.if_unmodified_since,
        ]
    }
}

/// Returns whether `value` is a valid host, with a port or without (RFC 3986, 3.2.2). An empty
/// value is valid. Names are not checked closely, as the files are the same for all hosts.
fn is_host(value: &str) -> bool {
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte);
    let of_literal = |byte: u8| of_name(byte) || byte == b':';
    let (host, port, of_host): (_, _, &dyn Fn(u8) -> bool) = match value.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((literal, port)) => (literal, port, &of_literal),
            None => return false,
        },
        None => {
            let (name, port) = value.split_at(value.find(':').unwrap_or(value.len()));
            (name, port, &of_name)
        }
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    host.bytes().all(of_host) && port
}

/// Returns whether a version is HTTP/1.0; later minor versions are answered as 1.1.
fn is_http_1_0(version: &str) -> Result<bool, RequestError> {
    match version.strip_prefix("HTTP/1.").map(str::as_bytes) {
        Some(b"0") => Ok(true),
        Some([b'1'..=b'9']) => Ok(false),
        _ if version.starts_with("HTTP/") => Err(RequestError::Version),
        _ => Err(RequestError::Malformed),
    }
}

fn method_of(word: &str) -> Result<Method, RequestError> {
    let of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match word {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        known if NOT_ALLOWED.contains(&known) => Err(RequestError::Method),
        other if other.bytes().all(of_token) => Err(RequestError::Unknown),
        _ => Err(RequestError::Malformed),
    }
}
