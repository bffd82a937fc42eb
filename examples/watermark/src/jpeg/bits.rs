//! Bits of entropy-coded data (ITU-T T.81, B.1.1.5), most significant first. In the file, a stuffed
//! zero byte follows each data byte `ff`.

/// Returns the data of a scan without stuffed bytes, up to the next marker, and the number of file
/// bytes that it occupies.
pub(super) fn unstuffed(file: &[u8]) -> (Vec<u8>, usize) {
    let (mut data, mut at) = (Vec::with_capacity(file.len()), 0);
    while let Some(&byte) = file.get(at) {
        let stuffed = file.get(at + 1) == Some(&0);
        if byte == 0xff && !stuffed {
            break;
        }
        data.push(byte);
        at += if byte == 0xff { 2 } else { 1 };
    }
    (data, at)
}

/// Bit reader.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    data: &'a [u8],
    /// Number of bits read.
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader that starts at bit `at`.
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        Reader { data, at }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the next 16 bits without consuming them; bits past the end are ones.
    pub(super) fn peek(&self) -> u16 {
        let byte = |n: usize| u32::from(self.data.get(self.at / 8 + n).copied().unwrap_or(0xff));
        let three = byte(0) << 16 | byte(1) << 8 | byte(2);
        (three >> (8 - self.at % 8)) as u16
    }

    /// Reads the next `count` bits, at most 16; `None` if fewer are left.
    pub(super) fn take(&mut self, count: u8) -> Option<u16> {
        let bits = if count == 0 { 0 } else { self.peek() >> (16 - count) };
        self.at += usize::from(count);
        (self.at <= self.data.len() * 8).then_some(bits)
    }
}

/// Bit writer that stuffs bytes as a file requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// Complete bytes, with a zero stuffed after each `ff`.
    pub bytes: Vec<u8>,
    partial: Partial,
}

/// Bits of an incomplete byte, at most seven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    bits: u8,
    count: u8,
}

impl Partial {
    /// Encodes the bits in one byte, with a one before them.
    pub fn byte(self) -> u8 {
        1 << self.count | self.bits
    }

    /// Decodes the result of [`Partial::byte`]; `None` for 0.
    pub fn of(byte: u8) -> Option<Partial> {
        let count = byte.checked_ilog2()? as u8;
        Some(Partial { bits: byte & !(1 << count), count })
    }
}

impl Writer {
    /// Creates a writer that continues after these bits.
    pub fn after(partial: Partial) -> Writer {
        Writer { bytes: Vec::new(), partial }
    }

    /// Returns the bits of the incomplete last byte.
    pub fn partial(&self) -> Partial {
        self.partial
    }

    /// Appends the low `count` bits of `bits`, at most 16.
    pub fn put(&mut self, bits: u16, count: u8) {
        let Partial { bits: before, count: filled } = self.partial;
        let mask = (1_u32 << count) - 1;
        let all = u32::from(before) << count | u32::from(bits) & mask;
        let mut left = filled + count;
        while left >= 8 {
            left -= 8;
            let byte = (all >> left) as u8;
            self.bytes.push(byte);
            if byte == 0xff {
                self.bytes.push(0);
            }
        }
        self.partial = Partial { bits: (all & ((1 << left) - 1)) as u8, count: left };
    }

    /// Fills an incomplete last byte with ones.
    pub fn pad(&mut self) {
        if self.partial.count > 0 {
            self.put(0xff, 8 - self.partial.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bits_are_read_wherever_the_writer_is_cut() {
        let values = [(0x3ff_u16, 10), (0, 1), (0xffff, 16), (5, 3), (0x7f, 7), (1, 1), (9, 16)];
        let mut whole = Writer::default();
        values.iter().for_each(|&(bits, count)| whole.put(bits, count));
        for cut in 0..values.len() {
            let (mut first, mut second) = (Writer::default(), Writer::default());
            for (n, &(bits, count)) in values.iter().enumerate() {
                if n == cut {
                    let carried = Partial::of(first.partial().byte()).unwrap();
                    second = Writer::after(carried);
                }
                if n < cut { &mut first } else { &mut second }.put(bits, count);
            }
            assert_eq!([first.bytes, second.bytes].concat(), whole.bytes, "cut at {cut}");
        }
        whole.pad();
        let (data, length) = unstuffed(&[&whole.bytes[..], &[0xff, 0xd9]].concat());
        assert_eq!(length, whole.bytes.len());
        assert!(data.len() < length, "there are stuffed bytes");
        let mut reader = Reader::new(&data, 0);
        for (bits, count) in values {
            assert_eq!(reader.take(count), Some(bits));
        }
        assert_eq!(reader.take(16), None);
        assert_eq!(Partial::of(0), None);
    }
}
