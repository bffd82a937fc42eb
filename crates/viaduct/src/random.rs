//! Random bytes from the kernel.

use anyhow::{Context as _, Result};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Returns random bytes, as many as the caller's array has.
///
/// # Errors
/// The kernel has none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok().context("the kernel gave no random bytes")?;
    Ok(bytes)
}
