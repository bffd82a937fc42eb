//! What is known of a connection's path.

use crate::time::Duration;

/// What the kernel has measured of one of a chain's connections, as far as handlers ask for it. It is
/// asked by [`Downstream::measure`](super::Downstream::measure), and answered from what the driver has
/// said last ([`Chain::set_measure`](super::Chain::set_measure)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Bytes that the other end has acknowledged since the connection began.
    pub acked: u64,
    /// Bytes that were given to it and are not acknowledged.
    pub held: u64,
    /// Those of them that have not been sent once.
    pub unsent: u64,
    /// Segments that were sent again since it began.
    pub again: u64,
    /// The round trip, smoothed; 0 while nothing is known.
    pub rtt: Duration,
    /// The shortest round trip of the last minutes; 0 while nothing is known.
    pub shortest: Duration,
    /// Bytes of a full segment.
    pub segment: u32,
}
