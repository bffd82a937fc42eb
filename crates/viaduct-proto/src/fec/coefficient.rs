//! The coefficients of every kind of equation: encoder and decoder ask the same function.

use super::Row;
use super::kernel::gf::{inverse, mul};

/// The coefficient of the packet at `position` (from 0) of a repair's cover.
///
/// Reed-Solomon rows are those of a Cauchy matrix, 1 / (x + y) with y the position and x counted
/// down from 255 by row, each column divided by its entry in row 0. Row 0 so is all ones, and any
/// square part of the matrix can be inverted, which makes any r of r + c packets enough. A block
/// that was flushed early just has fewer columns.
///
/// Window rows are drawn from the seed; no coefficient is 0.
#[inline]
pub fn coefficient(row: Row, position: usize) -> u8 {
    match row {
        Row::Xor { .. } => 1,
        Row::ReedSolomon { row } => {
            let y = position as u8;
            mul(255 ^ y, inverse((255 - row) ^ y))
        }
        Row::Window { seed } => {
            let mixed = mix(u64::from(seed) << 16 | position as u64);
            // The upper 32 bits, scaled to 0 to 254.
            1 + (((mixed >> 32) * 255) >> 32) as u8
        }
    }
}

/// Whether a repair of this row can cover `count` packets: a Reed-Solomon row and column must not
/// share a point of the field, so r + c is at most 256.
pub(super) fn row_covers(row: Row, count: u8) -> bool {
    match row {
        Row::ReedSolomon { row } => u16::from(row) + u16::from(count) <= 255,
        Row::Xor { .. } | Row::Window { .. } => true,
    }
}

/// Spreads every bit of `x` over all of them (the finaliser of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reed_solomon(row: u8, position: usize) -> u8 {
        coefficient(Row::ReedSolomon { row }, position)
    }

    #[test]
    fn the_first_row_of_reed_solomon_is_the_exclusive_or() {
        assert!((0..255).all(|position| reed_solomon(0, position) == 1));
    }

    #[test]
    fn pairs_of_rows_and_columns_can_be_inverted() {
        for (row, other) in [(0, 1), (0, 2), (1, 2), (3, 9)] {
            for a in 0..200 {
                for b in a + 1..200 {
                    let down = mul(reed_solomon(row, a), reed_solomon(other, b));
                    let up = mul(reed_solomon(row, b), reed_solomon(other, a));
                    assert_ne!(down, up, "rows {row}, {other}, columns {a}, {b}");
                }
            }
        }
    }

    #[test]
    fn window_coefficients_are_never_zero_and_take_every_other_value() {
        let mut seen = [0u32; 256];
        for seed in 0..1000 {
            for position in 0..255 {
                seen[usize::from(coefficient(Row::Window { seed }, position))] += 1;
            }
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
