//! Miniproxy's figures: what splitting TCP and forwarding the SYN early do for short flows.

pub(super) mod connections;
mod contenders;
mod downloads;
pub(super) mod flood;
mod model;
pub(super) mod off_path;
pub(super) mod start;
pub(super) mod throughput;
pub(super) mod ttc;
