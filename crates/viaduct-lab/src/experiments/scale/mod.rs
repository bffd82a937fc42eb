//! Figures of Viaduct at scale: many sites, several workers, and services of several machines.
//!
//! Modules other than the experiments:
//!
//! | file | contains |
//! |---|---|
//! | `served` | files that all replicas serve, and downloads from the replicas |
//! | `service` | replicas in a rack, and two boxes in front of them |
//! | `anycast` | replicas at different distances, which announce one address |

mod anycast;
pub(super) mod cores;
pub(super) mod hops;
pub(super) mod paths;
pub(super) mod peers;
pub(super) mod rack;
pub(super) mod replicas;
mod served;
mod service;
