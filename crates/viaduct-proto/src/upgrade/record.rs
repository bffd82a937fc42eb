//! Messages of an upgrade and their bounds, and the record of a proxy as a whole.

use serde::{Deserialize, Serialize};

use super::flow::FlowRecord;
use super::gateway::{ConnectionRecord, GatewayRecord, MAX_CONNECTIONS, PeerRecord, StopRecord};
use super::{FORMAT, MAX_DESCRIPTORS, MAX_MESSAGE, MAX_SERVICE_DESCRIPTORS};

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

/// Service as a whole. Its descriptors: the config and the metrics listener, where present, the
/// locks, and then for each worker its listeners, its source of SYNs, if it has one, and its
/// sockets for links of tunnels.
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
    /// Number of sockets for links of tunnels: the TCP listener, and then the UDP socket of QUIC.
    #[serde(default)]
    pub tunnels: u8,
    /// Far ends of tunnels to which a link is up: bit n for the n-th tunnel that the worker dials.
    #[serde(default)]
    pub tunnels_up: u64,
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
    #[inline] // Compiled with the options of the caller's crate, which optimise for size.
    pub fn emit(&self) -> Result<Vec<u8>, RecordError> {
        self.check()?;
        let bytes = serde_json::to_vec(self)?;
        if bytes.len() > MAX_MESSAGE { Err(RecordError::Long(bytes.len())) } else { Ok(bytes) }
    }

    /// Parses a message that came with this number of descriptors.
    ///
    /// # Errors
    /// The bytes are not a message of this format, a bound is exceeded, or descriptors are missing
    /// or left over.
    #[inline] // As for `emit`.
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
        let most = match self {
            Message::Service(_) => MAX_SERVICE_DESCRIPTORS,
            _ => MAX_DESCRIPTORS,
        };
        range("descriptors", self.descriptors() <= most)
    }
}

impl ServiceRecord {
    fn descriptors(&self) -> usize {
        let workers: usize = self.workers.iter().map(ListenRecord::descriptors).sum();
        let shared = usize::from(self.has_config) + usize::from(self.has_metrics);
        shared + self.locks.len() + workers
    }
}

impl ListenRecord {
    /// Number of the worker's descriptors.
    pub fn descriptors(&self) -> usize {
        let syns = usize::from(self.syns != SynRecord::Unseen);
        usize::from(self.listeners) + syns + usize::from(self.tunnels)
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

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(
            bytes in any::<Vec<u8>>(),
            descriptors in 0..300_usize,
        ) {
            let _ = Message::parse(&bytes, descriptors);
        }
    }

    /// A message of each kind, as [`FORMAT`] 1 writes it.
    const FORMAT_1: &str = include_str!("format_1.jsonl");

    /// Returns the position of a kind in [`FORMAT_1`].
    fn position(message: &Message) -> usize {
        match message {
            Message::Hello { .. } => 0,
            Message::Service(_) => 1,
            Message::Gateway(_) => 2,
            Message::Ready => 3,
            Message::Flows { .. } => 4,
            Message::Peer(_) => 5,
            Message::Connections(_) => 6,
            Message::Cut(_) => 7,
            Message::End => 8,
            Message::Taken => 9,
            Message::Refused { .. } => 10,
        }
    }

    /// A record that has changed, even by a new field with a default, no longer equals the stored
    /// one. It then needs another [`FORMAT`], as the process of the other version may not know the
    /// field.
    #[test]
    fn messages_of_format_1_stay_as_they_are() {
        assert_eq!(FORMAT, 1, "store messages of the new format beside those of format 1");
        for (number, line) in FORMAT_1.lines().enumerate() {
            let message: Message = serde_json::from_str(line).unwrap();
            assert_eq!(position(&message), number, "{line}");
            assert_eq!(String::from_utf8(message.emit().unwrap()).unwrap(), line);
        }
        assert_eq!(FORMAT_1.lines().count(), 11);
    }

    #[test]
    fn fields_that_earlier_records_of_the_format_lack_have_defaults() {
        let listen: ListenRecord = serde_json::from_str(r#"{"listeners":2,"syns":"tap"}"#).unwrap();
        let syns = SynRecord::Tap;
        assert_eq!(listen, ListenRecord { listeners: 2, syns, ..ListenRecord::default() });
        assert_eq!(listen.descriptors(), 3);
    }

    #[test]
    fn bounds_hold_in_both_directions() {
        let service = |listeners| {
            let syns = SynRecord::Tap;
            let workers = vec![ListenRecord { listeners, syns, ..ListenRecord::default() }];
            Message::Service(ServiceRecord { workers, ..ServiceRecord::default() })
        };
        let most = u16::try_from(MAX_SERVICE_DESCRIPTORS).unwrap() - 1;
        let bytes = service(most).emit().unwrap();
        assert!(Message::parse(&bytes, MAX_SERVICE_DESCRIPTORS).is_ok());
        assert!(service(most + 1).emit().is_err());
        let many = serde_json::to_vec(&service(most + 1)).unwrap();
        let parsed = Message::parse(&many, MAX_SERVICE_DESCRIPTORS + 1);
        assert!(matches!(parsed, Err(RecordError::Range("descriptors"))));
        let none = Message::Service(ServiceRecord::default());
        assert!(matches!(none.emit(), Err(RecordError::Range("workers"))));
        let reason = "x".repeat(MAX_TEXT + 1);
        assert!(matches!(Message::Refused { reason }.emit(), Err(RecordError::Range("reason"))));
        let long = vec![b' '; MAX_MESSAGE + 1];
        assert!(matches!(Message::parse(&long, 0), Err(RecordError::Long(_))));
    }
}
