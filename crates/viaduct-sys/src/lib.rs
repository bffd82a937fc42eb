//! Safe wrappers of the Linux interfaces that Viaduct uses.
//!
//! All `unsafe` calls into the kernel, except those of the preloaded library, are in this crate:
//! each module that needs `unsafe` allows it for itself, and each block says why it is sound. The
//! crate knows addresses, packets, interfaces and sockets, but no protocol of Viaduct.
//!
//! | folder | content |
//! |---|---|
//! | [`capture`] | packets: taps, filters, offloads, raw sockets |
//! | [`socket`] | TCP, UDP and UNIX sockets, and the sockets of wrapped programs |
//! | [`nft`] | nftables tables, packet queues |
//! | [`route`] | interfaces, addresses, routes, TUN, sysctls |
//! | [`netns`] | network namespaces |
//! | [`bpf`] | extended BPF on cgroups: TCP options, redirected connects |
//! | [`seccomp`] | trapped system calls |
//! | [`process`] | children, signals, inherited state, threads, memory, locks |
//! | [`journal`] | changes of the system, undone at the end or after a crash |
//!
//! [`clock`], [`poll`] and [`random`] wrap single system calls; `os` has the system calls that
//! several modules share.

pub mod bpf;
pub mod capture;
pub mod clock;
pub mod journal;
pub mod netns;
pub mod nft;
pub mod poll;
pub mod process;
pub mod random;
pub mod route;
pub mod seccomp;
pub mod socket;

#[cfg(any(test, fuzzing))]
pub mod fuzzed;

mod os;
