//! Datagrams of the repair channel, and their formats. All integers are big-endian.
//!
//! A datagram between gateways is one of:
//!
//! ```text
//!  initiation  kind=1 version lane last | hint 8 | sender index 4 | unix time ns 8
//!              | Noise 48 | mac 32
//!  response    kind=2 version lane last | sender index 4 | receiver index 4 | Noise 48 | mac 32
//!  transport   kind=3 version lane 0 | receiver index 4 | counter 8 | sealed message | tag 16
//! ```
//!
//! Numbers after a field are its length in bytes; the first four fields have one byte each. The
//! lane ([`super::lanes`]) is the third byte of each datagram: the kernel reads it there, to find
//! the worker of a datagram. The field `last` of a handshake is the number of lanes that its sender
//! wants, minus one; the highest bit of the field is set if the lanes are paths. The lane and
//! `last` are zero between gateways with a single lane.
//!
//! The hint identifies the initiator to the responder, so that the peer is found without trying the
//! keys of all peers. Only these two gateways can derive the hint, which differs between the
//! directions. A sealed message consists of sections ([`super::section`]).

use super::lanes::{LaneOffer, MAX_LANES};

/// Version of the whole format; datagrams of other versions are refused.
pub const VERSION: u8 = 4;
/// Highest version number that is reported; a higher number is taken for noise.
const MAX_VERSION: u8 = 63;
/// Offset of the lane in each datagram.
pub const LANE_AT: usize = 2;
/// Number of bytes before the sealed message of a transport datagram; they are authenticated with
/// it.
pub const TRANSPORT_HEAD: usize = 16;
/// Length of an authentication tag, in bytes.
pub const TAG: usize = 16;
/// Length of a handshake's MAC, in bytes.
pub const MAC: usize = 32;
/// Length of a handshake's Noise message, in bytes: ephemeral key and tag, with an empty payload.
pub const NOISE: usize = 32 + 16;
/// Number of bytes of a handshake initiation before its Noise message.
pub const INITIATION_HEAD: usize = 24;
/// Number of bytes of a handshake response before its Noise message.
pub const RESPONSE_HEAD: usize = 12;
/// Kind of an initiation.
const INITIATION: u8 = 1;
/// Identifier of an initiator to its responder.
pub type Hint = [u8; 8];
/// Type and head of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// First message of a handshake.
    Initiation {
        /// Lane of the session, and the number of lanes that the sender wants.
        offer: LaneOffer,
        /// Identifier of the sender.
        hint: Hint,
        /// Sender's index of the new session.
        sender: u32,
        /// Sender's wall clock, nanoseconds since 1970.
        unix_nanos: u64,
    },
    /// Second message of a handshake.
    Response {
        /// Lane of the session, and the number of lanes that the sender wants.
        offer: LaneOffer,
        /// Responder's index of the session.
        sender: u32,
        /// Initiator's index of the session.
        receiver: u32,
    },
    /// Sealed message.
    Transport {
        /// Lane of the session.
        lane: u8,
        /// Receiver's index of the session.
        receiver: u32,
        /// Number of the message in its session and direction; never repeats.
        counter: u64,
    },
}

/// Returns whether a datagram that this gateway sends is an initiation.
pub fn is_initiation(datagram: &[u8]) -> bool {
    datagram.first() == Some(&INITIATION)
}

impl Datagram {
    /// Parses a datagram's head; `None` if its kind or version is unknown, if it is too short, if
    /// the lane or the number of lanes is invalid, or if a handshake message has the wrong length.
    pub fn parse(bytes: &[u8]) -> Option<Datagram> {
        let [kind, version, lane, last] = *bytes.first_chunk()?;
        if version != VERSION || usize::from(lane) >= MAX_LANES {
            return None;
        }
        let offer = || LaneOffer::parse(lane, last);
        let handshake = |head: usize| bytes.len() == head + NOISE + MAC;
        match kind {
            INITIATION if handshake(INITIATION_HEAD) => Some(Datagram::Initiation {
                offer: offer()?,
                hint: *bytes.get(4..)?.first_chunk()?,
                sender: u32_at(bytes, 12)?,
                unix_nanos: u64_at(bytes, 16)?,
            }),
            2 if handshake(RESPONSE_HEAD) => Some(Datagram::Response {
                offer: offer()?,
                sender: u32_at(bytes, 4)?,
                receiver: u32_at(bytes, 8)?,
            }),
            3 if last == 0 && bytes.len() >= TRANSPORT_HEAD + TAG => Some(Datagram::Transport {
                lane,
                receiver: u32_at(bytes, 4)?,
                counter: u64_at(bytes, 8)?,
            }),
            _ => None,
        }
    }

    /// Returns the version in `bytes` if they begin like a datagram of another version.
    pub fn other_version(bytes: &[u8]) -> Option<u8> {
        match *bytes {
            [kind @ 1..=3, version @ 1..=MAX_VERSION, lane, last, ..] => {
                let is_plausible = usize::from(lane) < MAX_LANES && (kind < 3 || last == 0);
                (is_plausible && version != VERSION).then_some(version)
            }
            _ => None,
        }
    }

    /// Appends the head to `out`.
    pub fn emit(self, out: &mut Vec<u8>) {
        match self {
            Datagram::Initiation { offer, hint, sender, unix_nanos } => {
                out.extend([INITIATION, VERSION, offer.lane, offer.division()]);
                out.extend(hint);
                out.extend(sender.to_be_bytes());
                out.extend(unix_nanos.to_be_bytes());
            }
            Datagram::Response { offer, sender, receiver } => {
                out.extend([2, VERSION, offer.lane, offer.division()]);
                out.extend(sender.to_be_bytes());
                out.extend(receiver.to_be_bytes());
            }
            Datagram::Transport { lane, receiver, counter } => {
                out.extend([3, VERSION, lane, 0]);
                out.extend(receiver.to_be_bytes());
                out.extend(counter.to_be_bytes());
            }
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::lanes::LaneCount;
    use proptest::prelude::*;

    #[test]
    fn heads_round_trip() {
        let offer = LaneOffer { lane: 5, wanted: LaneCount::new(16).unwrap(), by_path: false };
        let paths = LaneOffer { lane: 1, wanted: LaneCount::new(2).unwrap(), by_path: true };
        for head in [
            Datagram::Response { offer: paths, sender: 8, receiver: 9 },
            Datagram::Initiation { offer, hint: [3; 8], sender: 7, unix_nanos: 1 << 60 },
            Datagram::Response { offer, sender: 8, receiver: 9 },
            Datagram::Transport { lane: 63, receiver: 10, counter: 11 },
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
                "handshakes have one length"
            );
            bytes.pop();
            for (at, wrong) in [(2, 64), (3, 2), (3, 127)] {
                let mut other = bytes.clone();
                other[at] = wrong;
                assert_eq!(Datagram::parse(&other), None, "invalid lane or number of lanes");
            }
            bytes[1] += 1;
            assert_eq!(Datagram::parse(&bytes), None, "another version");
        }
    }

    #[test]
    fn datagrams_of_other_versions_are_recognized_by_their_head() {
        let mut bytes = Vec::new();
        Datagram::Transport { lane: 5, receiver: 1, counter: 2 }.emit(&mut bytes);
        assert_eq!(Datagram::other_version(&bytes), None);
        bytes[1] += 1;
        assert_eq!(Datagram::other_version(&bytes), Some(VERSION + 1));
        bytes[3] = 1;
        assert_eq!(Datagram::other_version(&bytes), None, "noise");
        let sixteen = [1, VERSION + 1, 5, 15];
        assert_eq!(Datagram::other_version(&sixteen), Some(VERSION + 1));
    }

    /// Earlier versions support only a single lane.
    #[test]
    fn the_heads_of_a_single_lane_are_those_of_earlier_versions() {
        let heads = [
            Datagram::Initiation {
                offer: LaneOffer::SINGLE,
                hint: [3; 8],
                sender: 7,
                unix_nanos: 9,
            },
            Datagram::Response { offer: LaneOffer::SINGLE, sender: 8, receiver: 9 },
            Datagram::Transport { lane: 0, receiver: 10, counter: 11 },
        ];
        for (head, kind) in heads.into_iter().zip(1..) {
            let mut bytes = Vec::new();
            head.emit(&mut bytes);
            assert_eq!(bytes[..4], [kind, 4, 0, 0]);
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes: Vec<u8>) {
            let _ = (Datagram::parse(&bytes), Datagram::other_version(&bytes));
        }
    }
}
