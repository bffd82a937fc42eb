//! The head of a request (RFC 9112), as far as static files need it.

use super::path;

/// Bytes of a head, at most.
pub const MAX_HEAD: usize = 8192;

/// Headers whose values are kept.
const KEPT: [&str; 6] =
    ["range", "if-range", "if-none-match", "if-match", "if-modified-since", "if-unmodified-since"];
/// Headers that mean something, beside those.
const HEEDED: [&str; 4] = ["connection", "content-length", "host", "transfer-encoding"];
/// Methods that are known, and not allowed (RFC 9110, 9.3; RFC 5789).
const NOT_ALLOWED: [&str; 7] = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
/// Longest query that is kept, in bytes: a digest has to have room for it.
const MAX_QUERY: usize = 256;

/// Whether a header means nothing here, whatever its value.
pub(super) fn is_ignored(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !KEPT.contains(&&*name) && !HEEDED.contains(&&*name)
}

/// What is asked to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The whole response.
    Get,
    /// Its head alone.
    Head,
}

/// Why a request is answered by an error at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Wrong {
    /// No HTTP.
    #[error("400 Bad Request")]
    Malformed,
    /// A method of HTTP's, but neither GET nor HEAD.
    #[error("405 Method Not Allowed")]
    Method,
    /// Its head does not end within [`MAX_HEAD`] bytes.
    #[error("431 Request Header Fields Too Large")]
    TooLong,
    /// Another major version than 1.
    #[error("505 HTTP Version Not Supported")]
    Version,
    /// No method that anybody here knows.
    #[error("501 Not Implemented")]
    Unknown,
}

/// What is to be said of the host, and was, as far as a head was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Host {
    /// It may be said.
    #[default]
    Free,
    /// It must be said yet.
    Wanted,
    /// It was said, and may not be again.
    Given,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// GET or HEAD.
    pub method: Method,
    /// The path below the directory, part by part, in bytes as file systems have them; none of them leads out of it.
    pub path: Vec<Vec<u8>>,
    /// Whether the path ends with a slash: it means a directory.
    pub directory: bool,
    /// Whether the connection goes on afterwards.
    pub keep_alive: bool,
    /// Whether `Connection: close` was said, which wins over `keep-alive` (RFC 9112, 9.3).
    pub(super) closes: bool,
    pub(super) host: Host,
    /// What a redirect to the directory of this name has to say again.
    pub(super) query: Option<String>,
    pub(super) range: Option<String>,
    pub(super) if_range: Option<String>,
    pub(super) if_none_match: Option<String>,
    pub(super) if_match: Option<String>,
    pub(super) if_modified_since: Option<String>,
    pub(super) if_unmodified_since: Option<String>,
}

impl Request {
    /// The request at the front of `bytes`, and how many bytes its head takes; `None` if more are needed.
    ///
    /// # Errors
    /// What it is to be answered by.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Wrong> {
        let end = b"\r\n\r\n";
        let front = &bytes[..bytes.len().min(MAX_HEAD)];
        // Empty lines before the first are nothing (RFC 9112, 2.2), but count.
        let empty = 2 * front.chunks_exact(2).take_while(|two| two == b"\r\n").count();
        let front = &front[empty..];
        let Some(length) = front.windows(end.len()).position(|window| window == end) else {
            return if bytes.len() >= MAX_HEAD { Err(Wrong::TooLong) } else { Ok(None) };
        };
        let head = std::str::from_utf8(&front[..length]).map_err(|_| Wrong::Malformed)?;
        let request = Request::of(head)?;
        Ok(Some((request, empty + length + end.len())))
    }

    fn of(head: &str) -> Result<Request, Wrong> {
        let mut lines = head.split("\r\n");
        let mut request = Request::begin(lines.next().ok_or(Wrong::Malformed)?)?;
        lines.try_for_each(|line| request.header(line))?;
        request.whole()
    }

    /// At the end of its head.
    pub(super) fn whole(mut self) -> Result<Request, Wrong> {
        // What was said for the rest of the head alone.
        self.closes = false;
        match std::mem::take(&mut self.host) {
            Host::Wanted => Err(Wrong::Malformed),
            Host::Free | Host::Given => Ok(self),
        }
    }

    /// One without the headers that say more.
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

    /// A request line of the same meaning, for logs: path normalized and encoded, query as far as it is kept.
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

    /// From the first line of a head.
    pub(super) fn begin(line: &str) -> Result<Request, Wrong> {
        let mut words = line.split(' ');
        let mut word = || words.next().filter(|word| !word.is_empty()).ok_or(Wrong::Malformed);
        let (method, target, version) = (word()?, word()?, word()?);
        if words.next().is_some() {
            return Err(Wrong::Malformed);
        }
        let is_first = is_first(version)?;
        let method = method_of(method)?;
        let parts = path::parts(target).ok_or(Wrong::Malformed)?;
        let (path, query) = path::split(target);
        let directory = path.ends_with('/') || path.ends_with("/.");
        let moves = !directory && !parts.is_empty();
        let query = query.filter(|query| moves && query.len() <= MAX_QUERY).map(str::to_owned);
        let host = if is_first { Host::Free } else { Host::Wanted };
        Ok(Request { host, query, ..Request::plain(method, parts, directory, !is_first) })
    }

    /// Takes a header in.
    pub(super) fn header(&mut self, line: &str) -> Result<(), Wrong> {
        let (name, value) = line.split_once(':').ok_or(Wrong::Malformed)?;
        if name.is_empty() || name.contains([' ', '\t']) || value.contains(['\r', '\n', '\0']) {
            return Err(Wrong::Malformed);
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
            // Two may name two places (RFC 9112, 3.2).
            "host" if self.host == Host::Given || !is_host(value) => Err(Wrong::Malformed),
            "host" => {
                self.host = Host::Given;
                Ok(())
            }
            // A body would be taken for the next request.
            "content-length" if value == "0" => Ok(()),
            "content-length" | "transfer-encoding" => Err(Wrong::Malformed),
            _ => Ok(()),
        }
    }

    /// Where the value of the header `name` is kept, in small letters, if it is.
    fn slot(&mut self, name: &str) -> Option<&mut Option<String>> {
        let at = KEPT.iter().position(|known| *known == name)?;
        self.slots().into_iter().nth(at)
    }

    /// The values that are kept, in the order of [`KEPT`].
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

/// Whether a host may be so called, with a port or without (RFC 3986, 3.2.2): nothing may be, too. A name is not looked
/// at closely, as files are the same for all.
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

/// Whether a version is HTTP/1.0. Later ones of that major version are answered as 1.1 (RFC 9110, 2.5).
fn is_first(version: &str) -> Result<bool, Wrong> {
    match version.strip_prefix("HTTP/1.").map(str::as_bytes) {
        Some(b"0") => Ok(true),
        Some([b'1'..=b'9']) => Ok(false),
        _ if version.starts_with("HTTP/") => Err(Wrong::Version),
        _ => Err(Wrong::Malformed),
    }
}

fn method_of(word: &str) -> Result<Method, Wrong> {
    let of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match word {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        known if NOT_ALLOWED.contains(&known) => Err(Wrong::Method),
        other if other.bytes().all(of_token) => Err(Wrong::Unknown),
        _ => Err(Wrong::Malformed),
    }
}
