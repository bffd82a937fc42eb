//! Interface of the handlers to the system: files to read, and randomness.

use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use viaduct_proto::handlers::Shell;
use viaduct_proto::keys::Entropy;

use crate::overlay::overlays;

/// Returns access to this system's files and randomness, and to the overlay's nodes on it.
pub fn shell() -> Shell {
    Shell {
        files: Arc::new(|path| std::fs::read_to_string(path).map_err(|error| error.to_string())),
        entropy: entropy(),
        overlays: overlays(),
    }
}

/// Returns the kernel's source of randomness.
pub fn entropy() -> Entropy {
    let random = SystemRandom::new();
    Arc::new(move |out: &mut [u8]| random.fill(out).expect("the kernel has random bytes"))
}
