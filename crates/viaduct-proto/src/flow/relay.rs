//! A way for datagrams by a relay, where the last handler of a chain knows one: they go to the relay with
//! a header that names the far end, and come back so. [`super::relays`] keeps several.

use super::Address;

/// What a handler has to say of one. It lasts as long as the connection to [`Relay::via`] on which it was
/// agreed on.
pub trait Relay {
    /// Whom that connection leads to.
    fn via(&self) -> &Address;

    /// What is said first; asked for once.
    fn begin(&mut self) -> Vec<u8>;

    /// Hears what was said on it.
    ///
    /// # Errors
    /// There will be no relay: why, for people.
    fn hear(&mut self, data: &[u8]) -> Result<Agreed, String>;

    /// What is to be sent to the relay for `data` to come to `to`; `None` if it cannot say where that is.
    fn wrap(&self, to: &Address, data: &[u8]) -> Option<Vec<u8>>;

    /// From whom a datagram of the relay is, and what it carries.
    ///
    /// # Errors
    /// It is of no use.
    fn unwrap<'a>(&self, datagram: &'a [u8]) -> Result<(Address, &'a [u8]), Useless>;
}

/// How far it has come to an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// This is to be said, if it is anything, and more to be heard.
    NotYet(Vec<u8>),
    /// The relay is there; an address that is unspecified is that of whoever said it.
    At(Address),
}

/// Why a datagram of a relay is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Useless {
    /// It is a piece of a longer one.
    Fragment,
    /// It has no header that could be understood.
    Garbage,
}
