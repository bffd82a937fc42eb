//! Pictures watermarked for each client, by servers that keep no state of any client (Trickles,
//! section 6.2).
//!
//! ```text
//!   event ─▶ gallery ─▶ state: of the continuation ─▶ picture: bytes from a checkpoint
//!                                                        ├─ jpeg: codes of a file, as blocks
//!                                                        └─ mark: one bit a block
//! ```
//!
//! The mark changes coefficients, so Huffman codes become longer or shorter. Offsets therefore
//! differ from those in the file, and from one client to another. To resume at any place, a server
//! needs the bit position at which a coding unit begins. Output continuations, which the clients
//! keep, record this position at intervals. So any replica can produce any range of bytes, and all
//! replicas produce the same bytes.

pub mod gallery;
pub mod jpeg;
pub mod mark;
pub mod picture;
pub mod state;
