//! Outcome of sent datagrams.

/// Numbers of datagrams of one or more [`send`](super::UdpBatch::send) calls, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Handed to the kernel.
    pub sent: u64,
    /// Longer than the path MTU (`EMSGSIZE`).
    pub too_long: u64,
    /// No room in a queue (`ENOBUFS`, `ENOMEM`, `EAGAIN`).
    pub no_buffer: u64,
    /// Not sent, as the peer's host has refused an earlier datagram because no socket has the port
    /// (`ECONNREFUSED`).
    pub refused: u64,
    /// Failed with any other error, for example because there is no route or a firewall refuses.
    pub other: u64,
}

impl SendReport {
    /// Returns the number of datagrams that were not sent.
    pub fn failed(&self) -> u64 {
        self.too_long + self.no_buffer + self.refused + self.other
    }

    pub(crate) fn count(&mut self, error: Option<i32>, datagrams: u64) {
        *match error {
            Some(libc::EMSGSIZE) => &mut self.too_long,
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => &mut self.no_buffer,
            Some(libc::ECONNREFUSED) => &mut self.refused,
            _ => &mut self.other,
        } += datagrams;
    }
}
