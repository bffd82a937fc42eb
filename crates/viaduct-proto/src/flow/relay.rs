//! Relay for datagrams, provided by the last handler of a chain. Datagrams to the relay have a
//! header that names the far end; datagrams from the relay have a header that names their source.
//! [`super::relays`] manages several relays.

use super::Address;

/// Protocol of a relay. The relay lasts as long as the connection to [`Relay::via`] over which it
/// was negotiated.
pub trait Relay {
    /// Destination of the connection over which the relay is negotiated.
    fn via(&self) -> &Address;

    /// First message of the negotiation. Called once.
    fn begin(&mut self) -> Vec<u8>;

    /// Handles bytes from the connection. Errors: the negotiation's failure, for the log.
    fn handle_bytes(&mut self, data: &[u8]) -> Result<RelayProgress, String>;

    /// Datagram to the relay that carries `data` for `to`; `None` if its header cannot
    /// express `to`.
    fn wrap(&self, to: &Address, data: &[u8]) -> Option<Vec<u8>>;

    /// Source and payload of a datagram from the relay. Errors: the datagram is unusable.
    fn unwrap<'a>(&self, datagram: &'a [u8]) -> Result<(Address, &'a [u8]), DatagramError>;
}

/// Progress of the negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayProgress {
    /// Send these bytes, if there are any, and wait for more.
    Send(Vec<u8>),
    /// Address of the relay. An unspecified address stands for that of the server.
    Done(Address),
}

/// Reason to drop a datagram from a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramError {
    /// The datagram is a fragment.
    Fragment,
    /// The header is invalid.
    Malformed,
}
