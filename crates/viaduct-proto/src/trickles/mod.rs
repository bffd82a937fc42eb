//! Trickles: a transport whose servers keep nothing per connection (Trickles, section 2).

mod bytes;
pub mod client;
pub mod continuation;
pub mod cwnd;
pub mod keys;
pub mod nonce;
pub mod packet;
pub mod piece;
pub mod plan;
pub mod proof;
pub mod replay;
pub mod server;
pub mod wire;

#[cfg(test)]
mod tests;
