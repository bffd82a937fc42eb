//! The figures of Trickles: what a server costs that keeps nothing, beside the kernel's TCP in the same run.
//!
//! ```text
//!   clients of TCP       load::Fetches, or programs ─ a1 ──┐
//!                                                          ├── gwa ══ the link ══ gwb ── b1  Served: viaduct
//!   clients of Trickles  load::Trickles ─────── their TUN ─┘                             serve, and its TCP
//! ```

pub(super) mod aggregate;
mod core;
pub(super) mod cpu;
pub(super) mod garbage;
pub(super) mod memory;
pub(super) mod object_size;
mod served;
