//! Each system call of a wrapped program returns the same as without viaduct.

mod errors;
mod links;
mod options;
mod orders;
mod sends;

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
/// A chain that cannot be offloaded to the kernel, so that bytes go through the master.
const CHAIN: &str = "+latency:delay=1ms";
