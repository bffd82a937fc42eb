//! Linux for Viaduct.

pub mod realtime;
pub mod stamp;
pub mod tun;
