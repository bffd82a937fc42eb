//! Validation of the path of a request.

use std::fmt::Write as _;

/// Parts of the path in a request line: decoded, without the query, and without empty parts and
/// `.`. `None` if a part is `..`, or contains a NUL, an encoded slash or an invalid escape, or if
/// the target is neither a path nor an `http` URL. File names are bytes, and need not be UTF-8
/// (RFC 3986, 2.5).
pub(super) fn parts(target: &str) -> Option<Vec<Vec<u8>>> {
    let (path, _) = split(target);
    let path = match path.strip_prefix('/') {
        Some(path) => path,
        // Absolute form, as clients send it to proxies (RFC 9112, 3.2.2).
        None => absolute(path)?,
    };
    let parts = path.split('/').map(decode).collect::<Option<Vec<_>>>()?;
    let odd = |part: &Vec<u8>| part == b".." || part.iter().any(|byte| b"/\0".contains(byte));
    if parts.iter().any(odd) {
        return None;
    }
    Some(parts.into_iter().filter(|part| !part.is_empty() && part != b".").collect())
}

/// Splits a target into the part before the query, and the query.
pub(super) fn split(target: &str) -> (&str, Option<&str>) {
    let target = target.split_once('#').map_or(target, |(target, _)| target);
    target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)))
}

fn absolute(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    scheme.eq_ignore_ascii_case("http").then(|| rest.split_once('/').map_or("", |(_, path)| path))
}

fn decode(part: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        let byte = match (first, others) {
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                (digit(high)? * 16 + digit(low)?) as u8
            }
            (b'%', _) => return None,
            (byte, _) => *byte,
        };
        bytes.push(byte);
    }
    Some(bytes)
}

pub(super) fn encode(name: &[u8]) -> String {
    encode_but(name, |byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte))
}

/// Encodes a query: escapes bytes that a header may not contain, and keeps all others.
pub(super) fn encode_query(query: &str) -> String {
    encode_but(query.as_bytes(), |byte| byte.is_ascii_graphic())
}

fn encode_but(bytes: &[u8], plain: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_leads_out_of_the_directory() {
        let parts = |target| parts(target).map(|parts| parts.join(&b'|'));
        assert_eq!(parts("/a//b/./c%20d.txt?x=/../"), Some("a|b|c d.txt".into()));
        assert_eq!(parts("/"), Some(Vec::new()));
        assert_eq!(parts("http://host:80/a/b"), Some("a|b".into()));
        assert_eq!(parts("/caf%e9/%FF%fe"), Some(b"caf\xe9|\xff\xfe".to_vec()));
        for odd in ["/../etc", "/a/%2e%2e/b", "/a%2fb", "/%00", "/%", "/%zz", "a", "*"] {
            assert_eq!(parts(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_name_is_parsed_as_the_name(mut name in prop::collection::vec(1_u8.., 1..20)) {
            name.retain(|&byte| byte != b'/');
            prop_assume!(!name.is_empty() && name != b"." && name != b"..");
            prop_assert_eq!(parts(&format!("/{}", encode(&name))), Some(vec![name]));
        }
    }
}
