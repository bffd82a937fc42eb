//! The repair channel's messages, and all their numbers. Everything is big endian.
//!
//! A datagram between gateways is one of
//!
//! ```text
//!  initiation   kind=1 version 0 0 | hint 8 | sender index 4 | unix time ns 8 | Noise 48 | mac 32
//!  response     kind=2 version 0 0 | sender index 4 | receiver index 4 | Noise 48 | mac 32
//!  transport    kind=3 version 0 0 | receiver index 4 | counter 8 | sealed message | tag 16
//! ```
//!
//! The hint names the initiator to the responder: a value that only the two can derive, one for each
//! direction, so that the peer is found without trying the keys of all.
//!
//! and a sealed message is one of
//!
//! ```text
//!  repair   kind=1 family row 2 | first 8 | stride 2 | count | announced n | length code 2
//!           | n x (position, identity 8, ttl, tos) | body
//!  terms    kind=3: see `terms`
//!  report   kind=2 0 0 0 | highest 8 | covered 8 | lost 8 | recovered 8 | bursts 12 x 8
//! ```

use super::identity::Identity;
use super::stats::{LOSS_BUCKETS, LossReport};
use super::terms::{TERMS, Terms};
use crate::fec::{Cover, Repair, Row, Seq};
use crate::wire::ip::Hop;

/// Version of the whole format; a datagram of another version is refused.
pub const VERSION: u8 = 2;
/// Bytes before the sealed message of a transport datagram; they are authenticated with it.
pub const TRANSPORT_HEAD: usize = 16;
/// Bytes of an authentication tag.
pub const TAG: usize = 16;
/// Bytes of a handshake's MAC.
pub const MAC: usize = 32;
/// Bytes of a handshake's Noise message: ephemeral key and tag, both of KK's with an empty payload.
pub const NOISE: usize = 32 + 16;
/// Bytes of a handshake initiation before its Noise message.
pub const INITIATION_HEAD: usize = 24;
/// Bytes of a handshake response before its Noise message.
pub const RESPONSE_HEAD: usize = 12;
/// Names an initiator to its responder.
pub type Hint = [u8; 8];
/// Bytes of a repair before its announcements.
pub const REPAIR_HEAD: usize = 18;
/// Bytes of one announcement.
pub const ANNOUNCEMENT: usize = 11;

const REPAIR: u8 = 1;
const REPORT: u8 = 2;
const REPORT_LEN: usize = 4 + 8 * (5 + LOSS_BUCKETS);

const XOR: u8 = 0;
const REED_SOLOMON: u8 = 1;
const WINDOW: u8 = 2;

/// What a datagram is, by its head alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// First message of a handshake.
    Initiation {
        /// Names the sender, see [`Hint`].
        hint: Hint,
        /// The sender's index of the session to be.
        sender: u32,
        /// The sender's wall clock, nanoseconds since 1970.
        unix_nanos: u64,
    },
    /// Second message of a handshake.
    Response {
        /// The responder's index of the session.
        sender: u32,
        /// The initiator's.
        receiver: u32,
    },
    /// A sealed message.
    Transport {
        /// The receiver's index of the session.
        receiver: u32,
        /// Number of the message in its session and direction; never repeats.
        counter: u64,
    },
}

impl Datagram {
    /// Reads a datagram's head; `None` if it is of no known kind or version, too short, or a handshake
    /// message of another length than those have.
    pub fn parse(bytes: &[u8]) -> Option<Datagram> {
        let (kind, version) = (*bytes.first()?, *bytes.get(1)?);
        if version != VERSION || bytes.get(2..4)? != [0, 0] {
            return None;
        }
        let handshake = |head: usize| bytes.len() == head + NOISE + MAC;
        match kind {
            1 if handshake(INITIATION_HEAD) => Some(Datagram::Initiation {
                hint: *bytes.get(4..)?.first_chunk()?,
                sender: u32_at(bytes, 12)?,
                unix_nanos: u64_at(bytes, 16)?,
            }),
            2 if handshake(RESPONSE_HEAD) => {
                Some(Datagram::Response { sender: u32_at(bytes, 4)?, receiver: u32_at(bytes, 8)? })
            }
            3 if bytes.len() >= TRANSPORT_HEAD + TAG => Some(Datagram::Transport {
                receiver: u32_at(bytes, 4)?,
                counter: u64_at(bytes, 8)?,
            }),
            _ => None,
        }
    }

    /// The protocol version that `bytes` name, if they begin as a datagram of another version does.
    pub fn other_version(bytes: &[u8]) -> Option<u8> {
        match *bytes {
            [1..=3, version, 0, 0, ..] if version != VERSION => Some(version),
            _ => None,
        }
    }

    /// Appends the head to `out`.
    pub fn emit(self, out: &mut Vec<u8>) {
        match self {
            Datagram::Initiation { hint, sender, unix_nanos } => {
                out.extend([1, VERSION, 0, 0]);
                out.extend(hint);
                out.extend(sender.to_be_bytes());
                out.extend(unix_nanos.to_be_bytes());
            }
            Datagram::Response { sender, receiver } => {
                out.extend([2, VERSION, 0, 0]);
                out.extend(sender.to_be_bytes());
                out.extend(receiver.to_be_bytes());
            }
            Datagram::Transport { receiver, counter } => {
                out.extend([3, VERSION, 0, 0]);
                out.extend(receiver.to_be_bytes());
                out.extend(counter.to_be_bytes());
            }
        }
    }
}

/// What a repair says of one packet that it covers: an entry of the paper's recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Index into the cover, from 0.
    pub position: u8,
    /// The packet's name.
    pub identity: Identity,
    /// What normalisation removed from it.
    pub hop: Hop,
}

/// A sealed message, opened.
#[derive(Clone, Debug)]
pub enum Message<'a> {
    /// A repair and what it announces.
    Repair(Repair<'a>, Announcements<'a>),
    /// What the other side lost and recovered of what we sent.
    Report(Report),
    /// What it says of its config.
    Terms(Box<Terms>),
}

/// What a site tells its peer every second, and when a session begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What it lost of the peer's packets.
    pub loss: LossReport,
    /// The number of its own next packet: those from here on leave after this report.
    pub next: Seq,
}

impl<'a> Message<'a> {
    /// Reads an opened message; `None` if it is malformed.
    pub fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        match *bytes.first()? {
            REPAIR => parse_repair(bytes),
            REPORT => parse_report(bytes).map(Message::Report),
            TERMS => Terms::parse(bytes).map(|terms| Message::Terms(Box::new(terms))),
            _ => None,
        }
    }
}

fn parse_repair(bytes: &[u8]) -> Option<Message<'_>> {
    let number = u16_at(bytes, 2)?;
    let row = match *bytes.get(1)? {
        XOR => Row::Xor { layer: u8::try_from(number).ok()? },
        REED_SOLOMON => Row::ReedSolomon { row: u8::try_from(number).ok()? },
        WINDOW => Row::Window { seed: number },
        _ => return None,
    };
    let cover =
        Cover { first: u64_at(bytes, 4)?, stride: u16_at(bytes, 12)?, count: *bytes.get(14)? };
    let announced = usize::from(*bytes.get(15)?);
    let reach = u64::from(cover.stride) * u64::from(cover.count);
    if cover.count == 0 || cover.stride == 0 || cover.first.checked_add(reach).is_none() {
        return None;
    }
    let len_code = [*bytes.get(16)?, *bytes.get(17)?];
    let (list, body) = bytes.get(REPAIR_HEAD..)?.split_at_checked(announced * ANNOUNCEMENT)?;
    let announcements = Announcements { list: list.as_chunks().0 };
    if announcements.iter().any(|a| a.position >= cover.count) {
        return None;
    }
    Some(Message::Repair(Repair { cover, row, len_code, body }, announcements))
}

/// The announcements of a repair.
#[derive(Clone, Copy, Debug)]
pub struct Announcements<'a> {
    list: &'a [[u8; ANNOUNCEMENT]],
}

impl Announcements<'_> {
    /// Them, in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = Announcement> {
        self.list.iter().map(|&[position, ref identity @ .., ttl, tos]| Announcement {
            position,
            identity: Identity(u64::from_be_bytes(*identity)),
            hop: Hop { ttl, tos },
        })
    }
}

/// Appends a repair message to `out`.
pub fn emit_repair(
    repair: &Repair<'_>,
    announcements: impl ExactSizeIterator<Item = Announcement>,
    out: &mut Vec<u8>,
) {
    let (family, number) = match repair.row {
        Row::Xor { layer } => (XOR, u16::from(layer)),
        Row::ReedSolomon { row } => (REED_SOLOMON, u16::from(row)),
        Row::Window { seed } => (WINDOW, seed),
    };
    out.extend([REPAIR, family]);
    out.extend(number.to_be_bytes());
    out.extend(repair.cover.first.to_be_bytes());
    out.extend(repair.cover.stride.to_be_bytes());
    out.push(repair.cover.count);
    out.push(u8::try_from(announcements.len()).unwrap_or(u8::MAX));
    out.extend(repair.len_code);
    for Announcement { position, identity, hop } in announcements.take(usize::from(u8::MAX)) {
        let mut entry = [position, 0, 0, 0, 0, 0, 0, 0, 0, hop.ttl, hop.tos];
        entry[1..9].copy_from_slice(&identity.0.to_be_bytes());
        out.extend_from_slice(&entry);
    }
    out.extend_from_slice(repair.body);
}

fn parse_report(bytes: &[u8]) -> Option<Report> {
    if bytes.len() != REPORT_LEN {
        return None;
    }
    let mut bursts = [0; LOSS_BUCKETS];
    for (i, bucket) in bursts.iter_mut().enumerate() {
        *bucket = u64_at(bytes, 44 + 8 * i)?;
    }
    let loss = LossReport {
        highest: u64_at(bytes, 12)?,
        covered: u64_at(bytes, 20)?,
        lost: u64_at(bytes, 28)?,
        recovered: u64_at(bytes, 36)?,
        bursts,
    };
    Some(Report { loss, next: u64_at(bytes, 4)? })
}

/// Appends a report to `out`.
pub fn emit_report(report: &Report, out: &mut Vec<u8>) {
    let Report { loss, next } = report;
    out.extend([REPORT, 0, 0, 0]);
    for number in [*next, loss.highest, loss.covered, loss.lost, loss.recovered] {
        out.extend(number.to_be_bytes());
    }
    for bucket in loss.bursts {
        out.extend(bucket.to_be_bytes());
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads_round_trip() {
        for head in [
            Datagram::Initiation { hint: [3; 8], sender: 7, unix_nanos: 1 << 60 },
            Datagram::Response { sender: 8, receiver: 9 },
            Datagram::Transport { receiver: 10, counter: 11 },
        ] {
            let mut bytes = Vec::new();
            head.emit(&mut bytes);
            assert_eq!(Datagram::parse(&bytes), None, "no room for a tag");
            let is_transport = matches!(head, Datagram::Transport { .. });
            bytes.extend(vec![0; if is_transport { TAG } else { NOISE + MAC }]);
            assert_eq!(Datagram::parse(&bytes), Some(head));
            bytes.push(0);
            assert_eq!(
                Datagram::parse(&bytes).is_some(),
                is_transport,
                "one length of a handshake"
            );
            bytes.pop();
            bytes[1] += 1;
            assert_eq!(Datagram::parse(&bytes), None, "another version");
            assert_eq!(Datagram::other_version(&bytes), Some(VERSION + 1));
        }
    }

    #[test]
    fn a_report_round_trips_and_has_one_length() {
        let loss =
            LossReport { highest: 9, covered: 8, lost: 3, recovered: 2, ..Default::default() };
        let report = Report { loss, next: 1 << 50 };
        let mut bytes = Vec::new();
        emit_report(&report, &mut bytes);
        assert_eq!(bytes.len(), REPORT_LEN);
        assert!(matches!(Message::parse(&bytes), Some(Message::Report(r)) if r == report));
        bytes.push(0);
        assert!(Message::parse(&bytes).is_none());
    }

    proptest! {
        #[test]
        fn repairs_round_trip(
            first in 1..u64::MAX / 2, stride in 1..500u16, count in 1..=255u8, body: Vec<u8>,
            names in prop::collection::vec((any::<u64>(), any::<u8>(), any::<u8>()), 0..20),
        ) {
            let cover = Cover { first, stride, count };
            let repair = Repair { cover, row: Row::ReedSolomon { row: 3 }, len_code: [1, 2], body: &body };
            let list: Vec<_> = names.iter().enumerate().map(|(i, &(id, ttl, tos))| Announcement {
                position: i as u8 % count, identity: Identity(id), hop: Hop { ttl, tos },
            }).collect();
            let mut bytes = Vec::new();
            emit_repair(&repair, list.iter().copied(), &mut bytes);
            let Some(Message::Repair(back, announced)) = Message::parse(&bytes) else {
                return Err(TestCaseError::fail("did not parse"));
            };
            prop_assert_eq!(back, repair);
            prop_assert_eq!(announced.iter().collect::<Vec<_>>(), list);
        }

        #[test]
        fn parsing_never_panics(mut bytes: Vec<u8>, kind in 0..4u8) {
            let _ = Datagram::parse(&bytes);
            if let Some(first) = bytes.first_mut() { *first = kind; }
            if let Some(Message::Repair(repair, list)) = Message::parse(&bytes) {
                prop_assert!(repair.cover.count > 0 && repair.cover.stride > 0);
                prop_assert!(list.iter().all(|a| a.position < repair.cover.count));
            }
        }
    }
}
