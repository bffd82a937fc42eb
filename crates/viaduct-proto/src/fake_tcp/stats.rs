//! Counters of fake TCP, copied by value.

use serde::{Deserialize, Serialize};

/// Counters of fake TCP, since the gateway started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FakeTcpStats {
    /// Currently open connections.
    pub connections: u64,
    /// Connections that this gateway has started to open, answered or not.
    pub opened: u64,
    /// Connections that this gateway has accepted, each at its first authentic datagram.
    pub accepted: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams dropped because no connection was open.
    pub unsent: u64,
    /// Datagrams received, authentic or not.
    pub received: u64,
    /// SYNs received.
    pub syns: u64,
    /// SYNs that were not answered because they exceed the limit per second, belong to a live
    /// connection, or are for a port that does not accept connections.
    pub syns_refused: u64,
    /// Resets and FINs received, which are ignored.
    pub resets: u64,
    /// Malformed segments, and SYN-ACKs that do not answer a pending SYN, including repeated
    /// SYN-ACKs.
    pub refused: u64,
}
