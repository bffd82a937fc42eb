//! Encoding of integers, big endian or of variable length, and of byte strings preceded by their
//! length. [`Reader`] parses all of these.

pub(crate) use crate::reader::Reader;

pub(crate) fn put_u48(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[2..]);
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_have_one_encoding() {
        for value in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let bits = 64 - value.leading_zeros() as usize;
            assert_eq!(out.len(), bits.div_ceil(7).max(1));
            assert_eq!(Reader(&out).varint(), Some(value));
        }
        assert_eq!(Reader(&[0x80, 0]).varint(), None, "not the shortest encoding");
        assert_eq!(Reader(&[0xff; 10]).varint(), None, "more than 64 bits");
    }
}
