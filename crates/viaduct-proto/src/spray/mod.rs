//! Distribution of a service's packets over replicas (`viaduct spray`): which replica gets which
//! packet, and which replicas are up.
//!
//! ```text
//!   weights ──▶ slots ──▶ 0 1 0 2 0 1 …    packet n, or a hash of its connection, selects a slot
//!                 ▲ states
//!   probes ◀──▶ Checker: `fall` failures in a row: down; `rise` successes in a row: up
//! ```
//!
//! **Slots.** A slot belongs to one replica. While that replica cannot be used, its slots are lent
//! to the others; all other slots stay as they are. So a replica that fails, or is drained, moves
//! only the connections that it had itself.
//!
//! **Checks.** Each replica is probed on its own. After a failed probe the next one follows at
//! once, so a replica that does not answer is down after `interval + fall × timeout` at most.

mod checker;
mod slots;

pub use checker::{Checker, Counters, Probe, Timing};
pub use slots::{MAX_WEIGHT, slots};
