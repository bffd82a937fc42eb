//! Arithmetic without vectors: used on processors without vectors, and as the reference in tests of
//! the vector code.

use super::gf::MulTable;

/// Adds `table * src` to `dst`, up to the shorter length.
pub(super) fn mul_add(dst: &mut [u8], src: &[u8], table: &MulTable) {
    if table.times(1) == 1 {
        return xor(dst, src);
    }
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= table.times(*s);
    }
}

/// Adds `src` to `dst`, up to the shorter length. The compiler vectorises this loop.
pub(super) fn xor(dst: &mut [u8], src: &[u8]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= *s;
    }
}
