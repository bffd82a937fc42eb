//! Linux for Viaduct.

pub mod netns;
pub mod process;
