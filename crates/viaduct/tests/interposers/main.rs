//! Calls of unmodified programs under each interposer of `viaduct run`: connections, datagrams,
//! listeners, names, and offload to the kernel.
#![allow(clippy::unwrap_used)] // a test may panic

mod calls;
mod cgroup;
#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod listeners;
mod offload;
mod remote_names;
