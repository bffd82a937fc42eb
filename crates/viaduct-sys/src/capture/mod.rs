//! Packets below the kernel's sockets: taps that copy what crosses an interface, the filters that
//! select what they copy, and sockets that send whole packets.
//!
//! A tap (`AF_PACKET`) only reads copies: the packets themselves pass as if it did not exist. Its
//! filter is a classic BPF program that the kernel runs on each packet before it copies it.
//! Nothing here changes the system, except [`offload`], whose changes the [journal](crate::journal)
//! undoes.
//!
//! | module | content |
//! |---|---|
//! | [`ring`] | tap on one interface: all packets, both ways, in a memory-mapped ring |
//! | [`syn`] | tap for incoming SYNs |
//! | [`option_tap`] | tap for TCP packets that carry a given TCP option |
//! | [`filter`] | the filters of these taps, and the assembler that builds them |
//! | [`offload`] | segmentation, coalescing and checksum offload of an interface |
//! | [`raw`] | raw sockets: IP packets sent through this host's stack |
//! | [`raw_gso`] | packet socket: runs of TCP segments, cut by the device (TSO) |

pub mod filter;
pub mod offload;
pub mod option_tap;
pub mod raw;
pub mod raw_gso;
pub mod ring;
pub mod syn;
