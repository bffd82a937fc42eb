//! Simulations in virtual time. Nothing here sleeps: the clock jumps from one event to the next, so
//! a minute of a thin flow takes milliseconds, and the same seeds give the same run. The link model
//! is [`crate::link`], which the lab's emulator runs in real time.
//!
//! | module | contents |
//! |---|---|
//! | [`stream`] | run of a code over a lossy link |
//! | `network` | machines that follow the driving contract, connected by links: for tests |
//! | `trickles` | download by Trickles, compared with one by TCP Reno: for tests |

#[cfg(test)]
mod network;
pub mod stream;
#[cfg(test)]
pub mod trickles;

#[cfg(test)]
pub use network::{LinkId, Machine, Node, Port, Sim};
