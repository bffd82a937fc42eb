//! Coefficients of every kind of equation, shared by encoder and decoder.

use super::kernel::gf::{inverse, mul};
use super::{Cover, Draw, MAX_COVER, Row, Seq};

/// Coefficient of the packet at `position` (from 0) of a repair's cover; 0 if the packet is not
/// in the repair.
///
/// Reed-Solomon rows are those of a Cauchy matrix with the entries 1 / (x + y), where y is the
/// position and x is 255 minus the row. Each column is divided by its entry in row 0. Row 0 thus is
/// all ones, and any square part of the matrix can be inverted, so any r of the r + c packets and
/// repairs of a block are enough. A block that was flushed early has fewer columns.
///
/// Window rows are drawn from the seed and the packet's number.
#[inline]
pub fn coefficient(row: Row, cover: Cover, position: u16) -> u8 {
    match row {
        Row::Xor { .. } => 1,
        Row::ReedSolomon { row } => reed_solomon(row, position as u8),
        Row::Window(draw) => {
            let is_dense = cover.count - position <= draw.dense;
            draw.of(cover.first + u64::from(position), is_dense)
        }
    }
}

/// Coefficient of the packet at position `y` of a block in parity row `row`.
pub(super) fn reed_solomon(row: u8, y: u8) -> u8 {
    mul(255 ^ y, inverse((255 - row) ^ y))
}

impl Draw {
    /// Coefficient of packet `seq`; 0 if it is not in the sum.
    #[inline]
    pub(super) fn of(self, seq: Seq, is_dense: bool) -> u8 {
        let mixed = mix(seq ^ u64::from(self.seed) << 48);
        if !is_dense && mixed as u8 >= self.density {
            return 0;
        }
        // The upper 32 bits, scaled to 0 to 254.
        1 + (((mixed >> 32) * 255) >> 32) as u8
    }
}

/// Returns whether a repair of this row can cover `count` packets: a Reed-Solomon row and column
/// must not share a point of the field, so r + c is at most 256.
pub(super) fn row_covers(row: Row, count: u16) -> bool {
    match row {
        Row::Xor { .. } => count <= 255,
        Row::ReedSolomon { row } => u16::from(row) + count <= 255,
        Row::Window(draw) => count <= MAX_COVER && draw.dense > 0,
    }
}

/// Mixes the bits of `x`, so that each of them affects all bits of the result (the finaliser of
/// SplitMix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(count: u16) -> Cover {
        Cover { first: 1 << 50, stride: 1, count }
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
    fn window_coefficients_take_every_value_and_leave_out_a_share_of_the_old() {
        let mut seen = [0u32; 256];
        for seed in 0..1_000 {
            let draw = Draw { seed, dense: 155, density: 64 };
            for position in 0..255 {
                let coefficient = coefficient(Row::Window(draw), cover(255), position);
                assert!(position < 100 || coefficient != 0);
                seen[usize::from(coefficient)] += 1;
            }
        }
        assert!((74_000..76_000).contains(&seen[0]), "three quarters of 100 each: {}", seen[0]);
        assert!(seen[1..].iter().all(|n| (550..900).contains(n)), "{seen:?}");
    }

    #[test]
    fn a_packet_is_in_a_share_of_the_repairs_and_two_repairs_are_not_alike() {
        let draw = |seed| Draw { seed, dense: 1, density: 64 };
        let together =
            (0..4_096).filter(|&seq| draw(1).of(seq, false) != 0 && draw(2).of(seq, false) != 0);
        assert!((200..320).contains(&together.count()), "a sixteenth");
    }
}
