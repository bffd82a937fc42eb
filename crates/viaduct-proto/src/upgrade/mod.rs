//! Upgrade of a service without interruption: the running process hands its sockets and flows to a
//! process of the new program. After each step, exactly one of the two processes is responsible for
//! each socket and each flow.
//!
//! ```text
//!   old process (Giver)                          new process (Taker)
//!        ◀── Hello: state formats it reads ────────────┤ started by the old process
//!        ├── Service: listeners, taps, locks ─────────▶│ reads its config, prepares everything
//!        ◀── Ready ────────────────────────────────────┤
//!   accepts no more
//!        ├── Flows: sockets, pipes, counters ─────────▶│ (repeated)
//!        ├── End ─────────────────────────────────────▶│
//!        ◀── Taken ────────────────────────────────────┤ serves
//!   drains the other flows
//! ```
//!
//! The old process keeps its copy of each descriptor until `Taken`. If the new process fails or is
//! killed before that, the old one continues with all of its flows ([`Giver::is_released`]). If the
//! old process is killed before `End`, the new one ends too, and the loss is the same as without an
//! upgrade. After `End` the new one has everything and serves.
//!
//! A gateway sends `Gateway` in place of `Service`, and its peers' sessions in place of `Flows`. In
//! split mode it sends `Service` and `Flows`, too. The module `gateway` shows the order.
//!
//! A message is a JSON record. The descriptors that it names are sent with it; those for which it
//! has no room are sent before it, with messages [`MORE`]. `Hello` lists the record formats that
//! the new program reads. If the old program's [`FORMAT`] is not among them, the upgrade is refused
//! before anything is changed.

mod conversation;
mod flow;
mod gateway;
mod record;

pub use conversation::{Giver, GiverStep, Taker, TakerStep, UpgradeError};
pub use flow::{AccountRecord, DirectionRecord, EarlyRecord, EndRecord, FlowRecord, FlowState};
pub use gateway::{
    ConnectionRecord, ControlRecord, GatewayRecord, LiveRecord, LossesRecord, MAX_CONNECTIONS,
    MAX_COUNTS, Millionths, PeerRecord, SessionKey, SessionRecord, StopRecord,
};
pub use record::{ListenRecord, Message, RecordError, ServiceRecord, SynRecord};

/// Format of the records that this version writes and reads.
pub const FORMAT: u32 = 1;
/// Maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = 96 << 10;
/// Maximum number of descriptors in a message (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;
/// Maximum number of descriptors of a proxy as a whole.
pub const MAX_SERVICE_DESCRIPTORS: usize = 1 << 14;
/// Message that only carries descriptors of the next one.
pub const MORE: &[u8] = b"+";
/// Maximum number of bytes in a record that wait to be sent to one end of a flow. A flow with more
/// stays in the old process.
pub const MAX_PREFACE: usize = 2 << 10;
