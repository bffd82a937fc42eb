//! Registers full of bytes, as processors have them.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::run;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::run;

/// A register full of bytes. Unsafe to use, since the processor must have it; loads and stores
/// need a pointer that is good for [`Vector::BYTES`], not an aligned one.
pub(super) trait Vector: Copy {
    const BYTES: usize;
    /// Multiplier of bytes by a coefficient.
    type Factor: Copy;
    /// Bytes as products take them, whatever the factor.
    type Split: Copy;
    unsafe fn factor(coefficient: u8) -> Self::Factor;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn split(self) -> Self::Split;
    unsafe fn product(split: Self::Split, factor: Self::Factor) -> Self;
}
