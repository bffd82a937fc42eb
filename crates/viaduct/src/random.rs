//! Random bytes from the kernel.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use ring::rand::{SecureRandom as _, SystemRandom};
use viaduct_proto::keys::Entropy;

/// Returns random bytes, as many as the caller's array has.
///
/// # Errors
/// The kernel has none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok().context("the kernel gave no random bytes")?;
    Ok(bytes)
}

/// Returns the kernel's source of randomness.
pub fn entropy() -> Entropy {
    let random = SystemRandom::new();
    Arc::new(move |out: &mut [u8]| random.fill(out).expect("the kernel has random bytes"))
}
