//! Vectors of SSSE3, AVX2, and AVX2 with GFNI.

use std::arch::x86_64::*;

use super::super::Level;
use super::super::gf::{MATRICES, MulTable};
use super::super::simd::{Shape, fused};
use super::Vector;

/// Processes all of `shape`.
///
/// # Safety
/// The pointers of `shape` must be valid for `shape.len` bytes, 32 or more (16 at
/// [`Level::Ssse3`]). The destinations must be writable for `shape.room` bytes, and must not
/// overlap each other or a source. The processor must support `level`, which must not be
/// [`Level::Portable`].
#[inline]
pub(in super::super) unsafe fn run<const N: usize, const M: usize, const ONES: usize>(
    level: Level,
    shape: &Shape<N, M>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match level {
            Level::Gfni => gfni::<N, M, ONES>(shape),
            Level::Avx2 => avx2::<N, M, ONES>(shape),
            Level::Ssse3 | Level::Portable => ssse3::<N, M, ONES>(shape),
        }
    }
}

/// # Safety
/// As [`run`], with AVX2 and GFNI.
#[target_feature(enable = "avx2,gfni")]
unsafe fn gfni<const N: usize, const M: usize, const ONES: usize>(shape: &Shape<N, M>) {
    // SAFETY: guaranteed by the caller.
    unsafe { fused::<Gfni, N, M, ONES>(shape) }
}

/// # Safety
/// As [`run`], with AVX2.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const N: usize, const M: usize, const ONES: usize>(shape: &Shape<N, M>) {
    // SAFETY: guaranteed by the caller.
    unsafe { fused::<__m256i, N, M, ONES>(shape) }
}

/// # Safety
/// As [`run`], with SSSE3.
#[target_feature(enable = "ssse3")]
unsafe fn ssse3<const N: usize, const M: usize, const ONES: usize>(shape: &Shape<N, M>) {
    // SAFETY: guaranteed by the caller.
    unsafe { fused::<__m128i, N, M, ONES>(shape) }
}

/// Vector whose products are sums of table look-ups of the low and the high halves of bytes, in
/// registers. SAFETY of each method: the caller guarantees the conditions of the method.
macro_rules! vector {
    ($type:ty, $bytes:literal, $splat:ident, $load:ident, $half:expr, $store:ident, $xor:ident,
     $and:ident, $shift:ident, $shuffle:ident) => {
        impl Vector for $type {
            const BYTES: usize = $bytes;
            type Factor = (Self, Self);
            type Split = (Self, Self);
            #[inline(always)]
            unsafe fn factor(coefficient: u8) -> Self::Factor {
                let table = MulTable::of(coefficient).0.as_ptr();
                // SAFETY: a table is 32 bytes, two halves of 16.
                unsafe {
                    let (low, high) = (table.cast(), table.add(16).cast());
                    ($half(_mm_loadu_si128(low)), $half(_mm_loadu_si128(high)))
                }
            }
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the processor has the instruction.
                unsafe { $splat(0) }
            }
            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the pointer is valid for a vector.
                unsafe { $load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the pointer is valid for writing a vector.
                unsafe { $store(to.cast(), self) }
            }
            #[inline(always)]
            unsafe fn xor(self, other: Self) -> Self {
                // SAFETY: the processor has the instruction.
                unsafe { $xor(self, other) }
            }
            #[inline(always)]
            unsafe fn and(self, other: Self) -> Self {
                // SAFETY: the processor has the instruction.
                unsafe { $and(self, other) }
            }
            #[inline(always)]
            unsafe fn split(self) -> Self::Split {
                // SAFETY: the processor has the instructions. The shift is within words: bits that
                // come from neighbouring bytes are masked off.
                unsafe { ($and(self, $splat(15)), $and($shift::<4>(self), $splat(15))) }
            }
            #[inline(always)]
            unsafe fn product((low, high): Self::Split, (of_low, of_high): Self::Factor) -> Self {
                // SAFETY: the processor has the instruction.
                unsafe { $xor($shuffle(of_low, low), $shuffle(of_high, high)) }
            }
        }
    };
}

vector!(
    __m128i,
    16,
    _mm_set1_epi8,
    _mm_loadu_si128,
    std::convert::identity,
    _mm_storeu_si128,
    _mm_xor_si128,
    _mm_and_si128,
    _mm_srli_epi64,
    _mm_shuffle_epi8
);
vector!(
    __m256i,
    32,
    _mm256_set1_epi8,
    _mm256_loadu_si256,
    _mm256_broadcastsi128_si256,
    _mm256_storeu_si256,
    _mm256_xor_si256,
    _mm256_and_si256,
    _mm256_srli_epi64,
    _mm256_shuffle_epi8
);

/// Vector of 32 bytes; products are computed with a bit matrix. SAFETY of each method: the caller
/// guarantees the conditions of the method.
#[derive(Clone, Copy)]
struct Gfni(__m256i);

impl Vector for Gfni {
    const BYTES: usize = 32;
    type Factor = __m256i;
    type Split = __m256i;
    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        // SAFETY: the processor has AVX2.
        unsafe { _mm256_set1_epi64x(MATRICES[usize::from(coefficient)].cast_signed()) }
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as above.
        Gfni(unsafe { __m256i::zero() })
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the pointer is valid for a vector.
        Gfni(unsafe { __m256i::load(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the pointer is valid for writing a vector.
        unsafe { self.0.store(to) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the processor has AVX2.
        Gfni(unsafe { self.0.xor(other.0) })
    }
    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: as above.
        Gfni(unsafe { self.0.and(other.0) })
    }
    #[inline(always)]
    unsafe fn split(self) -> Self::Split {
        self.0
    }
    #[inline(always)]
    unsafe fn product(bytes: Self::Split, matrix: Self::Factor) -> Self {
        // SAFETY: the processor has AVX2 and GFNI.
        Gfni(unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(bytes, matrix) })
    }
}
