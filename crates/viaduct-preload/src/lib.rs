//! The library that `viaduct run --via preload` puts into programs (TESLA, section 3.8).
//!
//! The library defines some of libc's functions, which the loader finds before libc's. A call
//! of no concern passes on at once. A call that begins a flow is sent to the master as a
//! request, with the socket. The program keeps its own socket and does its own reads, writes
//! and polls on it.
//!
//! ```text
//!   program ── connect, send, names ──▶ calls ── Rules ──┬─▶ kernel, with the word for seccomp
//!   program ── exec, spawn ──▶ exec: the environment     └─▶ ask ── Request, socket ──▶ master
//! ```
//!
//! A wrapper may run in a signal handler, in the child of a vfork, in one of many threads, or
//! before any other constructor. So nothing here allocates, takes a lock or keeps a descriptor,
//! and the state of the master is written once. `real` calls libc's own functions; `raw` calls
//! the kernel with the word among the arguments.
#![allow(unsafe_code)]
#![cfg(target_os = "linux")]
// A test program must not define libc's functions; code that serves only them is unused there.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod ask;
mod raw;
mod state;

// In a test program these functions would be called by its own libraries.
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod exec;
#[cfg(all(not(test), target_env = "gnu"))]
mod loader;
#[cfg(not(test))]
mod real;
