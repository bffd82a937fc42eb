//! Measurements of a connection's path.

use crate::time::Duration;

/// Kernel's measurements of one of a chain's connections, as far as handlers use them.
/// [`Downstream::measure`](super::Downstream::measure) returns the last values that the driver
/// has set ([`Chain::set_measure`](super::Chain::set_measure)), and adds the bytes that wait in the
/// chain for the connection to `held` and `unsent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Bytes acknowledged by the other end since the connection began.
    pub acked: u64,
    /// Bytes written to the connection and not acknowledged.
    pub held: u64,
    /// Bytes of `held` that have never been sent.
    pub unsent: u64,
    /// Segments retransmitted since the connection began.
    pub again: u64,
    /// Smoothed round-trip time; 0 if unknown.
    pub rtt: Duration,
    /// Minimum round-trip time of the last minutes; 0 if unknown.
    pub shortest: Duration,
    /// Bytes of a full segment (MSS).
    pub segment: u32,
}
