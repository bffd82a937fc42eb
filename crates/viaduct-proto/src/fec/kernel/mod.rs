//! Arithmetic kernel of all codes: `dst += coefficient * src` over GF(2^8), where plus is
//! exclusive or, on many bytes at once.
//!
//! ```text
//!                         one source          several sources
//!   one destination       xor, mul_add                      (a decoder subtracts known packets)
//!   several destinations  xor_each            mul_add_many  (an encoder adds to its bins)
//! ```
//!
//! `xor_each` and `mul_add_many` combine up to four sources with up to four destinations in one
//! pass over memory: memory access, not arithmetic, limits a coder whose data is in the cache.
//!
//! **Lengths may differ.** For each pair of a destination and a source, the bytes that both have
//! are changed; bytes of the destination beyond them stay unchanged. A shorter source thus counts
//! as padded with zeros. If the source is longer, the caller must grow the destination first;
//! otherwise the rest of the source is ignored.
//!
//! `portable` runs on every processor; `simd` computes the same with vector instructions
//! (`vectors`). Tests compare the two.

pub mod gf;
mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vectors;

use gf::MulTable;

/// Bytes in a cache line. The kernels are fastest if destinations begin on a cache line and extend
/// beyond the sources, to the end of a line.
pub const LINE: usize = 64;

/// Maximum number of destinations that one pass over the sources changes.
pub const GROUP: usize = 4;

/// Adds `src` to `dst`.
pub fn xor(dst: &mut [u8], src: &[u8]) {
    add_group(&mut [dst], &[src], &[1]);
}

/// Adds `src` to each of `dsts`, reading it once for every four of them.
pub fn xor_each(dsts: &mut [&mut [u8]], src: &[u8]) {
    for group in dsts.chunks_mut(GROUP) {
        let ones = [1; GROUP];
        add_group(group, &[src], &ones[..group.len()]);
    }
}

/// Adds `coefficient * src` to `dst`.
pub fn mul_add(dst: &mut [u8], src: &[u8], coefficient: u8) {
    add_group(&mut [dst], &[src], &[coefficient]);
}

/// Adds to every destination a combination of all `srcs`. The coefficient of source `s` in
/// destination `d` is `coefficients[s * dsts.len() + d]`. Panics: if there are more than [`GROUP`]
/// destinations, or not one coefficient for each pair.
pub fn mul_add_many(dsts: &mut [&mut [u8]], srcs: &[&[u8]], coefficients: &[u8]) {
    assert!(dsts.len() <= GROUP, "{} destinations; at most {GROUP}", dsts.len());
    assert_eq!(coefficients.len(), dsts.len() * srcs.len(), "one coefficient for each pair");
    if dsts.is_empty() {
        return;
    }
    let (mut srcs, mut coefficients) = (srcs, coefficients);
    while !srcs.is_empty() {
        let together = srcs.len().min(GROUP);
        let (group, rest) = srcs.split_at(together);
        let (theirs, others) = coefficients.split_at(together * dsts.len());
        add_group(dsts, group, theirs);
        (srcs, coefficients) = (rest, others);
    }
}

/// Implementation of the arithmetic, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Byte by byte, in portable code.
    #[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "only tests select it there"))]
    Portable,
    /// Vectors of 16 bytes.
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    /// Vectors of 32 bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Vectors of 32 bytes, with products in one instruction.
    #[cfg(target_arch = "x86_64")]
    Gfni,
    /// Vectors of 16 bytes.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    /// Fastest level of this processor. The standard library caches the result of the detection.
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                let gfni = is_x86_feature_detected!("gfni");
                return if gfni { Level::Gfni } else { Level::Avx2 };
            }
            if is_x86_feature_detected!("ssse3") {
                return Level::Ssse3;
            }
        }
        #[cfg(target_arch = "aarch64")]
        return Level::Neon;
        #[cfg(not(target_arch = "aarch64"))]
        Level::Portable
    }
}

/// Handles one to four destinations and one to four sources.
fn add_group(dsts: &mut [&mut [u8]], srcs: &[&[u8]], coefficients: &[u8]) {
    add_group_at(Level::detect(), dsts, srcs, coefficients);
}

/// Uses vectors for the length common to all slices, and handles the bytes after it pair by pair.
fn add_group_at(level: Level, dsts: &mut [&mut [u8]], srcs: &[&[u8]], coefficients: &[u8]) {
    let (mut shortest, mut longest) = (usize::MAX, 0);
    for src in srcs {
        (shortest, longest) = (shortest.min(src.len()), longest.max(src.len()));
    }
    let common = dsts.iter().fold(shortest, |common, dst| common.min(dst.len()));
    let done = match level {
        Level::Portable => 0,
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        _ => simd::add(level, dsts, srcs, coefficients, common),
    };
    if done == longest {
        return;
    }
    for (src, coefficients) in srcs.iter().zip(coefficients.chunks(dsts.len())) {
        for (dst, &coefficient) in dsts.iter_mut().zip(coefficients) {
            let both = dst.len().min(src.len());
            if both > done {
                add_rest(level, &mut dst[done..both], &src[done..both], coefficient);
            }
        }
    }
}

/// Handles one destination and one source, of equal length, beyond the common length.
fn add_rest(level: Level, dst: &mut [u8], src: &[u8], coefficient: u8) {
    let done = match level {
        Level::Portable => 0,
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        _ => {
            let len = dst.len();
            simd::add(level, &mut [&mut *dst], &[src], &[coefficient], len)
        }
    };
    portable::mul_add(&mut dst[done..], &src[done..], MulTable::of(coefficient));
}

#[cfg(test)]
mod tests;
