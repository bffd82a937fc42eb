//! The arithmetic without vectors: what a machine without them runs, and the twin that the others
//! are checked against.

use super::gf::MulTable;

/// Adds `table * src` to `dst`, as far as both reach.
pub(super) fn mul_add(dst: &mut [u8], src: &[u8], table: &MulTable) {
    if table.times(1) == 1 {
        return xor(dst, src);
    }
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= table.times(*s);
    }
}

/// Adds `src` to `dst`, as far as both reach. The compiler makes vectors of this one.
pub(super) fn xor(dst: &mut [u8], src: &[u8]) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= *s;
    }
}
