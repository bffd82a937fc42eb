//! Remote names: programs look names up before they connect, and are given placeholders, addresses that
//! stand for a name on this machine and nowhere else. Whoever connects to one goes to the name, which
//! travels on as it is and is looked up at the far end. No query leaves.
//!
//! ```text
//!   program ── A mars.example? ──▶ Book::answer ── 198.18.0.7 ──▶ program
//!   program ── connect 198.18.0.7:443 ──▶ Book::place ──▶ mars.example:443 ──▶ a proxy, a tunnel
//! ```
//!
//! Addresses are those of IPv4 that are kept for tests of networks (RFC 2544), and of IPv6 a prefix that
//! nobody is given (RFC 4193); a name has one of each. What cannot be told from a name alone (mail
//! exchangers, services, texts) is answered as if there were none. The bytes are in [`wire`].

mod book;
pub mod wire;

pub use book::{Book, Pool, PoolError};

#[cfg(test)]
mod tests;
