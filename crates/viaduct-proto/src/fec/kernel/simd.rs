//! The same arithmetic in vectors of 16 (SSSE3) and 32 bytes (AVX2): the one file of this crate
//! with `unsafe` in it, because intrinsics take pointers.
//!
//! A product is two shuffles: one looks up the low halves of all bytes in a register, the other
//! the high halves. One loop, [`fused`], serves every shape; shapes are constants, so that the
//! tables stay in registers and rows of ones cost no shuffle.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{GROUP, Level, gf::MulTable};

/// Adds `coefficients * srcs` to `dsts` in their first `len` bytes and returns how many of those
/// it did: all, or none if `len` is shorter than a vector or the shape is not one to four by one
/// to four.
///
/// # Panics
/// If a slice is shorter than `len` or a coefficient is missing.
#[inline]
pub(super) fn add(
    level: Level,
    dsts: &mut [&mut [u8]],
    srcs: &[&[u8]],
    coefficients: &[u8],
    len: usize,
) -> usize {
    debug_assert!(level <= Level::detect(), "the processor lacks {level:?}");
    match (dsts.len(), level) {
        (_, Level::Portable) => 0,
        (_, _) if len < 16 => 0,
        (_, Level::Avx2) if len < 32 => add(Level::Ssse3, dsts, srcs, coefficients, len),
        (1, _) => by_sources::<1>(level, dsts, srcs, coefficients, len),
        (2, _) => by_sources::<2>(level, dsts, srcs, coefficients, len),
        (3, _) => by_sources::<3>(level, dsts, srcs, coefficients, len),
        (GROUP, _) => by_sources::<GROUP>(level, dsts, srcs, coefficients, len),
        _ => 0,
    }
}

/// Fixes the number of sources. Three are two and one.
#[inline]
fn by_sources<const N: usize>(
    level: Level,
    dsts: &mut [&mut [u8]],
    srcs: &[&[u8]],
    coefficients: &[u8],
    len: usize,
) -> usize {
    match srcs.len() {
        1 => by_ones::<N, 1>(level, dsts, srcs, coefficients, len),
        2 => by_ones::<N, 2>(level, dsts, srcs, coefficients, len),
        3 => {
            by_ones::<N, 2>(level, dsts, &srcs[..2], &coefficients[..2 * N], len);
            by_ones::<N, 1>(level, dsts, &srcs[2..], &coefficients[2 * N..], len);
        }
        4 => by_ones::<N, 4>(level, dsts, srcs, coefficients, len),
        _ => return 0,
    }
    len
}

/// Fixes how many of the first destinations take every source with coefficient 1: all (a layer's
/// bins), one (the first row of Reed-Solomon) or none.
fn by_ones<const N: usize, const M: usize>(
    level: Level,
    dsts: &mut [&mut [u8]],
    srcs: &[&[u8]],
    coefficients: &[u8],
    len: usize,
) {
    let shape = Shape::<N, M>::new(dsts, srcs, coefficients, len);
    let ones = (0..N).take_while(|&d| shape.coefficients.iter().all(|row| row[d] == 1)).count();
    // SAFETY: `Shape::new` made every pointer from a slice of at least `len` bytes, the mutable
    // ones of at least `room`; they are borrowed until this function returns, the mutable ones
    // exclusively; `len` is a vector or
    // longer, as `add` checked; a `Level` is only made where the processor was asked for it.
    unsafe {
        match (level, ones) {
            (Level::Avx2, _) if ones == N => avx2::<N, M, N>(&shape),
            (Level::Avx2, 0) => avx2::<N, M, 0>(&shape),
            (Level::Avx2, _) => avx2::<N, M, 1>(&shape),
            (_, _) if ones == N => ssse3::<N, M, N>(&shape),
            (_, 0) => ssse3::<N, M, 0>(&shape),
            (_, _) => ssse3::<N, M, 1>(&shape),
        }
    }
}

/// `N` destinations, `M` sources and their coefficients, with the checks behind them.
struct Shape<const N: usize, const M: usize> {
    dsts: [*mut u8; N],
    srcs: [*const u8; M],
    coefficients: [[u8; N]; M],
    len: usize,
    /// Bytes that all destinations have, `len` or more.
    room: usize,
}

impl<const N: usize, const M: usize> Shape<N, M> {
    #[inline]
    fn new(dsts: &mut [&mut [u8]], srcs: &[&[u8]], coefficients: &[u8], len: usize) -> Self {
        let mut shape = Shape {
            dsts: [std::ptr::null_mut(); N],
            srcs: [std::ptr::null(); M],
            coefficients: [[0; N]; M],
            len,
            room: dsts.iter().map(|dst| dst.len()).min().unwrap_or(0),
        };
        for (pointer, dst) in shape.dsts.iter_mut().zip(dsts.iter_mut()) {
            assert!(dst.len() >= len);
            *pointer = dst.as_mut_ptr();
        }
        for (pointer, src) in shape.srcs.iter_mut().zip(srcs) {
            *pointer = src[..len].as_ptr();
        }
        for (row, given) in shape.coefficients.iter_mut().zip(coefficients.chunks_exact(N)) {
            row.copy_from_slice(given);
        }
        assert!(dsts.len() == N && srcs.len() == M && coefficients.len() == N * M);
        shape
    }
}

/// # Safety
/// The pointers of `shape` must be good for `shape.len` >= 32 bytes, the destinations for writing
/// and apart from all others, and the processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const N: usize, const M: usize, const ONES: usize>(shape: &Shape<N, M>) {
    // SAFETY: as the caller vouches.
    unsafe { fused::<__m256i, N, M, ONES>(shape) }
}

/// # Safety
/// As [`avx2`], with 16 bytes and SSSE3.
#[target_feature(enable = "ssse3")]
unsafe fn ssse3<const N: usize, const M: usize, const ONES: usize>(shape: &Shape<N, M>) {
    // SAFETY: as the caller vouches.
    unsafe { fused::<__m128i, N, M, ONES>(shape) }
}

/// Every destination gains its combination of the sources, one column of a vector's width after
/// the other.
///
/// # Safety
/// The pointers must be good for `shape.len` >= `V::BYTES` bytes, the destinations for writing
/// `shape.room` bytes and apart from all others, and the processor must have the instructions
/// of `V`.
#[inline(always)]
unsafe fn fused<V: Vector, const N: usize, const M: usize, const ONES: usize>(shape: &Shape<N, M>) {
    // By value: behind the reference, every store could have changed them.
    let Shape { dsts, srcs, coefficients, len, room } = *shape;
    let full = len - len % V::BYTES;
    // SAFETY: columns begin at `full - V::BYTES` or before, the ragged one as `ragged` asks.
    unsafe {
        let tables = tables::<V, N, M>(&coefficients);
        if full < len {
            ragged::<V, N, M, ONES>(dsts, srcs, &tables, len, room);
        }
        let mut at = 0;
        while at < full {
            column::<V, N, M, ONES>(dsts, srcs, &tables, at, None);
            at += V::BYTES;
        }
    }
}

/// The bytes after the last full column. Adding zero changes nothing, so if the destinations reach
/// far enough, it is one more column, from copies of the sources' ends with zeros behind them. If
/// not, it is a column that ends with the data, and what the full columns do is masked to zero.
///
/// # Safety
/// As [`fused`]; `len` must not be a multiple of `V::BYTES`.
#[inline(always)]
unsafe fn ragged<V: Vector, const N: usize, const M: usize, const ONES: usize>(
    dsts: [*mut u8; N],
    srcs: [*const u8; M],
    tables: &Tables<V, N, M>,
    len: usize,
    room: usize,
) {
    let rest = len % V::BYTES;
    let full = len - rest;
    // SAFETY: the copies have 32 bytes, `V::BYTES` or more, and `rest` is less; the destinations
    // have a column at `full` if there is room, and one at `len - V::BYTES` in any case; `ENDS`
    // has 32 bytes from each of its first 32 on.
    unsafe {
        if room >= full + V::BYTES {
            let mut ends = [[0; 32]; M];
            for (end, src) in ends.iter_mut().zip(srcs) {
                std::ptr::copy_nonoverlapping(src.add(full), end.as_mut_ptr(), rest);
            }
            let ends = ends.each_ref().map(|end| end.as_ptr());
            let dsts = dsts.map(|dst| dst.add(full));
            column::<V, N, M, ONES>(dsts, ends, tables, 0, None);
        } else {
            let mask = V::load(ENDS.0.as_ptr().add(rest + 32 - V::BYTES));
            column::<V, N, M, ONES>(dsts, srcs, tables, len - V::BYTES, Some(mask));
        }
    }
}

/// Zeros, then ones: the vector that ends `n` bytes into the ones masks all but its last `n`.
#[repr(align(64))]
struct Ends([u8; 64]);
static ENDS: Ends = Ends({
    let mut ends = [0; 64];
    let mut at = 32;
    while at < 64 {
        ends[at] = 0xff;
        at += 1;
    }
    ends
});

/// For each source and destination, the products of the low halves and of the high halves.
type Tables<V, const N: usize, const M: usize> = [[(V, V); N]; M];

/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn tables<V: Vector, const N: usize, const M: usize>(
    coefficients: &[[u8; N]; M],
) -> Tables<V, N, M> {
    // SAFETY: a table is 32 bytes, two halves of 16.
    unsafe {
        let mut tables = [[(V::splat(0), V::splat(0)); N]; M];
        for s in 0..M {
            for d in 0..N {
                let table = MulTable::of(coefficients[s][d]).0.as_ptr();
                tables[s][d] = (V::load_half(table), V::load_half(table.add(16)));
            }
        }
        tables
    }
}

/// One column: all destinations in registers while the sources pass.
///
/// # Safety
/// As [`fused`]; `at + V::BYTES` must not be above the length.
#[inline(always)]
unsafe fn column<V: Vector, const N: usize, const M: usize, const ONES: usize>(
    dsts: [*mut u8; N],
    srcs: [*const u8; M],
    tables: &Tables<V, N, M>,
    at: usize,
    mask: Option<V>,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut sums = [V::splat(0); N];
        for (sum, dst) in sums.iter_mut().zip(dsts) {
            *sum = V::load(dst.add(at));
        }
        for (src, tables) in srcs.into_iter().zip(tables) {
            let mut bytes = V::load(src.add(at));
            if let Some(mask) = mask {
                bytes = bytes.and(mask);
            }
            let low = bytes.and(V::splat(15));
            let high = bytes.shift_right_4().and(V::splat(15));
            for (d, (sum, (of_low, of_high))) in sums.iter_mut().zip(tables).enumerate() {
                *sum = sum.xor(if d < ONES {
                    bytes
                } else {
                    of_low.look_up(low).xor(of_high.look_up(high))
                });
            }
        }
        for (sum, dst) in sums.iter().zip(dsts) {
            sum.store(dst.add(at));
        }
    }
}

/// A register full of bytes. Unsafe to use, since the processor must have it; loads and stores
/// need a pointer that is good for [`Vector::BYTES`], not an aligned one.
trait Vector: Copy {
    const BYTES: usize;
    unsafe fn splat(byte: i8) -> Self;
    unsafe fn load(from: *const u8) -> Self;
    /// The same 16 bytes in every half.
    unsafe fn load_half(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    /// Shifts within words: the upper half of each byte must be masked away afterwards.
    unsafe fn shift_right_4(self) -> Self;
    /// Each byte of `index` (0 to 15) is replaced by that entry of `self`.
    unsafe fn look_up(self, index: Self) -> Self;
}

/// One intrinsic a method. SAFETY of each: the same as of the method, which its caller vouches.
macro_rules! vector {
    ($type:ty, $bytes:literal, $splat:ident, $load:ident, $half:expr, $store:ident, $xor:ident,
     $and:ident, $shift:ident, $shuffle:ident) => {
        impl Vector for $type {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn splat(byte: i8) -> Self {
                // SAFETY: the processor has it.
                unsafe { $splat(byte) }
            }
            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the pointer is good for a vector.
                unsafe { $load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn load_half(from: *const u8) -> Self {
                // SAFETY: the pointer is good for 16 bytes.
                unsafe { $half(_mm_loadu_si128(from.cast())) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut u8) {
                // SAFETY: the pointer is good for a vector, and for writing.
                unsafe { $store(to.cast(), self) }
            }
            #[inline(always)]
            unsafe fn xor(self, other: Self) -> Self {
                // SAFETY: the processor has it.
                unsafe { $xor(self, other) }
            }
            #[inline(always)]
            unsafe fn and(self, other: Self) -> Self {
                // SAFETY: the processor has it.
                unsafe { $and(self, other) }
            }
            #[inline(always)]
            unsafe fn shift_right_4(self) -> Self {
                // SAFETY: the processor has it.
                unsafe { $shift::<4>(self) }
            }
            #[inline(always)]
            unsafe fn look_up(self, index: Self) -> Self {
                // SAFETY: the processor has it.
                unsafe { $shuffle(self, index) }
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
