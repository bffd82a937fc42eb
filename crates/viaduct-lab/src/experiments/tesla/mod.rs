//! Figures of the TESLA paper: cost of handlers under unmodified programs, and tests of their
//! function.

pub(super) mod bandwidth;
pub(super) mod congestion;
pub(super) mod cost;
pub(super) mod handlers;
pub(super) mod latency;
pub(super) mod matrix;
mod measured;
pub(super) mod migrate;
mod programs;
pub(super) mod route;
mod setups;
pub(super) mod shape;
mod undisturbed;
mod world;
