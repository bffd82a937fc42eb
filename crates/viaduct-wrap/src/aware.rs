//! Protocol for programs that talk to the handlers of their flows: the TESLA paper's control call
//! and asynchronous events (section 3.6).
//!
//! A program opens a connection (`SOCK_SEQPACKET`) for each request, and sends one record: the
//! run's secret ([`super::Secret`]) and the request, with the flow's descriptor attached. The
//! environment variable `VIADUCT_CONTROL` holds the socket's name and the secret as `@NAME;SECRET`.
//! Format of a request:
//!
//! ```text
//!   0        1        2        3                  3 + n            at most 4096
//!   ┌────────┬────────┬────────┬──────────────────┬──────────────────┐
//!   │ 1      │ kind   │ n      │ handler's name   │ request          │
//!   └────────┴────────┴────────┴──────────────────┴──────────────────┘
//!   kind 1  control call. Answer: one record, 1 and the handler's reply, or 0 if there is none
//!   kind 2  events; name and request empty. Answer: 1, then a record for each event. If there is
//!           no such flow, the connection is closed without an answer
//! ```

/// Maximum length of a request without the secret, and of an answer, in bytes.
pub const MAX_MESSAGE: usize = 4096;
/// First byte of an answer: success.
pub const YES: u8 = 1;
/// First byte of an answer to a control call: there is no such flow, or no handler replies.
pub const NO: u8 = 0;

const VERSION: u8 = 1;
const CONTROL: u8 = 1;
const WATCH: u8 = 2;
const HEAD: usize = 3;

/// Request from a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// A control call to a handler.
    Control {
        /// The handler's name.
        to: &'a str,
        /// The request, in the handler's own format.
        request: &'a [u8],
    },
    /// Subscribes to events.
    Watch,
}

impl<'a> Ask<'a> {
    /// Parses a request; `None` if it is invalid.
    pub fn parse(bytes: &'a [u8]) -> Option<Ask<'a>> {
        let (&[VERSION, kind, length], rest) = bytes.split_first_chunk::<HEAD>()? else {
            return None;
        };
        let (name, request) = rest.split_at_checked(length.into())?;
        match kind {
            CONTROL if bytes.len() <= MAX_MESSAGE => {
                Some(Ask::Control { to: str::from_utf8(name).ok()?, request })
            }
            WATCH if rest.is_empty() => Some(Ask::Watch),
            _ => None,
        }
    }

    /// Serializes the request; `None` if it is too long.
    pub fn emit(self) -> Option<Vec<u8>> {
        let (kind, to, request) = match self {
            Ask::Control { to, request } => (CONTROL, to, request),
            Ask::Watch => (WATCH, "", &[][..]),
        };
        let head = [VERSION, kind, u8::try_from(to.len()).ok()?];
        Some([&head, to.as_bytes(), request].concat()).filter(|bytes| bytes.len() <= MAX_MESSAGE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip(to in "[a-z]{0,20}", request: Vec<u8>) {
            let ask = Ask::Control { to: &to, request: &request };
            let bytes = ask.emit().unwrap();
            prop_assert_eq!(Ask::parse(&bytes), Some(ask));
        }

        #[test]
        fn parsed_requests_are_emitted_unchanged(bytes: Vec<u8>) {
            if let Some(ask) = Ask::parse(&bytes) {
                prop_assert_eq!(ask.emit(), Some(bytes.clone()));
            }
        }
    }

    #[test]
    fn truncated_and_overlong_requests_are_refused() {
        assert_eq!(Ask::parse(&Ask::Watch.emit().unwrap()), Some(Ask::Watch));
        for bytes in [&b""[..], b"\x01\x01", b"\x01\x01\x05abcd", b"\x02\x02\x00", b"\x01\x02\x00x"]
        {
            assert_eq!(Ask::parse(bytes), None, "{bytes:?}");
        }
        assert_eq!(Ask::Control { to: "count", request: &[0; MAX_MESSAGE] }.emit(), None);
        assert_eq!(Ask::Control { to: &"x".repeat(256), request: &[] }.emit(), None);
        assert_eq!(Ask::parse(&[&[1, 1, 0][..], &[0; MAX_MESSAGE]].concat()), None);
    }
}
