//! Responses.

use std::fmt::Write as _;
use std::ops::Range;

use bytes::Bytes;

use super::range::{ByteRange, parse_range};
use super::request::{Method, Request, RequestError};
use super::{Found, Listing, date, mime, path};

/// Description of a response, from which any of its bytes can be generated again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Status code.
    pub status: u16,
    /// Status line, headers, and the empty line after them.
    pub head: Vec<u8>,
    /// Body of the response.
    pub body: Body,
    /// True if the connection continues after the response.
    pub keep_alive: bool,
}

/// Body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Literal bytes; none for HEAD.
    Bytes(Vec<u8>),
    /// Page of a directory.
    Page(Listing),
    /// Range of the file.
    File(Range<u64>),
}

/// Part of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Literal bytes. Those of a page are shared, not copied.
    Bytes(Bytes),
    /// Range of the file.
    File(Range<u64>),
}

impl Plan {
    /// Length of the complete response in bytes.
    pub fn len(&self) -> u64 {
        self.head.len() as u64
            + match &self.body {
                Body::Bytes(bytes) => bytes.len() as u64,
                Body::Page(listing) => listing.page().len() as u64,
                Body::File(range) => range.end - range.start,
            }
    }

    /// Always false, as there is a head.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pieces of the head and of the body that are within `range`.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let head = self.head.len() as u64;
        let of_head = cut(&range, 0..head);
        let of_body = cut(&range, head..self.len());
        let copy = |bytes: &[u8], at| Piece::Bytes(Bytes::copy_from_slice(&bytes[of(at)]));
        let first = of_head.map(|at| copy(&self.head, at));
        let second = of_body.map(|at| {
            let at = at.start - head..at.end - head;
            match &self.body {
                Body::Bytes(bytes) => copy(bytes, at),
                Body::Page(listing) => Piece::Bytes(listing.page().slice(of(at))),
                Body::File(range) => Piece::File(range.start + at.start..range.start + at.end),
            }
        });
        first.into_iter().chain(second)
    }

    /// Response to bytes that are not a valid request.
    pub fn refuse(why: RequestError) -> Plan {
        let mut answer = Answer::new(why.to_string(), false);
        if why == RequestError::Method {
            answer.header("Allow", "GET, HEAD");
        }
        answer.text(Method::Get)
    }
}

/// Response to `request`, where `found` is the object at its path.
pub fn plan(request: &Request, found: &Found) -> Plan {
    let answer = |status: &str| Answer::new(status.to_owned(), request.keep_alive);
    match found {
        Found::Nothing => answer("404 Not Found").text(request.method),
        Found::Forbidden => answer("403 Forbidden").text(request.method),
        Found::Unavailable => answer("503 Service Unavailable").text(request.method),
        Found::Directory(_) if !request.directory && !request.path.is_empty() => {
            let mut moved = answer("301 Moved Permanently");
            let encoded: Vec<_> = request.path.iter().map(|part| path::encode(part)).collect();
            let query = request.query.as_deref().map(path::encode_query);
            let query = query.map_or_else(String::new, |query| format!("?{query}"));
            moved.header("Location", &format!("/{}/{query}", encoded.join("/")));
            moved.text(request.method)
        }
        Found::Directory(listing) => {
            let mut answer = answer("200 OK");
            answer.header("Content-Type", "text/html; charset=utf-8");
            answer.page(request.method, listing)
        }
        Found::File { size, modified, .. } => file(request, found, *size, *modified),
    }
}

fn file(request: &Request, found: &Found, size: u64, modified: u64) -> Plan {
    let tag = found.tag().unwrap_or_default();
    let changed = date::emit(modified);
    let validators = |mut answer: Answer| {
        answer.header("ETag", &tag);
        answer.header("Last-Modified", &changed);
        answer
    };
    let status = |text: &str| validators(Answer::new(text.to_owned(), request.keep_alive));
    if !may(request, &tag, modified) {
        return status("412 Precondition Failed").text(request.method);
    }
    if is_known(request, &tag, modified) {
        return status("304 Not Modified").nothing();
    }
    let ranged = request.method == Method::Get && same_file(request, &tag, &changed);
    let range = if ranged { parse_range(request.range.as_deref(), size) } else { ByteRange::Whole };
    let (mut answer, part) = match range {
        ByteRange::Whole => (status("200 OK"), 0..size),
        ByteRange::Part(part) => {
            let mut answer = status("206 Partial Content");
            let (first, last) = (part.start, part.end - 1);
            answer.header("Content-Range", &format!("bytes {first}-{last}/{size}"));
            (answer, part)
        }
        ByteRange::Unsatisfiable => {
            let mut answer = status("416 Range Not Satisfiable");
            answer.header("Content-Range", &format!("bytes */{size}"));
            return answer.text(request.method);
        }
    };
    answer.header("Accept-Ranges", "bytes");
    // The file that is served for a directory is its index.
    let name = request.path.last().filter(|_| !request.directory);
    answer.header("Content-Type", mime::of(name.map_or(b"index.html", Vec::as_slice)));
    answer.file(request.method, part)
}

/// Returns whether the preconditions allow sending this file (RFC 9110, 13.2.2: steps 1, 2).
fn may(request: &Request, tag: &str, modified: u64) -> bool {
    match (&request.if_match, &request.if_unmodified_since) {
        (Some(wanted), _) => lists(wanted, tag, false),
        (None, Some(since)) => date::parse(since).is_none_or(|since| modified <= since),
        (None, None) => true,
    }
}

/// Returns whether the client already has this file (steps 3 and 4).
fn is_known(request: &Request, tag: &str, modified: u64) -> bool {
    match (&request.if_none_match, &request.if_modified_since) {
        (Some(known), _) => lists(known, tag, true),
        (None, Some(since)) => date::parse(since).is_some_and(|since| modified <= since),
        (None, None) => false,
    }
}

/// Returns whether the client's partial copy is of this version of the file (step 5).
fn same_file(request: &Request, tag: &str, changed: &str) -> bool {
    request.if_range.as_deref().is_none_or(|known| known == tag || known == changed)
}

/// Returns whether `tag` is in a list of tags. Weak tags match if `weak` is true.
fn lists(list: &str, tag: &str, weak: bool) -> bool {
    let same = |known: &str| known == tag || weak && known.strip_prefix("W/") == Some(tag);
    list.trim() == "*" || list.split(',').any(|known| same(known.trim()))
}

/// Response under construction.
struct Answer {
    status: String,
    headers: String,
    keep_alive: bool,
}

impl Answer {
    fn new(status: String, keep_alive: bool) -> Answer {
        Answer { status, headers: String::new(), keep_alive }
    }

    fn header(&mut self, name: &str, value: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.headers, "{name}: {value}\r\n");
    }

    /// Finishes with the status as the body.
    fn text(mut self, method: Method) -> Plan {
        self.header("Content-Type", "text/plain; charset=utf-8");
        let body = format!("{}\n", self.status);
        self.bytes(method, body.into_bytes())
    }

    fn bytes(self, method: Method, bytes: Vec<u8>) -> Plan {
        let length = bytes.len() as u64;
        let sent = if method == Method::Get { bytes } else { Vec::new() };
        self.finish(Some(length), Body::Bytes(sent))
    }

    fn page(self, method: Method, listing: &Listing) -> Plan {
        let length = listing.page().len() as u64;
        let sent = match method {
            Method::Get => Body::Page(listing.clone()),
            Method::Head => Body::Bytes(Vec::new()),
        };
        self.finish(Some(length), sent)
    }

    fn file(self, method: Method, part: Range<u64>) -> Plan {
        let length = part.end - part.start;
        let sent = if method == Method::Get { part } else { 0..0 };
        self.finish(Some(length), Body::File(sent))
    }

    fn nothing(self) -> Plan {
        self.finish(None, Body::Bytes(Vec::new()))
    }

    fn finish(mut self, length: Option<u64>, body: Body) -> Plan {
        if let Some(length) = length {
            self.header("Content-Length", &length.to_string());
        }
        self.header("Connection", if self.keep_alive { "keep-alive" } else { "close" });
        let status = self.status[..3].parse().expect("a status begins with its code");
        let head = format!("HTTP/1.1 {}\r\n{}\r\n", self.status, self.headers).into_bytes();
        Plan { status, head, body, keep_alive: self.keep_alive }
    }
}

/// Intersection of two ranges, if it is not empty.
fn cut(a: &Range<u64>, b: Range<u64>) -> Option<Range<u64>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

fn of(at: Range<u64>) -> Range<usize> {
    at.start as usize..at.end as usize
}
