//! Vectors of NEON, which every processor of this architecture has.

use std::arch::aarch64::*;

use super::super::Level;
use super::super::gf::MulTable;
use super::super::simd::{Shape, fused};
use super::Vector;

/// Processes all of `shape`.
///
/// # Safety
/// The pointers of `shape` must be valid for `shape.len` bytes, 16 or more. The destinations must
/// be writable for `shape.room` bytes, and must not overlap each other or a source.
#[target_feature(enable = "neon")]
pub(in super::super) unsafe fn run<const N: usize, const M: usize, const ONES: usize>(
    _level: Level,
    shape: &Shape<N, M>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { fused::<uint8x16_t, N, M, ONES>(shape) }
}

/// Products are sums of table look-ups of the low and the high halves of bytes. SAFETY of each
/// method: the caller guarantees the conditions of the method.
impl Vector for uint8x16_t {
    const BYTES: usize = 16;
    type Factor = (Self, Self);
    type Split = (Self, Self);
    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let table = MulTable::of(coefficient).0.as_ptr();
        // SAFETY: a table is 32 bytes, two halves of 16.
        unsafe { (vld1q_u8(table), vld1q_u8(table.add(16))) }
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: every processor of this architecture has NEON.
        unsafe { vdupq_n_u8(0) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the pointer is valid for a vector.
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the pointer is valid for writing a vector.
        unsafe { vst1q_u8(to, self) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: every processor of this architecture has NEON.
        unsafe { veorq_u8(self, other) }
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: every processor of this architecture has NEON.
        unsafe { vandq_u8(self, other) }
    }
    #[inline(always)]
    unsafe fn split(self) -> Self::Split {
        // SAFETY: every processor of this architecture has NEON.
        unsafe { (vandq_u8(self, vdupq_n_u8(15)), vshrq_n_u8::<4>(self)) }
    }
    #[inline(always)]
    unsafe fn product((low, high): Self::Split, (of_low, of_high): Self::Factor) -> Self {
        // SAFETY: every processor of this architecture has NEON.
        unsafe { veorq_u8(vqtbl1q_u8(of_low, low), vqtbl1q_u8(of_high, high)) }
    }
}
