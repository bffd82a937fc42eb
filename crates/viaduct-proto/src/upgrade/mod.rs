//! Upgrade of a service without a cut: the running process hands its sockets and flows to a process
//! of the new program, and each step leaves exactly one of the two responsible for each of them.
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
//! killed before that, the old one goes on with all of its flows ([`Giver::is_released`]). If the
//! old process is killed before `End`, the new one ends, and no more is lost than by that kill
//! alone; after `End` the new one has everything and serves.
//!
//! A gateway sends `Gateway` in place of `Service`, and its peers' sessions in place of `Flows`;
//! `gateway` has the order.
//!
//! A message is a record of JSON, with the descriptors that it names beside it. Records have a
//! format number: a program that does not read the old process's format refuses before anything is
//! changed.

mod conversation;
mod gateway;
mod record;

pub use conversation::{Giver, GiverStep, Taker, TakerStep, UpgradeError};
pub use gateway::{
    ConnectionRecord, ControlRecord, CutRecord, GatewayRecord, LiveRecord, LossesRecord,
    MAX_CONNECTIONS, MAX_COUNTS, Millionths, PeerRecord, SessionKey, SessionRecord,
};
pub use record::{
    AccountRecord, DirectionRecord, EarlyRecord, EndRecord, FlowRecord, FlowState, ListenRecord,
    Message, RecordError, ServiceRecord, SynRecord,
};

/// Format of the records that this version writes and reads.
pub const FORMAT: u32 = 1;
/// Maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = 96 << 10;
/// Maximum number of descriptors of a message (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;
/// Maximum number of bytes that wait for one end of a flow in a record; a flow with more stays in
/// the old process.
pub const MAX_PREFACE: usize = 2 << 10;
