//! The library that `viaduct run --via preload` puts into programs (TESLA, section 3.8).
//!
//! It has some of libc's names, and is asked before libc is. A call that means nothing to us goes on
//! at once; one that begins a flow is asked of the master, with the socket beside the question. The
//! program keeps its own socket and does its own reads, writes and polls on it.
//!
//! ```text
//!   program ── connect, send, names ──▶ calls ── Rules ──┬─▶ kernel, with the word that seccomp lets pass
//!   program ── exec, spawn ──▶ exec: the environment     └─▶ ask ── Request, socket ──▶ master
//! ```
//!
//! A wrapper may run in a signal handler, in the child of a vfork, in one of many threads, or before
//! any other constructor: so nothing here allocates, takes a lock or keeps a descriptor, and what is
//! known of the master is written once. `real` holds what must be libc's own, and `raw` calls the
//! kernel, whose calls bear the word.
#![allow(unsafe_code)]
#![cfg(target_os = "linux")]
// A test program must not have libc's names in it; what serves them alone is idle there.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod ask;
mod raw;
mod state;

// In a program of our own these names would be called by its own libraries.
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod exec;
#[cfg(all(not(test), target_env = "gnu"))]
mod loader;
#[cfg(not(test))]
mod real;
