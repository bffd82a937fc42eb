//! Datagrams of the repair channel, and their formats. All integers are big-endian.
//!
//! A datagram between gateways is one of:
//!
//! ```text
//!  initiation   kind=1 version 0 0 | hint 8 | sender index 4 | unix time ns 8 | Noise 48 | mac 32
//!  response     kind=2 version 0 0 | sender index 4 | receiver index 4 | Noise 48 | mac 32
//!  transport    kind=3 version 0 0 | receiver index 4 | counter 8 | sealed message | tag 16
//! ```
//!
//! The hint identifies the initiator to the responder: a value that only the two can derive, one
//! for each direction, so that the peer is found without trying the keys of all peers. A sealed
//! message consists of sections ([`super::section`]).

/// Version of the whole format; datagrams of other versions are refused.
pub const VERSION: u8 = 4;
/// Bytes before the sealed message of a transport datagram; they are authenticated with it.
pub const TRANSPORT_HEAD: usize = 16;
/// Bytes of an authentication tag.
pub const TAG: usize = 16;
/// Bytes of a handshake's MAC.
pub const MAC: usize = 32;
/// Bytes of a handshake's Noise message: ephemeral key and tag, with an empty payload.
pub const NOISE: usize = 32 + 16;
/// Bytes of a handshake initiation before its Noise message.
pub const INITIATION_HEAD: usize = 24;
/// Bytes of a handshake response before its Noise message.
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
        /// Identifies the sender, see [`Hint`].
        hint: Hint,
        /// Sender's index of the new session.
        sender: u32,
        /// Sender's wall clock, nanoseconds since 1970.
        unix_nanos: u64,
    },
    /// Second message of a handshake.
    Response {
        /// Responder's index of the session.
        sender: u32,
        /// Initiator's index of the session.
        receiver: u32,
    },
    /// Sealed message.
    Transport {
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
    /// Parses a datagram's head; `None` if its kind or version is unknown, if it is too short,
    /// or if a handshake message has the wrong length.
    pub fn parse(bytes: &[u8]) -> Option<Datagram> {
        let (kind, version) = (*bytes.first()?, *bytes.get(1)?);
        if version != VERSION || bytes.get(2..4)? != [0, 0] {
            return None;
        }
        let handshake = |head: usize| bytes.len() == head + NOISE + MAC;
        match kind {
            INITIATION if handshake(INITIATION_HEAD) => Some(Datagram::Initiation {
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

    /// Returns the version in `bytes` if they begin like a datagram of another version.
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
                out.extend([INITIATION, VERSION, 0, 0]);
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

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
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

    proptest! {
        #[test]
        fn parsing_never_panics(bytes: Vec<u8>) {
            let _ = (Datagram::parse(&bytes), Datagram::other_version(&bytes));
        }
    }
}
