//! Linux for Viaduct.

pub mod realtime;
pub mod tun;
