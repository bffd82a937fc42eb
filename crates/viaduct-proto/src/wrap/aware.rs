//! What programs that know of their handlers say to them: TESLA's control call and asynchronous events
//! (3.6).
//!
//! A program asks by one record (`SOCK_SEQPACKET`) on a connection of its own, the flow's descriptor
//! beside it, behind the run's secret ([`super::Secret`]), which `VIADUCT_CONTROL` names with the socket as
//! `@NAME;SECRET`:
//!
//! ```text
//!   0        1        2        3                  3 + n            at most 4096
//!   ┌────────┬────────┬────────┬──────────────────┬──────────────────┐
//!   │ 1      │ kind   │ n      │ handler's name   │ request          │
//!   └────────┴────────┴────────┴──────────────────┴──────────────────┘
//!   kind 1  a control call. Answer: one record, 1 and what the handler says, or 0: nobody answers
//!   kind 2  events, name and request empty. Answer: 1, and a record for each event from now on; or 0:
//!           no such flow
//! ```

/// Bytes of a request at most, and of an answer.
pub const MOST: usize = 4096;
/// In an answer: there is one.
pub const YES: u8 = 1;
/// In an answer: nobody has one.
pub const NO: u8 = 0;

const VERSION: u8 = 1;
const CONTROL: u8 = 1;
const WATCH: u8 = 2;
const HEAD: usize = 3;

/// What a program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// A control call to the handler of this name.
    Control {
        /// The handler's name.
        to: &'a str,
        /// What it is asked.
        request: &'a [u8],
    },
    /// To be told of events.
    Watch,
}

impl<'a> Ask<'a> {
    /// Reads one; `None` if it is none.
    pub fn parse(bytes: &'a [u8]) -> Option<Ask<'a>> {
        let (&[VERSION, kind, length], rest) = bytes.split_first_chunk::<HEAD>()? else {
            return None;
        };
        let (name, request) = rest.split_at_checked(length.into())?;
        match kind {
            CONTROL if bytes.len() <= MOST => {
                Some(Ask::Control { to: str::from_utf8(name).ok()?, request })
            }
            WATCH if rest.is_empty() => Some(Ask::Watch),
            _ => None,
        }
    }

    /// As bytes; `None` if it is too long.
    pub fn emit(self) -> Option<Vec<u8>> {
        let (kind, to, request) = match self {
            Ask::Control { to, request } => (CONTROL, to, request),
            Ask::Watch => (WATCH, "", &[][..]),
        };
        let head = [VERSION, kind, u8::try_from(to.len()).ok()?];
        Some([&head, to.as_bytes(), request].concat()).filter(|bytes| bytes.len() <= MOST)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(to in "[a-z]{0,20}", request: Vec<u8>) {
            let ask = Ask::Control { to: &to, request: &request };
            let bytes = ask.emit().unwrap();
            prop_assert_eq!(Ask::parse(&bytes), Some(ask));
        }

        #[test]
        fn whatever_is_read_is_said_alike(bytes: Vec<u8>) {
            if let Some(ask) = Ask::parse(&bytes) {
                prop_assert_eq!(ask.emit(), Some(bytes.clone()));
            }
        }
    }

    #[test]
    fn what_is_cut_or_too_long_is_nothing() {
        assert_eq!(Ask::parse(&Ask::Watch.emit().unwrap()), Some(Ask::Watch));
        for bytes in [&b""[..], b"\x01\x01", b"\x01\x01\x05abcd", b"\x02\x02\x00", b"\x01\x02\x00x"]
        {
            assert_eq!(Ask::parse(bytes), None, "{bytes:?}");
        }
        assert_eq!(Ask::Control { to: "count", request: &[0; MOST] }.emit(), None);
        assert_eq!(Ask::Control { to: &"x".repeat(256), request: &[] }.emit(), None);
        assert_eq!(Ask::parse(&[&[1, 1, 0][..], &[0; MOST]].concat()), None);
    }
}
