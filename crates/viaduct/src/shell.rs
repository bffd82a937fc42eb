//! What handlers are given of the world: files to read, and randomness.

use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use viaduct_proto::handlers::Shell;

/// This system's files and randomness.
pub fn shell() -> Shell {
    let random = SystemRandom::new();
    Shell {
        files: Arc::new(|path| std::fs::read_to_string(path).map_err(|error| error.to_string())),
        entropy: Arc::new(move |out: &mut [u8]| {
            random.fill(out).expect("the kernel has random bytes");
        }),
    }
}
