//! Packets below the kernel's sockets: taps that copy packets on an interface, the filters of these
//! taps, and sockets that send whole packets.
//!
//! A tap (`AF_PACKET`) only reads copies: the packets themselves pass as if the tap did not exist.
//! The tap's filter is a classic BPF program that the kernel runs on each packet before copying it.
//! Only [`offload`] changes the system; the [journal](crate::journal) undoes its changes.
//!
//! | module | content |
//! |---|---|
//! | [`ring`] | tap on one interface: packets of both directions in a memory-mapped ring |
//! | [`fanout`] | group of such taps; each packet goes to one of them |
//! | [`syn`] | tap for incoming SYNs |
//! | [`option_tap`] | tap for TCP packets that carry a given TCP option |
//! | [`filter`] | the filters of these taps, and the assembler that builds them |
//! | [`offload`] | segmentation, coalescing and checksum offload of an interface |
//! | [`raw`] | raw sockets: IP packets sent through this host's stack |
//! | [`raw_gso`] | packet socket: runs of TCP segments, segmented by the device (TSO) |

pub mod fanout;
pub mod filter;
pub mod offload;
pub mod option_tap;
pub mod raw;
pub mod raw_gso;
pub mod ring;
pub mod syn;
