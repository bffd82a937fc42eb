//! Remote names: a program's DNS queries are answered with placeholder addresses, each of which
//! stands for a name on this machine only. A connection to a placeholder goes to its name,
//! which is passed on unresolved and looked up at the far end. No query leaves the machine.
//!
//! ```text
//!   program ── A mars.example? ──▶ Book::answer ── 198.18.0.7 ──▶ program
//!   program ── connect 198.18.0.7:443 ──▶ Book::place ──▶ mars.example:443 ──▶ a proxy, a tunnel
//! ```
//!
//! IPv4 placeholders come from the prefix for benchmark tests of networks (RFC 2544), IPv6 ones
//! from a unique local prefix (RFC 4193); a name has one of each. Queries that cannot be
//! answered from the name alone (mail exchangers, services, texts) get an answer without data.
//! The wire format is in [`wire`].

mod book;
pub mod wire;

pub use book::{Book, Pool, PoolError};

#[cfg(test)]
mod tests;
