//! The library that `viaduct run --via preload` loads into programs (section 3.8 of the TESLA
//! paper).
//!
//! The library defines some of libc's functions, which the loader finds before libc's. A call that
//! the rules leave to the kernel is made directly. For a call that begins a flow, the library sends
//! a request to the master, with the socket. The program keeps its own socket, and reads, writes
//! and polls it itself.
//!
//! ```text
//!   program ── connect, send, names ──▶ calls ── Rules ──┬─▶ kernel, with the word for seccomp
//!   program ── exec, spawn ──▶ exec: the environment     └─▶ ask ── Request, socket ──▶ master
//! ```
//!
//! These functions may run in a signal handler, in the child of a vfork, in one of many threads, or
//! before any other constructor. So nothing here allocates, takes a lock or keeps a descriptor, and
//! the state from the master is written once. `real` calls libc's own functions; `raw` calls the
//! kernel, and passes the word, a number that exempts the call from seccomp's report, in an unused
//! argument.
#![allow(unsafe_code)]
#![cfg(target_os = "linux")]
// A test program must not define libc's functions, so code that only these functions use is unused
// there.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod ask;
mod raw;
mod state;

// In a test program, the other libraries would call these functions.
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod exec;
#[cfg(all(not(test), target_env = "gnu"))]
mod loader;
#[cfg(not(test))]
mod real;
