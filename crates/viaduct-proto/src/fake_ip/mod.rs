//! Remote names: a program's DNS queries are answered with fake IPs, addresses that stand for a
//! name on this machine only. A connection to a fake IP becomes a connection to the name, which is
//! passed on unresolved and resolved at the far end. No DNS query leaves the machine.
//!
//! ```text
//!   program ── A mars.example? ──▶ FakeIpPool::answer ── 198.18.0.7 ──▶ program
//!   program ── connect 198.18.0.7:443 ──▶ FakeIpPool::destination
//!                                           └▶ mars.example:443 ──▶ a proxy, a tunnel
//! ```
//!
//! IPv4 fake IPs come from the prefix for benchmark tests of networks (RFC 2544), IPv6 ones from a
//! unique local prefix (RFC 4193); a name has one of each. Queries that cannot be answered from the
//! name alone (MX, SRV and TXT records) get an answer without data. The wire format is in [`wire`].

mod pool;
pub mod wire;

pub use pool::{FakeIpPool, FakeIpPrefix, FakeIpPrefixError};

#[cfg(test)]
mod tests;
