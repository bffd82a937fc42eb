//! Socket calls of wrapped programs, re-exported from the crate [`viaduct_wrap`]; and `shared`, the
//! protocol between runs and the master that they share.

pub mod shared;

pub use viaduct_wrap::*;
