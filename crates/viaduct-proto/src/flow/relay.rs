//! Relay for datagrams, provided by the last handler of a chain. Datagrams go to the relay with
//! a header that names the far end, and return with one that names their source.
//! [`super::relays`] manages several.

use super::Address;

/// Protocol of a relay. A relay lasts as long as the connection to [`Relay::via`] over which it
/// was negotiated.
pub trait Relay {
    /// Destination of that connection.
    fn via(&self) -> &Address;

    /// First message of the negotiation. Called once.
    fn begin(&mut self) -> Vec<u8>;

    /// Handles bytes received on the connection.
    ///
    /// # Errors
    /// The negotiation failed; the text is the reason, for the log.
    fn hear(&mut self, data: &[u8]) -> Result<Agreed, String>;

    /// Datagram to the relay that carries `data` to `to`; `None` if its header cannot express
    /// `to`.
    fn wrap(&self, to: &Address, data: &[u8]) -> Option<Vec<u8>>;

    /// Source and payload of a datagram from the relay.
    ///
    /// # Errors
    /// The datagram is unusable.
    fn unwrap<'a>(&self, datagram: &'a [u8]) -> Result<(Address, &'a [u8]), Useless>;
}

/// Progress of the negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// Send this, if it is not empty, and wait for more bytes.
    NotYet(Vec<u8>),
    /// Address of the relay. An unspecified one stands for the server's address.
    At(Address),
}

/// Reason to drop a datagram from a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Useless {
    /// The datagram is a fragment.
    Fragment,
    /// The header is invalid.
    Garbage,
}
