//! The figures of TESLA: what handlers under unmodified programs cost, and that they do what they say.

pub(super) mod bandwidth;
pub(super) mod latency;
mod measured;
mod programs;
mod ways;
mod world;
