//! Vector registers of bytes.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::run;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::run;

/// Vector register of bytes. Its methods are unsafe, since the processor must have the
/// instructions; loads and stores need a pointer that is valid for [`Vector::BYTES`] bytes, aligned
/// or not.
pub(super) trait Vector: Copy {
    const BYTES: usize;
    /// Multiplier of bytes by a coefficient.
    type Factor: Copy;
    /// Bytes, prepared for products with any factor.
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
