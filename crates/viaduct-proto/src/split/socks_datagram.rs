//! Datagram between a client and its relay (RFC 1928, section 7): a header that names the far
//! end, followed by the payload.
//!
//! ```text
//!   0  0 │ fragment │ type, address, port │ payload …
//!        └ 0: not fragmented; fragments are refused, which the RFC allows
//! ```

use super::Parsed;
use super::socks::{address, put_address};
use crate::flow::Address;

/// Reason to drop a datagram from a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// A fragment of a longer datagram.
    #[error("a fragment of a datagram")]
    Fragment,
    /// The header is invalid.
    #[error("an invalid header of a SOCKS datagram")]
    Header,
}

/// Datagram to a relay for `to`; `None` for a name that is empty or has more than 255 bytes.
pub fn emit(to: &Address, data: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; 3];
    put_address(&mut out, to)?;
    out.extend(data);
    Some(out)
}

/// Parses a relay's datagram into source and payload. Errors: a fragment, or an invalid header.
pub fn parse(bytes: &[u8]) -> Result<(Address, &[u8]), Unusable> {
    let rest = match *bytes {
        [0, 0, 0, ref rest @ ..] => rest,
        [0, 0, _, ..] => return Err(Unusable::Fragment),
        _ => return Err(Unusable::Header),
    };
    match address(rest) {
        Parsed::Whole(from, length) => Ok((from, &rest[length..])),
        Parsed::Short | Parsed::Wrong(_) => Err(Unusable::Header),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn datagrams_are_parsed_as_emitted() {
        let ips = ["192.0.2.7:53", "[2001:db8::7]:443"].map(|ip| Address::Ip(ip.parse().unwrap()));
        for to in ips.into_iter().chain([Address::Name("example.org".into(), 7)]) {
            for data in [&b""[..], b"question"] {
                let said = emit(&to, data).unwrap();
                assert_eq!(parse(&said), Ok((to.clone(), data)));
                let head = said.len() - data.len();
                for cut in 0..head {
                    assert_eq!(parse(&said[..cut]), Err(Unusable::Header), "{to} {cut}");
                }
            }
        }
        assert_eq!(emit(&Address::Name("x".repeat(256), 1), b""), None);
    }

    #[test]
    fn fragments_and_other_headers_are_distinguished() {
        let whole = emit(&Address::Ip("192.0.2.7:53".parse().unwrap()), b"x").unwrap();
        for (at, value, why) in [
            (2, 1, Unusable::Fragment),
            (2, 0x81, Unusable::Fragment),
            (0, 1, Unusable::Header),
            (1, 1, Unusable::Header),
            (3, 2, Unusable::Header),
        ] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(parse(&other), Err(why));
        }
    }

    proptest! {
        #[test]
        fn any_input_is_parsed_or_refused(mut bytes: Vec<u8>, whole: bool) {
            if whole && bytes.len() >= 3 {
                bytes[..3].fill(0);
            }
            if let Ok((from, data)) = parse(&bytes) {
                prop_assert!(bytes.ends_with(data));
                let again = emit(&from, data).unwrap();
                prop_assert_eq!(parse(&again), Ok((from, data)));
            }
        }
    }
}
