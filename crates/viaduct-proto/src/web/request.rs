//! The head of a request (RFC 9112), as far as static files need it.

use super::path;

/// Bytes of a head, at most.
pub const MAX_HEAD: usize = 8192;

/// Headers whose values are kept.
const KEPT: [&str; 6] =
    ["range", "if-range", "if-none-match", "if-match", "if-modified-since", "if-unmodified-since"];
/// Headers that mean something, beside those.
const HEEDED: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

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
    /// Neither GET nor HEAD.
    #[error("405 Method Not Allowed")]
    Method,
    /// Its head does not end within [`MAX_HEAD`] bytes.
    #[error("431 Request Header Fields Too Large")]
    TooLong,
    /// Another major version than 1.
    #[error("505 HTTP Version Not Supported")]
    Version,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// GET or HEAD.
    pub method: Method,
    /// The path below the directory, part by part; none of them leads out of it.
    pub path: Vec<String>,
    /// Whether the path ends with a slash: it means a directory.
    pub directory: bool,
    /// Whether the connection goes on afterwards.
    pub keep_alive: bool,
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
        let Some(length) = front.windows(end.len()).position(|window| window == end) else {
            return if bytes.len() >= MAX_HEAD { Err(Wrong::TooLong) } else { Ok(None) };
        };
        let head = std::str::from_utf8(&front[..length]).map_err(|_| Wrong::Malformed)?;
        let request = Request::of(head)?;
        Ok(Some((request, length + end.len())))
    }

    fn of(head: &str) -> Result<Request, Wrong> {
        let mut lines = head.split("\r\n");
        let mut request = Request::begin(lines.next().ok_or(Wrong::Malformed)?)?;
        lines.try_for_each(|line| request.header(line))?;
        Ok(request)
    }

    /// One without the headers that say more.
    pub(super) fn plain(
        method: Method,
        path: Vec<String>,
        directory: bool,
        keep_alive: bool,
    ) -> Request {
        Request {
            method,
            path,
            directory,
            keep_alive,
            range: None,
            if_range: None,
            if_none_match: None,
            if_match: None,
            if_modified_since: None,
            if_unmodified_since: None,
        }
    }

    /// From the first line of a head.
    pub(super) fn begin(line: &str) -> Result<Request, Wrong> {
        let mut words = line.split(' ');
        let mut word = || words.next().filter(|word| !word.is_empty()).ok_or(Wrong::Malformed);
        let (method, target, version) = (word()?, word()?, word()?);
        if words.next().is_some() {
            return Err(Wrong::Malformed);
        }
        let keep_alive = match version {
            "HTTP/1.1" => true,
            "HTTP/1.0" => false,
            other if other.starts_with("HTTP/") => return Err(Wrong::Version),
            _ => return Err(Wrong::Malformed),
        };
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            _ => return Err(Wrong::Method),
        };
        let path = path::parts(target).ok_or(Wrong::Malformed)?;
        let directory = target.split(['?', '#']).next().is_some_and(|path| path.ends_with('/'));
        let directory = directory || target.ends_with("/.");
        Ok(Request::plain(method, path, directory, keep_alive))
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
                self.keep_alive = !said("close") && (self.keep_alive || said("keep-alive"));
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
