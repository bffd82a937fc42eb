//! Split TCP: how the next hop of a chain learns where a flow goes (Miniproxy, section 5).
//!
//! ```text
//!   client ──SYN──▶ hop 1 ──SYN + where──▶ hop 2 ──SYN──▶ server
//!
//!   where    a TCP option in the SYN                option   the hop can connect at once
//!            PROXY protocol v2, first bytes         proxy    also as Fast Open data
//!            SOCKS5, HTTP CONNECT                   socks, connect   for programs that speak them
//! ```
//!
//! A parser is given all bytes that have come so far and says whether they are whole, too few or
//! wrong; it keeps nothing between calls, so that it cannot be led astray by how bytes are cut.

pub mod connect;
pub mod early;
pub mod option;
pub mod preface;
pub mod proxy;
pub mod socks;
pub mod socks_client;
pub mod socks_datagram;
pub mod syn;

/// What the first bytes of a stream turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// A whole message, and how many bytes it took.
    Whole(T, usize),
    /// More bytes are needed to tell.
    Short,
    /// Not this protocol, or not as it must be.
    Wrong(&'static str),
}

impl<T> Parsed<T> {
    /// The same with what it holds changed.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Parsed::Whole(value, len) => Parsed::Whole(change(value), len),
            Parsed::Short => Parsed::Short,
            Parsed::Wrong(why) => Parsed::Wrong(why),
        }
    }

    /// The same with so many bytes before it.
    pub fn behind(self, bytes: usize) -> Parsed<T> {
        match self {
            Parsed::Whole(value, len) => Parsed::Whole(value, bytes + len),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
