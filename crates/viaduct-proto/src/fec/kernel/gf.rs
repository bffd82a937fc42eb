//! GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), in which 2 generates every
//! element but zero. All tables are computed at compile time.

/// Polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// Multiplication table of one coefficient: its products with the 16 values of a byte's low half,
/// then with those of the high half. The product of the coefficient with a byte is the sum of two
/// entries; a vector shuffle looks up one entry for each byte of a register.
#[derive(Debug)]
#[repr(align(32))]
pub struct MulTable(pub [u8; 32]);

static TABLES: [MulTable; 256] = tables();
static INVERSES: [u8; 256] = inverses();
/// Multiplication tables as bit matrices for GFNI: the row for bit i of a product is byte 7 - i,
/// with a bit set for each bit of the other factor that contributes to bit i.
#[cfg(target_arch = "x86_64")]
pub(super) static MATRICES: [u64; 256] = matrices();

impl MulTable {
    /// Returns the table of `coefficient`.
    #[inline]
    pub fn of(coefficient: u8) -> &'static MulTable {
        &TABLES[usize::from(coefficient)]
    }

    /// `coefficient * x`.
    #[inline]
    pub fn times(&self, x: u8) -> u8 {
        self.0[usize::from(x & 15)] ^ self.0[16 + usize::from(x >> 4)]
    }
}

/// `a * b`.
#[inline]
pub fn mul(a: u8, b: u8) -> u8 {
    MulTable::of(a).times(b)
}

/// Inverse of `a`; 0 for 0, which has none.
#[inline]
pub fn inverse(a: u8) -> u8 {
    INVERSES[usize::from(a)]
}

/// Product, computed bit by bit.
const fn slow_mul(a: u8, b: u8) -> u8 {
    let (mut sum, mut shifted, mut left) = (0, a, b);
    while left != 0 {
        if left & 1 != 0 {
            sum ^= shifted;
        }
        let overflow = shifted & 0x80 != 0;
        shifted <<= 1;
        if overflow {
            shifted ^= POLYNOMIAL;
        }
        left >>= 1;
    }
    sum
}

const fn tables() -> [MulTable; 256] {
    let mut all = [const { MulTable([0; 32]) }; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut half = 0;
        while half < 16 {
            all[coefficient].0[half] = slow_mul(coefficient as u8, half as u8);
            all[coefficient].0[16 + half] = slow_mul(coefficient as u8, (half as u8) << 4);
            half += 1;
        }
        coefficient += 1;
    }
    all
}

#[cfg(target_arch = "x86_64")]
const fn matrices() -> [u64; 256] {
    let mut all = [0; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut column = 0;
        while column < 8 {
            let product = slow_mul(coefficient as u8, 1 << column);
            let mut bit = 0;
            while bit < 8 {
                all[coefficient] |= (((product >> bit) & 1) as u64) << (8 * (7 - bit) + column);
                bit += 1;
            }
            column += 1;
        }
        coefficient += 1;
    }
    all
}

/// Inverses, from the powers of 2 and of 1/2 (0x8e): the product of their n-th powers is 1.
const fn inverses() -> [u8; 256] {
    let mut all = [0; 256];
    let (mut power, mut inverse) = (1, 1);
    let mut step = 0;
    while step < 255 {
        all[power as usize] = inverse;
        power = slow_mul(power, 2);
        inverse = slow_mul(inverse, 0x8e);
        step += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_multiply_as_bits_do() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), slow_mul(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        assert!((1..=255).all(|a| mul(a, inverse(a)) == 1));
        assert_eq!(inverse(0), 0);
    }

    #[test]
    fn multiplication_distributes_over_addition() {
        for a in 0..=255u8 {
            for b in (0..=255u8).step_by(7) {
                assert_eq!(mul(a, b ^ 0x53), mul(a, b) ^ mul(a, 0x53));
            }
        }
    }
}
