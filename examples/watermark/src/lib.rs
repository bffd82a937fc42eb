//! Pictures with a mark for each client, from servers that keep nothing of any (Trickles, section 6.2).
//!
//! ```text
//!   event ─▶ gallery ─▶ state: what the continuation says ─▶ picture: bytes from a checkpoint on
//!                                                               ├─ jpeg: codes of a file, as blocks
//!                                                               └─ mark: one bit a block
//! ```
//!
//! The mark changes coefficients, so Huffman codes become longer or shorter, and nothing of a picture stands where
//! it stood in the file, nor where it stands for another client. What a server has to know to go on anywhere is
//! where coding units begin, to the bit; its clients' output continuations record that at intervals. So any
//! replica makes any range of bytes, and the same ones.

pub mod gallery;
pub mod jpeg;
pub mod mark;
pub mod picture;
pub mod state;
