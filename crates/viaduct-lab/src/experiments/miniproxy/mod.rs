//! Miniproxy's figures: effect of split TCP and of early SYN forwarding on short flows.

pub(super) mod connections;
mod contenders;
mod downloads;
pub(super) mod flood;
mod model;
pub(super) mod off_path;
pub(super) mod start;
pub(super) mod throughput;
pub(super) mod ttc;
pub(super) mod upgrade;
