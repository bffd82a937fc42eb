//! Linux for Viaduct: what the gateway and the lab need from the kernel, behind safe types.
//!
//! All of the kernel interface's `unsafe` is here: each module that needs it allows it for
//! itself, and each block says why it is sound. No protocol of Viaduct is known here, only
//! addresses, packets, interfaces and sockets.
//!
//! ```text
//!   what is on the wire   ring  (copies of all packets of an interface)   filter (which of them)
//!                         syn   (copies of SYNs)   nfqueue (SYNs themselves, held)
//!                         datagrams (programs' own, held)   marked (packets that bear a mark)
//!   what our SYNs say     bpf   (a TCP option)               tcp    (data)
//!   what we send          udp   (datagrams to peers, many a call)   raw (packets)
//!                         mmsg  (many of either a call, both ways)   undelivered (error queue)
//!                         segments (TCP packets that are cut later)   hop (next-hop lookup)
//!                         own_queue (what the interface drops)
//!   what we change        journal (remembers, puts back)
//!                           |- offload   segmentation, coalescing, checksums of an interface
//!                           |- route     the MTU towards a prefix
//!                           |- nft       the MSS of TCP towards a prefix
//!                           |- intercept, hold   connections handed to a proxy; its SYNs held
//!                           |- keep_out  marked packets kept from the kernel's TCP
//!                           `- sysctl    one setting
//!                         claim (one process per table)   rules_watch (deleted rules)
//!   wrapped programs      wrapped, signals (a program and its end)   meeting (pending connects)
//!                         seccomp (trapped calls)   pending (its socket, by a duplicate)
//!                         records (messages of stubs and masters)
//!   what we hold          memory (pages)   inherit (descriptors from our parent)
//!                         started (other state from it)
//!   where and when        thread (priority, core, timer slack)            clock
//! ```

pub mod bpf;
pub mod clock;
pub mod datagrams;
pub mod dir_lock;
pub mod filter;
pub mod hall;
pub mod here;
pub mod hold;
pub mod hop;
pub mod hop_fields;
pub mod inherit;
pub mod intercept;
pub mod interface;
pub mod journal;
pub mod keep_out;
pub mod marked;
pub mod meeting;
pub mod memory;
pub mod mmsg;
pub mod netns;
pub mod nfqueue;
pub mod nft;
pub mod offload;
pub mod own_queue;
pub mod pending;
pub mod poll;
pub mod process;
pub mod raw;
pub mod records;
pub mod ring;
pub mod route;
pub mod route_watch;
pub mod rules_watch;
pub mod seccomp;
pub mod segments;
pub mod send_for;
pub mod signals;
pub mod splice;
pub mod stamp;
pub mod started;
pub mod syn;
pub mod sysctl;
pub mod table;
pub mod tcp;
pub mod thread;
pub mod tool;
pub mod tun;
pub mod udp;
pub mod undelivered;
pub mod urgent;
pub mod watches;
pub mod wrapped;

#[cfg(any(test, fuzzing))]
pub mod fuzzed;

mod claim;
mod netlink;
mod os;
