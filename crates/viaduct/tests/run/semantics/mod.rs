//! System calls of a wrapped program return what the plain kernel would, call by call.

mod errors;
mod links;
mod options;
mod orders;

const VIADUCT: &str = env!("CARGO_BIN_EXE_viaduct");
/// A chain that the kernel cannot do: bytes pass the master.
const CHAIN: &str = "+latency:delay=1ms";
