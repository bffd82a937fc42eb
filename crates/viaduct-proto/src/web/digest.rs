//! Digest of a partially read head, in few bytes: the state that a stateless server gives its
//! client until the rest of the head arrives (Trickles, section 4.2).
//!
//! Complete lines are consumed, and their meaning is kept. Ignored headers are consumed even before
//! they are complete, so they may have any length. Any other incomplete line is not consumed: the
//! client sends it again, with the bytes that follow.
//!
//! ```text
//!   bytes of the head so far 2 (highest bit: Connection: close was sent) | flags 1:
//!                                         1 a line is being ignored, 2 first line was read,
//!                                         4 HEAD, 8 directory, 16 keep alive,
//!                                         32 Host is required, 64 Host was sent, 128 a query
//!   path: number of parts | each with its length before it
//!   6 kept headers: each with its length plus 1 before it, or 0 if absent
//!   query, if there is one, with its length before it
//! ```

use super::request::{Host, MAX_HEAD, Method, Request, RequestError, is_ignored};
use crate::trickles::bytes::{Reader, put_counted, put_varint};

/// Flag in the number of bytes, which is at most [`MAX_HEAD`].
const CLOSES: u16 = 1 << 15;
const IGNORING: u8 = 1;
const BEGUN: u8 = 2;
const HEAD: u8 = 4;
const DIRECTORY: u8 = 8;
const KEEP_ALIVE: u8 = 16;
const HOST_WANTED: u8 = 32;
const HOST_GIVEN: u8 = 64;
const QUERY: u8 = 128;

/// Maximum length of a line in bytes: a line must arrive in one packet. Ignored lines may
/// be longer.
const MAX_LINE: usize = 600;
/// Maximum length of a digest in bytes.
pub(super) const MAX_DIGEST: usize = 600;

/// State of a head that has been read in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    request: Option<Request>,
    read: u16,
    ignoring: bool,
}

impl Digest {
    /// Reads the next bytes of the head. Returns the number of bytes consumed, and the request if
    /// the head ends there. Errors: the error selects the response. A line of more than 600 bytes
    /// is too long, and so is a head whose kept values do not fit a continuation.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), RequestError> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let Some(length) = rest.windows(2).position(|two| two == b"\r\n") else {
                at += self.read_part(rest)?;
                self.count(at)?;
                return if self.emit().len() > MAX_DIGEST {
                    Err(RequestError::TooLong)
                } else {
                    Ok((at, None))
                };
            };
            at += length + 2;
            if std::mem::take(&mut self.ignoring) {
                continue;
            }
            let line = std::str::from_utf8(&rest[..length]).map_err(|_| RequestError::Malformed)?;
            match &mut self.request {
                // Empty lines before the first line are ignored (RFC 9112, 2.2), but count towards
                // the limit.
                None if line.is_empty() => {}
                None => self.request = Some(Request::begin(line)?),
                Some(_) if line.is_empty() => {
                    self.count(at)?;
                    return Ok((at, self.request.take().map(Request::whole).transpose()?));
                }
                Some(request) => request.header(line)?,
            }
        }
    }

    /// Reads the beginning of a line whose end has not arrived. Returns the number of bytes
    /// consumed.
    fn read_part(&mut self, part: &[u8]) -> Result<usize, RequestError> {
        let name = part.iter().position(|&byte| byte == b':').map(|colon| &part[..colon]);
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let fresh = self.request.is_some() && name.is_some_and(is_ignored);
        if self.ignoring || fresh {
            self.ignoring = true;
            return Ok(part.len() - usize::from(part.ends_with(b"\r")));
        }
        if part.len() > MAX_LINE { Err(RequestError::TooLong) } else { Ok(0) }
    }

    fn count(&mut self, bytes: usize) -> Result<(), RequestError> {
        let read = usize::from(self.read) + bytes;
        self.read = u16::try_from(read).map_err(|_| RequestError::TooLong)?;
        if read > MAX_HEAD { Err(RequestError::TooLong) } else { Ok(()) }
    }

    /// Encodes the digest.
    pub fn emit(&self) -> Vec<u8> {
        let closes = self.request.as_ref().is_some_and(|request| request.closes);
        let mut out = (self.read | if closes { CLOSES } else { 0 }).to_be_bytes().to_vec();
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let ignoring = flag(self.ignoring, IGNORING);
        let Some(mut request) = self.request.clone() else {
            out.push(ignoring);
            return out;
        };
        let kind = flag(request.method == Method::Head, HEAD)
            | flag(request.directory, DIRECTORY)
            | flag(request.keep_alive, KEEP_ALIVE)
            | flag(request.host == Host::Wanted, HOST_WANTED)
            | flag(request.host == Host::Given, HOST_GIVEN)
            | flag(request.query.is_some(), QUERY);
        out.push(ignoring | BEGUN | kind);
        put_varint(&mut out, request.path.len() as u64);
        request.path.iter().for_each(|part| put_counted(&mut out, part));
        for value in request.slots() {
            let value = value.as_ref();
            put_varint(&mut out, value.map_or(0, |value| value.len() as u64 + 1));
            value.into_iter().for_each(|value| out.extend_from_slice(value.as_bytes()));
        }
        request.query.iter().for_each(|query| put_counted(&mut out, query.as_bytes()));
        out
    }

    /// Decodes a digest; `None` if `bytes` are not one.
    pub fn parse(bytes: &[u8]) -> Option<Digest> {
        let mut reader = Reader(bytes);
        let (read, flags) = (reader.u16()?, reader.u8()?);
        let (read, closes) = (read & !CLOSES, read & CLOSES != 0);
        let ignoring = flags & IGNORING != 0;
        let mut request =
            if flags & BEGUN != 0 { Some(request(&mut reader, flags)?) } else { None };
        request.iter_mut().for_each(|request| request.closes = closes);
        if closes && request.is_none() {
            return None;
        }
        reader.0.is_empty().then_some(Digest { request, read, ignoring })
    }

    pub(super) fn of(request: Request) -> Digest {
        Digest { request: Some(request), read: 0, ignoring: false }
    }

    pub(super) fn into_request(self) -> Option<Request> {
        self.request
    }
}

fn request(reader: &mut Reader, flags: u8) -> Option<Request> {
    let parts = reader.varint().filter(|&parts| parts <= MAX_DIGEST as u64)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let path = (0..parts).map(|_| Some(reader.counted()?.to_vec())).collect::<Option<Vec<_>>>()?;
    // Only paths that a request line can have are valid.
    let odd = |part: &Vec<u8>| {
        let bad = part.iter().any(|byte| b"/\0".contains(byte));
        part.is_empty() || part == b"." || part == b".." || bad
    };
    if path.iter().any(odd) {
        return None;
    }
    let method = if flags & HEAD != 0 { Method::Head } else { Method::Get };
    let (directory, keep_alive) = (flags & DIRECTORY != 0, flags & KEEP_ALIVE != 0);
    let mut request = Request::plain(method, path, directory, keep_alive);
    request.host = match flags & (HOST_WANTED | HOST_GIVEN) {
        0 => Host::Free,
        HOST_WANTED => Host::Wanted,
        _ => Host::Given,
    };
    for value in request.slots() {
        let length = reader.varint()?;
        if let Some(length) = length.checked_sub(1) {
            *value = Some(text(reader.take(usize::try_from(length).ok()?)?)?);
        }
    }
    if flags & QUERY != 0 {
        request.query = Some(text(reader.counted()?)?);
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const HEAD_TEXT: &str = "\r\nGET /a/b%20c%e9?q=1 HTTP/1.1\r\nHost: h\r\nRange: \
        bytes=5-9\r\nCookie: LONG\r\n\
        If-None-Match: \"x\"\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n";

    #[test]
    fn a_head_in_pieces_is_parsed_like_the_whole_head() {
        let text = HEAD_TEXT.replace("LONG", &"c=1; ".repeat(900));
        let (whole, length) = Request::parse(text.as_bytes()).unwrap().unwrap();
        assert!(!whole.keep_alive, "Connection: close holds, whatever follows");
        let bytes = [text.as_bytes(), b"GET /next"].concat();
        let mut rng = Rng::from_seed(1);
        for _ in 0..300 {
            let (mut state, mut at, mut most) = (Digest::default().emit(), 0, 1);
            let request = loop {
                // Bytes that were not consumed are sent again, with more.
                most = (most + rng.below(50) as usize).min(bytes.len() - at);
                let mut digest = Digest::parse(&state).unwrap();
                let (consumed, request) = digest.read(&bytes[at..at + most]).unwrap();
                at += consumed;
                most -= consumed;
                assert!(digest.emit().len() < 100);
                state = digest.emit();
                if let Some(request) = request {
                    break request;
                }
            };
            assert_eq!((request, at), (whole.clone(), length));
        }
    }

    #[test]
    fn invalid_requests_give_the_same_error_in_pieces() {
        let read = |text: &str| Digest::default().read(text.as_bytes());
        assert_eq!(read("DELETE / HTTP/1.1\r\n"), Err(RequestError::Method));
        assert_eq!(read("BREW / HTTP/1.1\r\n"), Err(RequestError::Unknown));
        for hosts in ["", "Host: a\r\nHost: a\r\n"] {
            for step in [1, 30, 100] {
                let text = format!("GET / HTTP/1.1\r\n{hosts}\r\n");
                let (mut digest, mut at, mut to) = (Digest::default(), 0, 0);
                let wrong = loop {
                    to = (to + step).min(text.len());
                    let read = digest.read(&text.as_bytes()[at..to]);
                    digest = Digest::parse(&digest.emit()).unwrap();
                    let Ok((taken, None)) = read else { break read };
                    at += taken;
                };
                assert_eq!(wrong, Err(RequestError::Malformed), "{hosts} {step}");
            }
        }
        assert_eq!(read("GET / HTTP/2.0\r\n"), Err(RequestError::Version));
        assert_eq!(read("GET /../x HTTP/1.1\r\n"), Err(RequestError::Malformed));
        assert_eq!(read("GET / HTTP/1.1\r\nContent-Length: 5\r\n"), Err(RequestError::Malformed));
        assert_eq!(
            read(&format!("GET /{} HTTP/1.1", "x".repeat(MAX_LINE))),
            Err(RequestError::TooLong)
        );
        let kept = format!("GET /{} HTTP/1.1\r\nRange: {}\r\n", "x".repeat(400), "r".repeat(300));
        assert_eq!(read(&kept), Err(RequestError::TooLong));
        let mut digest = Digest { read: 8_000, ..Digest::default() };
        assert_eq!(
            digest.read(format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(500)).as_bytes()),
            Err(RequestError::TooLong)
        );
    }

    #[test]
    fn other_bytes_are_not_a_digest() {
        let mut digest = Digest::default();
        digest.read(&HEAD_TEXT.as_bytes()[..60]).unwrap();
        let bytes = digest.emit();
        assert_eq!(Digest::parse(&bytes), Some(digest));
        assert!((0..bytes.len()).all(|len| Digest::parse(&bytes[..len]).is_none()));
    }
}
