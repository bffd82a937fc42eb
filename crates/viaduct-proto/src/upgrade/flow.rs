//! Records of a proxy's flows.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::MAX_PREFACE;
use super::record::{RecordError, is_short, range};
use crate::split::extension::Onward;
use crate::split::proxy::Addresses;

/// Progress of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// The server has not answered.
    Connecting,
    /// The server has answered.
    Connected,
    /// The client has been told that the server has answered.
    Established,
}

/// A flow with an empty chain. Its descriptors: the client's socket, if there is a client; the
/// server's socket; and for each direction whose pipe holds bytes, the reading and the writing end
/// of the pipe. Times are in nanoseconds of the host's monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// Client's address, or the source that a hop has named.
    pub source: SocketAddr,
    /// Destination of the connection to the server.
    pub to: SocketAddr,
    /// Next hop, if the flow goes through one.
    pub hop: Option<SocketAddr>,
    /// Name of the flow's policy, if there are policies.
    pub policy: Option<String>,
    /// Rate limit in bits a second.
    pub rate: Option<u64>,
    /// Progress.
    pub state: FlowState,
    /// True if the client has been accepted.
    pub has_client: bool,
    /// True if both ends have been connected.
    pub has_opened: bool,
    /// Ends: the client's, the server's.
    pub ends: [EndRecord; 2],
    /// Directions: from the client, and to it.
    pub directions: [DirectionRecord; 2],
    /// Payload bytes sent with the client's request, not counted yet.
    pub pipelined: u64,
    /// Time at which the connection to the server was started.
    pub begun: u64,
    /// Time of the last transfer.
    pub moved: u64,
    /// State of an early connection that waits for its client.
    pub early: Option<EarlyRecord>,
    /// Data for the access log.
    pub account: AccountRecord,
}

/// An end of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// Bytes to send before any payload; at most [`MAX_PREFACE`].
    pub preface: Vec<u8>,
    /// True if the end of stream follows the preface.
    pub ends_after_preface: bool,
    /// True if Viaduct's dead-peer limit (`--dead-after`) applies to the connection.
    pub is_limited: bool,
}

/// A direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionRecord {
    /// Number of bytes in the direction's pipe; 0 if there is no pipe.
    pub held: u64,
    /// True if the source has closed its write side.
    pub ending: bool,
    /// True if the end of stream was read.
    pub ended: bool,
    /// True if the end of stream was sent.
    pub shut: bool,
    /// True if the source has announced an urgent byte.
    pub urgent: bool,
    /// Urgent byte that waits for room.
    pub mark: Option<u8>,
}

/// Early connection whose client has not been accepted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyRecord {
    /// Client of the SYN.
    pub client: SocketAddr,
    /// Destination of the SYN.
    pub to: SocketAddr,
    /// Source and destination that the SYN has named.
    pub signalled: Option<(SocketAddr, SocketAddr)>,
    /// Rest of the route that the SYN has named; open in records of earlier versions.
    #[serde(default)]
    pub onward: Onward,
    /// Time at which it expires.
    pub until: u64,
    /// ID of the SYN in the queue, if the SYN is held.
    pub held: Option<u32>,
}

/// Data of a flow for its line in the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountRecord {
    /// Time of the client's arrival.
    pub begun: u64,
    /// Bytes from the client, and to it.
    pub bytes: [u64; 2],
    /// Protocol of the client's request.
    pub protocol: String,
    /// Destination as the client has named it.
    pub to: Option<String>,
    /// Name that the client has authenticated as.
    pub user: Option<String>,
}

impl EarlyRecord {
    /// Addresses that the SYN has named, if any.
    pub fn addresses(&self) -> Option<Addresses> {
        let (source, destination) = self.signalled?;
        Some(Addresses { source, destination, onward: self.onward })
    }
}

impl FlowRecord {
    /// Number of the flow's descriptors.
    pub fn descriptors(&self) -> usize {
        let pipes = self.directions.iter().filter(|direction| direction.held > 0).count();
        usize::from(self.has_client) + 1 + 2 * pipes
    }

    /// Upper bound of the record's length in a message, in bytes.
    pub fn cost(&self) -> usize {
        const FIXED: usize = 1_600;
        let preface: usize = self.ends.iter().map(|end| end.preface.len()).sum();
        let AccountRecord { to, user, .. } = &self.account;
        let texts = [to, user, &self.policy];
        // In JSON, a byte of a list takes at most four characters, and a byte of a string at
        // most six.
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        FIXED + 4 * preface + 6 * texts
    }

    pub(super) fn check(&self) -> Result<(), RecordError> {
        let AccountRecord { protocol, to, user, .. } = &self.account;
        let texts = [Some(protocol), to.as_ref(), user.as_ref(), self.policy.as_ref()];
        range("account", texts.into_iter().flatten().all(|text| is_short(text)))?;
        range("preface", self.ends.iter().all(|end| end.preface.len() <= MAX_PREFACE))?;
        // An early connection has no client yet, and every other flow has one.
        range("early", self.has_client != self.early.is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::upgrade::Message;

    fn address() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
            any::<([u16; 8], u16)>().prop_map(SocketAddr::from),
        ]
    }

    fn end() -> impl Strategy<Value = EndRecord> {
        (proptest::collection::vec(any::<u8>(), 0..MAX_PREFACE), any::<[bool; 2]>()).prop_map(
            |(preface, [ends_after_preface, is_limited])| EndRecord {
                preface,
                ends_after_preface,
                is_limited,
            },
        )
    }

    fn direction() -> impl Strategy<Value = DirectionRecord> {
        (0..3_u64, any::<[bool; 4]>(), any::<Option<u8>>()).prop_map(
            |(held, [ending, ended, shut, urgent], mark)| DirectionRecord {
                held,
                ending,
                ended,
                shut,
                urgent,
                mark,
            },
        )
    }

    fn flow() -> impl Strategy<Value = FlowRecord> {
        let early = (address(), address(), any::<u64>(), any::<Option<u32>>());
        let texts = ("[a-z0-9]{0,9}", proptest::option::of(".{0,99}"));
        (early, [end(), end()], [direction(), direction()], any::<(bool, u64, [u64; 2])>(), texts)
            .prop_map(|(early, ends, directions, (has_client, time, bytes), (protocol, user))| {
                let (client, to, until, held) = early;
                let signalled = Some((to, client));
                let onward = Onward::Hop(to);
                let early = EarlyRecord { client, to, signalled, onward, until, held };
                FlowRecord {
                    source: client,
                    to,
                    hop: has_client.then_some(to),
                    policy: user.clone(),
                    rate: has_client.then_some(time),
                    state: FlowState::Established,
                    has_client,
                    has_opened: has_client,
                    ends,
                    directions,
                    pipelined: bytes[0],
                    begun: time,
                    moved: time,
                    early: (!has_client).then_some(early),
                    account: AccountRecord { begun: time, bytes, protocol, to: None, user },
                }
            })
    }

    #[test]
    fn early_connections_keep_the_rest_of_their_route() {
        let at: SocketAddr = "192.0.2.7:7000".parse().unwrap();
        let onward = Onward::Hop(at);
        let signalled = Some((at, at));
        let early = EarlyRecord { client: at, to: at, signalled, onward, until: 1, held: None };
        assert_eq!(early.addresses(), Some(Addresses { source: at, destination: at, onward }));
        let mut record = serde_json::to_value(early).unwrap();
        assert_eq!(serde_json::from_value::<EarlyRecord>(record.clone()).unwrap(), early);
        record.as_object_mut().unwrap().remove("onward");
        let earlier: EarlyRecord = serde_json::from_value(record).unwrap();
        assert_eq!(earlier.addresses(), Some(Addresses::new(at, at)));
    }

    proptest! {
        #[test]
        fn flows_pass_unaltered_within_their_cost(flow in flow()) {
            let cost = flow.cost();
            let message = Message::Flows { worker: 3, flows: vec![flow] };
            let bytes = message.emit().unwrap();
            prop_assert!(bytes.len() <= cost, "{} bytes, cost {cost}", bytes.len());
            prop_assert_eq!(Message::parse(&bytes, message.descriptors()).unwrap(), message);
        }

        #[test]
        fn a_message_needs_exactly_its_descriptors(flow in flow(), wrong in 0..9_usize) {
            let message = Message::Flows { worker: 0, flows: vec![flow] };
            let right = message.descriptors();
            let parsed = Message::parse(&message.emit().unwrap(), wrong);
            prop_assert_eq!(parsed.is_ok(), wrong == right);
        }
    }
}
