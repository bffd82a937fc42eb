//! Socket calls of wrapped programs, as the crate [`viaduct_wrap`] has them; and `shared`, the
//! protocol between runs and a master that they share, which speaks of flows.

pub mod shared;

pub use viaduct_wrap::*;
