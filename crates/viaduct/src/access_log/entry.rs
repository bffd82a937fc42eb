//! Entry of an access log for a request or flow, and its formatting.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Maximum bytes of the request in a line; the rest is cut off.
const MAX_REQUEST: usize = 2048;
/// Maximum bytes of a user name and of a reason.
const MAX_WORD: usize = 256;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Format of an access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The Common Log Format of web servers
    #[default]
    Common,
    /// JSON, one object a line
    Json,
}

/// Request or flow that has ended.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Start of the request or flow.
    pub start: SystemTime,
    /// Time from the start to the end, if it has been measured.
    pub duration: Option<Duration>,
    /// Address of the client.
    pub client: SocketAddr,
    /// Name of the authenticated user.
    pub user: Option<String>,
    /// Protocol of the client's side, such as `http`, `trickles`, `socks5`, `tcp`.
    pub protocol: &'static str,
    /// HTTP request line, or a similar line for other protocols: `CONNECT host:port SOCKS5`.
    pub request: String,
    /// HTTP status code. For other protocols, the code that corresponds to the outcome: 200, 400,
    /// 403, 407, 499 (the client left), 502, 503 or 504.
    pub status: u16,
    /// Bytes sent to the client.
    pub sent: u64,
    /// Bytes received from the client.
    pub received: u64,
    /// Cause of an early end.
    pub reason: Option<String>,
}

/// Entry as a JSON object, with its fields in this order.
#[derive(Serialize)]
struct Json<'a> {
    time: String,
    client: String,
    port: u16,
    user: Option<&'a str>,
    protocol: &'a str,
    request: &'a str,
    status: u16,
    sent: u64,
    received: u64,
    seconds: Option<f64>,
    reason: Option<&'a str>,
}

impl Entry {
    /// Truncates the fields that a client can make long, so that a full queue has a bounded size.
    pub(super) fn truncate(mut self) -> Entry {
        cut(&mut self.request, MAX_REQUEST);
        self.user.iter_mut().chain(&mut self.reason).for_each(|text| cut(text, MAX_WORD));
        self
    }

    /// Formats the line, with its newline.
    pub(super) fn line(&self, format: Format) -> String {
        match format {
            Format::Common => self.common(),
            Format::Json => self.json(),
        }
    }

    fn common(&self) -> String {
        let client = self.client.ip().to_canonical();
        let user = self.user.as_deref().filter(|user| !user.is_empty());
        let user = user.map_or("-".into(), |user| escape_word(user, MAX_WORD));
        let request = escape(&self.request, MAX_REQUEST);
        let time = common_time(self.start);
        format!("{client} - {user} [{time}] \"{request}\" {} {}\n", self.status, self.sent)
    }

    fn json(&self) -> String {
        let json = Json {
            time: rfc3339(self.start),
            client: self.client.ip().to_canonical().to_string(),
            port: self.client.port(),
            user: self.user.as_deref(),
            protocol: self.protocol,
            request: &self.request,
            status: self.status,
            sent: self.sent,
            received: self.received,
            seconds: self.duration.map(|time| (time.as_secs_f64() * 1e6).round() / 1e6),
            reason: self.reason.as_deref(),
        };
        // Strings and numbers always serialize.
        serde_json::to_string(&json).map_or_else(|_| String::new(), |line| line + "\n")
    }
}

/// Formats a time in UTC as `2026-11-26T03:07:03.125Z` (RFC 3339). A time before 1970 becomes 1970.
fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time.max(UNIX_EPOCH)).to_string()
}

/// Formats a time in UTC as `26/Nov/2026:03:07:03 +0000`.
fn common_time(time: SystemTime) -> String {
    let text = rfc3339(time);
    let (year, day, clock) = (&text[..4], &text[8..10], &text[11..19]);
    let month = text[5..7].parse().map_or("", |month: usize| MONTHS[month - 1]);
    format!("{day}/{month}/{year}:{clock} +0000")
}

/// Escapes the first `most` bytes of a text that is one field of a line. Spaces are escaped, too:
/// they would shift the fields after it.
pub(super) fn escape_word(text: &str, most: usize) -> String {
    escape(text, most).replace(' ', "\\x20")
}

/// Escapes the first `most` bytes of a text as web servers do in their logs: quotes and backslashes
/// with a backslash, control characters and bytes beyond ASCII as `\xHH`.
fn escape(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    for byte in text.bytes().take(most) {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            // Writing to a string cannot fail.
            other => _ = write!(out, "\\x{other:02x}"),
        }
    }
    out
}

fn cut(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    text.truncate(end.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_since_1970_are_dates() {
        for (seconds, common, rfc) in [
            (0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00.007Z"),
            (951_827_696, "29/Feb/2000:12:34:56 +0000", "2000-02-29T12:34:56.007Z"),
            (951_868_800, "01/Mar/2000:00:00:00 +0000", "2000-03-01T00:00:00.007Z"),
            (1_798_761_599, "31/Dec/2026:23:59:59 +0000", "2026-12-31T23:59:59.007Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7);
            assert_eq!((&*common_time(time), &*rfc3339(time)), (common, rfc));
        }
    }

    fn entry(request: &str) -> Entry {
        Entry {
            start: UNIX_EPOCH + Duration::from_millis(951_827_696_500),
            duration: Some(Duration::from_micros(1_234)),
            client: "[::ffff:192.0.2.1]:4711".parse().unwrap(),
            user: None,
            protocol: "http",
            request: request.to_owned(),
            status: 206,
            sent: 100,
            received: 20,
            reason: None,
        }
    }

    #[test]
    fn a_line_is_what_log_readers_expect() {
        assert_eq!(
            entry("GET /a HTTP/1.1").line(Format::Common),
            "192.0.2.1 - - [29/Feb/2000:12:34:56 +0000] \"GET /a HTTP/1.1\" 206 100\n"
        );
        let line = entry("GET /a HTTP/1.1").line(Format::Json);
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["time"], "2000-02-29T12:34:56.500Z");
        assert_eq!((&json["client"], &json["port"]), (&"192.0.2.1".into(), &4711.into()));
        assert_eq!((&json["seconds"], &json["user"]), (&0.001_234.into(), &().into()));
        assert_eq!(json["request"], "GET /a HTTP/1.1");
    }

    #[test]
    fn a_client_can_neither_end_a_line_nor_make_one_long() {
        let mut entry = entry("GET /\"\r\n\u{1b}[2J\u{fc}\\ HTTP/1.1");
        entry.user = Some("a b\nc".to_owned());
        let line = entry.line(Format::Common);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.contains(r#""GET /\"\x0d\x0a\x1b[2J\xc3\xbc\\ HTTP/1.1""#), "{line}");
        assert!(line.contains(r" - a\x20b\x0ac ["), "{line}");
        assert_eq!(entry.line(Format::Json).matches('\n').count(), 1);
        entry.request = "\u{fc}".repeat(MAX_REQUEST);
        let entry = entry.truncate();
        assert_eq!(entry.request.len(), MAX_REQUEST);
        assert!(entry.line(Format::Common).len() < 5 * MAX_REQUEST);
    }
}
