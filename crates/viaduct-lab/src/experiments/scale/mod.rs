//! Figures of Viaduct at scale: many sites, several workers, and services of several machines.

pub(super) mod cores;
pub(super) mod hops;
pub(super) mod peers;
