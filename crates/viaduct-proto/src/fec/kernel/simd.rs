//! Arithmetic in vectors of 16 bytes (SSSE3, NEON) and 32 bytes (AVX2, GFNI).
//!
//! A product is two shuffles: one looks up the low halves of all bytes in a register, the other the
//! high halves; with GFNI it is one instruction. One loop, [`fused`], handles every shape: every
//! number of destinations, of sources, and of destinations whose coefficients are all 1. These
//! numbers are compile-time constants, so that the factors stay in registers and coefficients of 1
//! cost no product. The processor's vectors are defined in [`super::vectors`].

#![allow(unsafe_code)]

use super::vectors::{self, Vector};
use super::{GROUP, Level};

/// Adds `coefficients * srcs` to `dsts` in their first `len` bytes, and returns how many of these
/// bytes it handled: all, or none. None are handled at [`Level::Portable`], for a `len` below 16
/// (the shortest vector), or unless there are one to four destinations and one to four sources.
/// Panics: if a slice is shorter than `len` or a coefficient is missing.
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
        #[cfg(target_arch = "x86_64")]
        (_, Level::Avx2 | Level::Gfni) if len < 32 => {
            add(Level::Ssse3, dsts, srcs, coefficients, len)
        }
        (1, _) => by_sources::<1>(level, dsts, srcs, coefficients, len),
        (2, _) => by_sources::<2>(level, dsts, srcs, coefficients, len),
        (3, _) => by_sources::<3>(level, dsts, srcs, coefficients, len),
        (GROUP, _) => by_sources::<GROUP>(level, dsts, srcs, coefficients, len),
        _ => 0,
    }
}

/// Makes the number of sources a compile-time constant. Three are handled as two and one.
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

/// Makes the number of leading destinations whose coefficients are all 1 a compile-time constant:
/// all (bins of layers), one (the first row of Reed-Solomon) or none. If the number is between one
/// and all, only the first destination is treated in this way.
fn by_ones<const N: usize, const M: usize>(
    level: Level,
    dsts: &mut [&mut [u8]],
    srcs: &[&[u8]],
    coefficients: &[u8],
    len: usize,
) {
    let shape = Shape::<N, M>::new(dsts, srcs, coefficients, len);
    let ones = (0..N).take_while(|&d| shape.coefficients.iter().all(|row| row[d] == 1)).count();
    // SAFETY: `Shape::new` created every pointer from a slice of at least `len` bytes, the mutable
    // ones of at least `room`; they are borrowed until this function returns, the mutable ones
    // exclusively; `len` is a vector or longer, as `add` checked; a `Level` is only created if the
    // processor supports it.
    unsafe {
        match ones {
            _ if ones == N => vectors::run::<N, M, N>(level, &shape),
            0 => vectors::run::<N, M, 0>(level, &shape),
            _ => vectors::run::<N, M, 1>(level, &shape),
        }
    }
}

/// `N` destinations, `M` sources and their coefficients, whose lengths have been checked.
pub(super) struct Shape<const N: usize, const M: usize> {
    dsts: [*mut u8; N],
    srcs: [*const u8; M],
    coefficients: [[u8; N]; M],
    len: usize,
    /// Length that all destinations have, in bytes: `len` or more.
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

/// Adds to every destination its combination of the sources, in columns of a vector's width.
///
/// # Safety
/// The pointers must be valid for `shape.len` >= `V::BYTES` bytes. The destinations must be
/// writable for `shape.room` bytes, and must not overlap each other or a source. The processor must
/// have the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn fused<V: Vector, const N: usize, const M: usize, const ONES: usize>(
    shape: &Shape<N, M>,
) {
    // Copied: the compiler would otherwise have to assume that every store changes values behind
    // the reference.
    let Shape { dsts, srcs, coefficients, len, room } = *shape;
    let full = len - len % V::BYTES;
    // SAFETY: full columns begin at `full - V::BYTES` or before; `len` is not a multiple of
    // `V::BYTES` where `ragged` is called.
    unsafe {
        let factors = factors::<V, N, M>(&coefficients);
        if full < len {
            ragged::<V, N, M, ONES>(dsts, srcs, &factors, len, room);
        }
        let mut at = 0;
        while at < full {
            column::<V, N, M, ONES>(dsts, srcs, &factors, at, None);
            at += V::BYTES;
        }
    }
}

/// Handles the bytes after the last full column. If the destinations are long enough, adds one more
/// full column, from copies of the sources' ends padded with zeros, since adding zero changes
/// nothing. Otherwise adds a column that ends where the data ends, with the bytes that belong to
/// full columns masked to zero.
///
/// # Safety
/// As [`fused`]; `len` must not be a multiple of `V::BYTES`.
#[inline(always)]
unsafe fn ragged<V: Vector, const N: usize, const M: usize, const ONES: usize>(
    dsts: [*mut u8; N],
    srcs: [*const u8; M],
    factors: &Factors<V, N, M>,
    len: usize,
    room: usize,
) {
    let rest = len % V::BYTES;
    let full = len - rest;
    // SAFETY: the copies have 32 bytes, `V::BYTES` or more, and `rest` is less; the destinations
    // have a column at `full` if there is room, and one at `len - V::BYTES` in any case; a load of
    // 32 bytes from any of the first 32 indices of `ENDS` is in bounds.
    unsafe {
        if room >= full + V::BYTES {
            let mut ends = [[0; 32]; M];
            for (end, src) in ends.iter_mut().zip(srcs) {
                std::ptr::copy_nonoverlapping(src.add(full), end.as_mut_ptr(), rest);
            }
            let ends = ends.each_ref().map(|end| end.as_ptr());
            let dsts = dsts.map(|dst| dst.add(full));
            column::<V, N, M, ONES>(dsts, ends, factors, 0, None);
        } else {
            let mask = V::load(ENDS.0.as_ptr().add(rest + 32 - V::BYTES));
            column::<V, N, M, ONES>(dsts, srcs, factors, len - V::BYTES, Some(mask));
        }
    }
}

/// Mask bytes: 32 of 0, then 32 of 0xff. A vector loaded so that it ends with `n` bytes of 0xff
/// masks all but its last `n` bytes.
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

/// Factors of each source for each destination.
type Factors<V, const N: usize, const M: usize> = [[<V as Vector>::Factor; N]; M];

/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
unsafe fn factors<V: Vector, const N: usize, const M: usize>(
    coefficients: &[[u8; N]; M],
) -> Factors<V, N, M> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // No closures, since they would be compiled without the instructions of `V`.
        let mut factors = [[V::factor(0); N]; M];
        for (row, coefficients) in factors.iter_mut().zip(coefficients) {
            for (factor, &coefficient) in row.iter_mut().zip(coefficients) {
                *factor = V::factor(coefficient);
            }
        }
        factors
    }
}

/// Adds one column. All destinations stay in registers while the sources are read.
///
/// # Safety
/// As [`fused`]; `at + V::BYTES` must not be above the length.
#[inline(always)]
unsafe fn column<V: Vector, const N: usize, const M: usize, const ONES: usize>(
    dsts: [*mut u8; N],
    srcs: [*const u8; M],
    factors: &Factors<V, N, M>,
    at: usize,
    mask: Option<V>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [V::zero(); N];
        for (sum, dst) in sums.iter_mut().zip(dsts) {
            *sum = V::load(dst.add(at));
        }
        for (src, factors) in srcs.into_iter().zip(factors) {
            let mut bytes = V::load(src.add(at));
            if let Some(mask) = mask {
                bytes = bytes.and(mask);
            }
            let split = bytes.split();
            for (d, (sum, factor)) in sums.iter_mut().zip(factors).enumerate() {
                *sum = sum.xor(if d < ONES { bytes } else { V::product(split, *factor) });
            }
        }
        for (sum, dst) in sums.iter().zip(dsts) {
            sum.store(dst.add(at));
        }
    }
}
