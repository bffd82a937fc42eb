//! Distribution of a service's packets over replicas (`viaduct spray`): which replica gets which
//! packet, and which replicas are up.
//!
//! ```text
//!   weights ──▶ slots ──▶ 0 1 0 2 0 1 …    packet n, or a hash of its connection, selects a slot
//!                 ▲ states
//!   probes ◀──▶ crate::health::Checker
//! ```
//!
//! **Slots.** A slot belongs to one replica. While that replica cannot be used, its slots are lent
//! to the others; all other slots stay as they are. So if a replica fails or is drained, only its
//! own connections move.
//!
//! **Checks.** See [`crate::health`].

mod slots;

pub use slots::{MAX_WEIGHT, slots};
