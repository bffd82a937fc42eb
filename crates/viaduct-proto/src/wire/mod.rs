//! Views of other protocols' headers: checked once, here, and typed from then on.

pub mod datagram;
pub mod ip;
pub mod offload;
pub mod refusal;
mod tcp_option;
pub mod tcp_sack;
pub mod tcp_syn;
pub mod tcp_timestamp;
pub mod transport;
