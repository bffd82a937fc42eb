//! Figures of Viaduct at scale: many sites, and services of several machines.

pub(super) mod hops;
pub(super) mod peers;
