//! Experiments about the lab itself: what it can carry and how true it is.

pub(super) mod forwarding_plain;
