//! Terms by which two gateways compare their configs at the start of a session, so that a mismatch
//! is reported instead of silently leaving packets unprotected.
//!
//! ```text
//!  own digest 8 | peer's digest 8 | version len 1, text | code len 1, text
//!  | own count 1, n x (address bytes 1, length 1, address 16) | peer's count 1, the same
//! ```
//!
//! The digests cover all prefixes; the lists, which are for display, contain the first
//! [`MAX_LISTED`].

use std::hash::Hasher as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use highway::{HighwayHasher, Key};
use ipnet::IpNet;

use crate::reader::Reader;

pub(super) const TERMS: u8 = 5;
/// Maximum number of listed prefixes of one site.
pub const MAX_LISTED: usize = 12;
/// Longest text, in bytes.
const MAX_TEXT: usize = 100;
const ENTRY: usize = 18;

/// Prefixes of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    digest: u64,
    /// First prefixes, in order.
    pub first: Vec<IpNet>,
}

impl Listed {
    /// Creates a list of the given prefixes, in any order.
    pub fn new(prefixes: &[IpNet]) -> Listed {
        let mut first: Vec<IpNet> = prefixes.iter().map(IpNet::trunc).collect();
        first.sort_unstable();
        first.dedup();
        let mut hasher = HighwayHasher::new(Key([0x76_6961; 4]));
        first.iter().for_each(|net| hasher.write(&entry(net)));
        let digest = hasher.finish();
        first.truncate(MAX_LISTED);
        Listed { digest, first }
    }

    fn text(&self) -> String {
        let all: Vec<String> = self.first.iter().map(ToString::to_string).collect();
        let is_whole = Listed::new(&self.first).digest == self.digest;
        let more = if is_whole { "" } else { ", ..." };
        if all.is_empty() { "none".to_owned() } else { all.join(", ") + more }
    }
}

/// Terms announced by a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Version of the gateway's program.
    pub version: String,
    /// Code for packets to the receiver's site.
    pub code: String,
    /// Prefixes of the gateway's own site.
    pub own: Listed,
    /// Prefixes that the gateway has configured for the receiver's site.
    pub peer: Listed,
}

impl Terms {
    /// Parses a section's body; `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Terms> {
        let mut rest = Reader(bytes);
        let (own, peer) = (rest.u64()?, rest.u64()?);
        let (version, code) = (take_text(&mut rest)?, take_text(&mut rest)?);
        let own = Listed { digest: own, first: take_list(&mut rest)? };
        let peer = Listed { digest: peer, first: take_list(&mut rest)? };
        rest.is_empty().then_some(Terms { version, code, own, peer })
    }

    /// Appends the section's body to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.own.digest.to_be_bytes());
        out.extend(self.peer.digest.to_be_bytes());
        for text in [&self.version, &self.code] {
            let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
            out.push(u8::try_from(text.len()).unwrap_or(0));
            out.extend(text);
        }
        for list in [&self.own, &self.peer] {
            let list = &list.first[..list.first.len().min(MAX_LISTED)];
            out.push(u8::try_from(list.len()).unwrap_or(0));
            list.iter().for_each(|net| out.extend(entry(net)));
        }
    }

    /// First mismatch with the peer's terms; `None` if they agree.
    pub fn disagreement(&self, peer: &Terms) -> Option<String> {
        if peer.own.digest != self.peer.digest {
            return Some(format!(
                "prefixes disagree: the peer's are {}, and this config has {}",
                peer.own.text(),
                self.peer.text()
            ));
        }
        (peer.peer.digest != self.own.digest).then(|| {
            format!(
                "prefixes disagree: this site's are {}, and the peer's config has {}",
                self.own.text(),
                peer.peer.text()
            )
        })
    }
}

fn entry(net: &IpNet) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[1] = net.prefix_len();
    match net.addr() {
        IpAddr::V4(ip) => {
            entry[0] = 4;
            entry[2..6].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            entry[0] = 16;
            entry[2..].copy_from_slice(&ip.octets());
        }
    }
    entry
}

fn take_text(rest: &mut Reader<'_>) -> Option<String> {
    let text = rest.counted_u8()?;
    let fine = text.len() <= MAX_TEXT && text.iter().all(|b| (b' '..=b'~').contains(b));
    fine.then(|| String::from_utf8_lossy(text).into_owned())
}

fn take_list(rest: &mut Reader<'_>) -> Option<Vec<IpNet>> {
    let count = usize::from(rest.u8()?);
    let list = rest.take(count * ENTRY)?;
    let nets = list.as_chunks::<ENTRY>().0.iter().map(|&[kind, len, ref address @ ..]| {
        let ip = match kind {
            4 => IpAddr::V4(Ipv4Addr::from(*address.first_chunk::<4>()?)),
            16 => IpAddr::V6(Ipv6Addr::from(*address)),
            _ => return None,
        };
        IpNet::new(ip, len).ok()
    });
    (count <= MAX_LISTED).then(|| nets.collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nets(texts: &[&str]) -> Listed {
        Listed::new(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
    }

    fn terms(own: &[&str], peer: &[&str]) -> Terms {
        let text = |text: &str| text.to_owned();
        Terms { version: text("1.2"), code: text("layered"), own: nets(own), peer: nets(peer) }
    }

    #[test]
    fn terms_round_trip_and_fit_in_a_packet() {
        let many: Vec<String> = (0..40).map(|n| format!("fd00:{n}::/32")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for of in [terms(&["10.1.0.0/16", "fd00::/8"], &["10.2.0.0/16"]), terms(&many, &many)] {
            let mut bytes = Vec::new();
            of.emit(&mut bytes);
            assert!(bytes.len() < 700, "{}", bytes.len());
            assert_eq!(Terms::parse(&bytes), Some(of));
            bytes.push(0);
            assert_eq!(Terms::parse(&bytes), None);
        }
    }

    #[test]
    fn prefixes_that_disagree_are_named() {
        let a = terms(&["10.1.0.0/16"], &["10.2.0.0/16", "10.3.0.0/16"]);
        let b = terms(&["10.3.0.0/16", "10.2.0.0/16"], &["10.1.0.0/16"]);
        assert_eq!(a.disagreement(&b), None, "the order does not matter");
        let narrow = terms(&["10.2.0.0/16"], &["10.1.0.0/16"]);
        let said = a.disagreement(&narrow).unwrap();
        assert!(said.contains("the peer's are 10.2.0.0/16, and this config has 10.2"), "{said}");
        let wrong = terms(&["10.3.0.0/16", "10.2.0.0/16"], &["10.9.0.0/16"]);
        assert!(a.disagreement(&wrong).unwrap().contains("the peer's config has 10.9.0.0/16"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes: Vec<u8>) {
            let _ = Terms::parse(&bytes);
        }
    }
}
