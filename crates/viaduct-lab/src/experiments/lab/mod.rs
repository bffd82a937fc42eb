//! Experiments about the lab itself: what it can carry and how true it is.

mod fates;
pub(super) mod forwarding_plain;
pub(super) mod link;
pub(super) mod link_capacity;
mod probe;
