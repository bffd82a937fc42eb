//! The controller of repairs: how many a link's losses ask for.

pub mod bursts;
pub mod overhead;
