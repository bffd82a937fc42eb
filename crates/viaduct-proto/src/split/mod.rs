//! Split TCP: protocols by which a hop, a proxy that splits a TCP connection, tells the next hop a
//! flow's destination (Miniproxy, section 5).
//!
//! ```text
//!   client ──SYN──▶ hop 1 ──SYN + where──▶ hop 2 ──SYN──▶ server
//!
//!   where    a TCP option in the SYN                option   the hop can connect at once
//!            PROXY protocol v2, first bytes         proxy    also as Fast Open data; with the rest
//!                                                            of the route, if that was chosen
//!            SOCKS5, HTTP CONNECT                   socks, connect   for programs that speak them
//! ```
//!
//! A parser gets all bytes received so far and returns whether they are complete, too short or
//! invalid. It keeps no state between calls, so segmentation cannot affect the result.

pub mod connect;
pub mod early;
pub mod extension;
pub mod option;
pub mod preface;
pub mod proxy;
pub mod socks;
pub mod socks_client;
pub mod socks_datagram;
pub mod syn;

/// Result of parsing the first bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// A complete message, and its length in bytes.
    Whole(T, usize),
    /// More bytes are needed to decide.
    Short,
    /// Another protocol, or an invalid message; the text is the reason.
    Wrong(&'static str),
}

impl<T> Parsed<T> {
    /// Applies `change` to the message.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Parsed::Whole(value, len) => Parsed::Whole(change(value), len),
            Parsed::Short => Parsed::Short,
            Parsed::Wrong(why) => Parsed::Wrong(why),
        }
    }

    /// Adds `bytes` to the length, for a message that follows a prefix of `bytes` bytes.
    pub fn behind(self, bytes: usize) -> Parsed<T> {
        match self {
            Parsed::Whole(value, len) => Parsed::Whole(value, bytes + len),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
