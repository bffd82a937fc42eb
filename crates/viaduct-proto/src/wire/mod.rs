//! Typed views of other protocols' headers, validated when they are parsed.

pub(crate) mod checksum;
pub mod datagram;
pub mod ip;
pub mod offload;
pub mod refusal;
mod tcp_option;
pub mod tcp_sack;
pub mod tcp_syn;
pub mod tcp_timestamp;
pub mod transport;
