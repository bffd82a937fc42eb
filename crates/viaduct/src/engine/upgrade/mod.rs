//! Upgrade of a proxy: the listeners, the SYN tap, the locks of its rules and the flows go to the
//! new process; flows with handlers, in tunnels or over Trickles stay and are drained
//! ([`crate::handover`] has the rest).
//!
//! ```text
//!   handover::Upgrader ──▶ giver ── Export, SendFlows ──▶ workers
//!                            ┊ messages
//!   handover::Takeover ──▶ takeover ── Loops::restore ──▶ new workers
//! ```

mod giver;
mod takeover;

pub use giver::ProxyHandover;
pub use takeover::{Inheritance, take_flows};
