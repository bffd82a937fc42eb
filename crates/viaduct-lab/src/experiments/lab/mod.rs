//! Experiments about the lab itself: its capacity and accuracy.

mod fates;
pub(super) mod forwarding_plain;
pub(super) mod link;
pub(super) mod link_capacity;
mod probe;
