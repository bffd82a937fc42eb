//! Messages between nodes. All numbers are big-endian:
//!
//! ```text
//!   0      1      2       4        8          16         24         32
//!   ┌──────┬──────┬───────┬────────┬──────────┬──────────┬──────────┬──────────────┬──────────┐
//!   │ 0x4f │ kind │ count │ from   │ boot     │ number   │ nonce    │ count × path │ tag (16) │
//!   └──────┴──────┴───────┴────────┴──────────┴──────────┴──────────┴──────────────┴──────────┘
//!   kind 1: a probe   2: its answer, with the probe's nonce
//!   path: to (4), round trip in microseconds (4; all ones: down), loss (2; in 1/65535)
//! ```
//!
//! `from` and `to` are the first four bytes of a node's public key. `boot` is a random number
//! chosen at each start of a node. `number` counts the sender's messages to this peer.

use crate::reader::Reader;
use crate::time::Duration;

const MAGIC: u8 = 0x4f;
const PATH: usize = 10;
pub(super) const TAG: usize = 16;
const DOWN: u32 = u32::MAX;

/// Identifier of a node in messages.
pub(super) type Id = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Probe = 1,
    Answer = 2,
}

/// Path from the sender to another node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Path {
    pub(super) to: Id,
    /// Round-trip time; `None` while the path is down.
    pub(super) rtt: Option<Duration>,
    /// Share of the probes that was lost, 0 to 1.
    pub(super) loss: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) from: Id,
    pub(super) boot: u64,
    pub(super) number: u64,
    pub(super) nonce: u64,
    pub(super) paths: Vec<Path>,
}

impl Message {
    /// Appends the message to `out`, without its tag.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend([MAGIC, self.kind as u8]);
        out.extend((self.paths.len() as u16).to_be_bytes());
        out.extend(self.from.to_be_bytes());
        for field in [self.boot, self.number, self.nonce] {
            out.extend(field.to_be_bytes());
        }
        for path in &self.paths {
            let rtt = path.rtt.map_or(DOWN, |rtt| {
                u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).min(DOWN - 1)
            });
            out.extend(path.to.to_be_bytes());
            out.extend(rtt.to_be_bytes());
            out.extend(((path.loss.clamp(0.0, 1.0) * 65_535.0).round() as u16).to_be_bytes());
        }
    }

    /// Parses a message and its tag, which the caller must check.
    pub(super) fn parse(datagram: &[u8]) -> Option<(Message, [u8; TAG])> {
        let (body, tag) = datagram.split_last_chunk::<TAG>()?;
        let mut rest = Reader(body);
        let kind = match rest.array::<2>()? {
            [MAGIC, 1] => Kind::Probe,
            [MAGIC, 2] => Kind::Answer,
            _ => return None,
        };
        let count = usize::from(rest.u16()?);
        let (from, boot, number, nonce) = (rest.u32()?, rest.u64()?, rest.u64()?, rest.u64()?);
        if rest.0.len() != count * PATH || count > super::MAX_PEERS {
            return None;
        }
        let paths = std::iter::from_fn(|| path(&mut rest)).collect();
        Some((Message { kind, from, boot, number, nonce, paths }, *tag))
    }
}

fn path(rest: &mut Reader<'_>) -> Option<Path> {
    let (to, rtt, loss) = (rest.u32()?, rest.u32()?, rest.u16()?);
    let rtt = (rtt != DOWN).then(|| Duration::from_micros(rtt.into()));
    Some(Path { to, rtt, loss: f64::from(loss) / 65_535.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_the_drawing() {
        let down = Path { to: 0x0102_0304, rtt: None, loss: 1.0 };
        let message = Message {
            kind: Kind::Answer,
            from: 7,
            boot: 8,
            number: 9,
            nonce: 10,
            paths: vec![down],
        };
        let mut out = Vec::new();
        message.emit(&mut out);
        let head = [0x4f, 2, 0, 1, 0, 0, 0, 7];
        assert_eq!(out[..8], head);
        assert_eq!((out[15], out[23], out[31]), (8, 9, 10));
        assert_eq!(out[32..], [1, 2, 3, 4, 255, 255, 255, 255, 255, 255]);
    }

    proptest! {
        #[test]
        fn messages_round_trip_and_other_lengths_are_refused(
            (from, boot, number, nonce) in any::<(u32, u64, u64, u64)>(),
            paths in prop::collection::vec(
                (any::<u32>(), any::<Option<u32>>(), any::<u16>()), 0..5),
        ) {
            let path = |(to, rtt, loss): (u32, Option<u32>, u16)| Path {
                to,
                rtt: rtt.map(|us| Duration::from_micros(us.min(DOWN - 1).into())),
                loss: f64::from(loss) / 65_535.0,
            };
            let paths = paths.into_iter().map(path).collect();
            let message = Message { kind: Kind::Probe, from, boot, number, nonce, paths };
            let mut out = Vec::new();
            message.emit(&mut out);
            prop_assert!(Message::parse(&out).is_none());
            out.extend([5; TAG]);
            prop_assert_eq!(Message::parse(&out), Some((message, [5; TAG])));
            out.push(0);
            prop_assert!(Message::parse(&out).is_none());
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            super::super::reads(&bytes);
        }
    }
}
