//! Random bytes for the protocol cores.

use std::sync::Arc;

use viaduct_proto::keys::Entropy;
use viaduct_sys::random::fill;

/// Returns the kernel's source of randomness.
pub fn entropy() -> Entropy {
    Arc::new(|out: &mut [u8]| fill(out).expect("the kernel has random bytes"))
}
