//! Records of an upgrade, and their bounds.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::gateway::{ConnectionRecord, GatewayRecord, MAX_CONNECTIONS, PeerRecord, StopRecord};
use super::{FORMAT, MAX_DESCRIPTORS, MAX_MESSAGE, MAX_PREFACE};

/// Maximum number of workers.
const MAX_WORKERS: usize = 1024;
/// Maximum length of a text in a record, in bytes.
const MAX_TEXT: usize = 1 << 10;

/// Message between the old and the new process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// New process: the formats that it reads. This message is the same in all formats.
    Hello {
        /// Version of the program.
        version: String,
        /// Oldest format that it reads.
        oldest: u32,
        /// Newest format that it reads.
        newest: u32,
    },
    /// Old process: the service, if it is a proxy.
    Service(ServiceRecord),
    /// Old process: the service, if it is a gateway.
    Gateway(GatewayRecord),
    /// New process: every step that can fail has succeeded.
    Ready,
    /// Old process: some flows.
    Flows {
        /// Number of the worker that owned the flows.
        worker: u32,
        /// The flows.
        flows: Vec<FlowRecord>,
    },
    /// Old process: a peer of a gateway.
    Peer(Box<PeerRecord>),
    /// Old process: some connections of fake TCP.
    Connections(Vec<ConnectionRecord>),
    /// Old process: it has stopped encoding.
    Cut(StopRecord),
    /// Old process: no more records follow.
    End,
    /// New process: it serves.
    Taken,
    /// Either process: the upgrade has failed, and the old process continues.
    Refused {
        /// Reason, in one line.
        reason: String,
    },
}

/// Service as a whole. Its descriptors: the config, the metrics listener, the locks, and then for
/// each worker its listeners and its source of SYNs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRecord {
    /// Version of the old program.
    pub version: String,
    /// True if the text of the config file in force is passed as a memory file (`memfd_create`).
    pub has_config: bool,
    /// True if there is a listener for metrics.
    pub has_metrics: bool,
    /// True if there is a journal of changes to the machine.
    pub has_journal: bool,
    /// Names of the instances whose locks are passed.
    pub locks: Vec<String>,
    /// Workers.
    pub workers: Vec<ListenRecord>,
}

/// Listen set of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenRecord {
    /// Number of listeners.
    pub listeners: u16,
    /// Source of SYNs.
    pub syns: SynRecord,
}

/// Source of SYNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SynRecord {
    /// None.
    #[default]
    Unseen,
    /// A tap.
    Tap,
    /// A queue that holds SYNs.
    Queue,
}

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
    /// Name of its policy, if there are policies.
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
    /// Time at which it expires.
    pub until: u64,
    /// ID of the SYN in the queue, if it is held.
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

/// Errors of a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not a message of this format.
    #[error("not a message of format {FORMAT}: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Longer than [`MAX_MESSAGE`].
    #[error("a message of {0} bytes; at most {MAX_MESSAGE} are possible")]
    Long(usize),
    /// The number of descriptors differs from that in the record.
    #[error("{found} descriptors came with a message that names {named}")]
    Descriptors {
        /// Number that came.
        found: usize,
        /// Number that the record names.
        named: usize,
    },
    /// A value out of range.
    #[error("{0} out of range")]
    Range(&'static str),
}

impl Message {
    /// Returns the message as bytes.
    ///
    /// # Errors
    /// A bound is exceeded.
    #[inline] // Compiled with the caller's options: for size.
    pub fn emit(&self) -> Result<Vec<u8>, RecordError> {
        self.check()?;
        let bytes = serde_json::to_vec(self)?;
        if bytes.len() > MAX_MESSAGE { Err(RecordError::Long(bytes.len())) } else { Ok(bytes) }
    }

    /// Parses a message that came with this number of descriptors.
    ///
    /// # Errors
    /// The bytes are no message of this format, a bound is exceeded, or descriptors are missing or
    /// left over.
    #[inline] // As above.
    pub fn parse(bytes: &[u8], descriptors: usize) -> Result<Message, RecordError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(RecordError::Long(bytes.len()));
        }
        let message: Message = serde_json::from_slice(bytes)?;
        message.check()?;
        let named = message.descriptors();
        if named != descriptors {
            return Err(RecordError::Descriptors { found: descriptors, named });
        }
        Ok(message)
    }

    /// Number of descriptors that the message names.
    pub fn descriptors(&self) -> usize {
        match self {
            Message::Service(service) => service.descriptors(),
            Message::Gateway(gateway) => gateway.descriptors(),
            Message::Flows { flows, .. } => flows.iter().map(FlowRecord::descriptors).sum(),
            _ => 0,
        }
    }

    fn check(&self) -> Result<(), RecordError> {
        match self {
            Message::Hello { version, .. } => range("version", is_short(version))?,
            Message::Refused { reason } => range("reason", is_short(reason))?,
            Message::Service(service) => {
                range("version", is_short(&service.version))?;
                range("workers", (1..=MAX_WORKERS).contains(&service.workers.len()))?;
                range("locks", service.locks.iter().all(|lock| is_short(lock)))?;
            }
            Message::Flows { flows, .. } => flows.iter().try_for_each(FlowRecord::check)?,
            Message::Gateway(gateway) => gateway.check()?,
            Message::Peer(peer) => peer.check()?,
            Message::Connections(all) => range("connections", all.len() <= MAX_CONNECTIONS)?,
            Message::Cut(_) | Message::Ready | Message::End | Message::Taken => {}
        }
        range("descriptors", self.descriptors() <= MAX_DESCRIPTORS)
    }
}

impl ServiceRecord {
    fn descriptors(&self) -> usize {
        let each = |of: &ListenRecord| {
            usize::from(of.listeners) + usize::from(of.syns != SynRecord::Unseen)
        };
        let workers: usize = self.workers.iter().map(each).sum();
        let shared = usize::from(self.has_config) + usize::from(self.has_metrics);
        shared + self.locks.len() + workers
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

    fn check(&self) -> Result<(), RecordError> {
        let AccountRecord { protocol, to, user, .. } = &self.account;
        let texts = [Some(protocol), to.as_ref(), user.as_ref(), self.policy.as_ref()];
        if !texts.into_iter().flatten().all(|text| is_short(text)) {
            return Err(RecordError::Range("account"));
        }
        if self.ends.iter().any(|end| end.preface.len() > MAX_PREFACE) {
            return Err(RecordError::Range("preface"));
        }
        // An early connection has no client yet, and every other flow has one.
        if self.has_client == self.early.is_some() {
            return Err(RecordError::Range("early"));
        }
        Ok(())
    }
}

pub(super) fn is_short(text: &str) -> bool {
    text.len() <= MAX_TEXT
}

/// Returns an error about `what` unless `is_right`.
pub(super) fn range(what: &'static str, is_right: bool) -> Result<(), RecordError> {
    if is_right { Ok(()) } else { Err(RecordError::Range(what)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                let early = EarlyRecord { client, to, signalled, until, held };
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

        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(
            bytes in any::<Vec<u8>>(),
            descriptors in 0..300_usize,
        ) {
            let _ = Message::parse(&bytes, descriptors);
        }
    }

    #[test]
    fn bounds_hold_in_both_directions() {
        let service = |listeners| {
            let syns = SynRecord::Tap;
            let workers = vec![ListenRecord { listeners, syns }];
            Message::Service(ServiceRecord { workers, ..ServiceRecord::default() })
        };
        let most = u16::try_from(MAX_DESCRIPTORS).unwrap() - 1;
        let bytes = service(most).emit().unwrap();
        assert!(Message::parse(&bytes, MAX_DESCRIPTORS).is_ok());
        assert!(service(most + 1).emit().is_err());
        let many = serde_json::to_vec(&service(most + 1)).unwrap();
        assert!(matches!(Message::parse(&many, 254), Err(RecordError::Range("descriptors"))));
        let none = Message::Service(ServiceRecord::default());
        assert!(matches!(none.emit(), Err(RecordError::Range("workers"))));
        let reason = "x".repeat(MAX_TEXT + 1);
        assert!(matches!(Message::Refused { reason }.emit(), Err(RecordError::Range("reason"))));
        let long = vec![b' '; MAX_MESSAGE + 1];
        assert!(matches!(Message::parse(&long, 0), Err(RecordError::Long(_))));
    }
}
