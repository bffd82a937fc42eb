//! Linux for Viaduct.

pub mod netns;
pub mod process;
pub mod realtime;
pub mod stamp;
pub mod tun;
