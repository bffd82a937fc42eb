//! Figures of Trickles: cost of a stateless server, compared with the kernel's TCP in the same run.
//!
//! ```text
//!   TCP clients       load::Fetches, or programs ─┐
//!                                                 ├─ a1 ── gwa ══ the link ══ gwb ── b1  Served:
//!   Trickles clients  load::Trickles ── their TUN ┘              viaduct serve, and its TCP
//! ```
//!
//! Modules other than the experiments:
//!
//! | file | contains |
//! |---|---|
//! | `served` | a real `viaduct serve` |
//! | `replicas` | several servers that share their files, a secret and an address |
//! | `least` | a NAT that assigns each connection to the server with the fewest |
//! | `download` | curl by Trickles and by TCP, and the arrival times of its bytes |

pub(super) mod aggregate;
pub(super) mod attacks;
pub(super) mod balance;
mod core;
pub(super) mod cpu;
mod download;
pub(super) mod failover;
pub(super) mod friendliness;
pub(super) mod garbage;
mod least;
pub(super) mod memory;
pub(super) mod object_size;
pub(super) mod pipelined;
mod replicas;
mod served;
pub(super) mod wan;
