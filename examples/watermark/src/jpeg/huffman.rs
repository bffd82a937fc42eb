//! Huffman tables, for decoding and encoding (ITU-T T.81, annex C and F.2.2.3).

use super::Wrong;
use super::bits::Reader;

/// Huffman table: symbols by code, and codes by symbol.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// For each code length, from 1: the first code, the number of codes, and the index of their
    /// first symbol.
    lengths: [(u16, u16, u16); 16],
    symbols: Vec<u8>,
    /// Code of each symbol, and its length in bits; length 0 if the symbol has no code.
    codes: Vec<(u16, u8)>,
}

impl Table {
    /// Builds a table from the number of codes of each length, and the symbols in code order.
    pub(super) fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Table, Wrong> {
        let mut lengths = [(0, 0, 0); 16];
        let mut codes = vec![(0, 0); 256];
        let (mut code, mut at) = (0_u32, 0_usize);
        for (n, &count) in counts.iter().enumerate() {
            lengths[n] = (code as u16, count.into(), at as u16);
            for &symbol in symbols.get(at..at + usize::from(count)).ok_or(Wrong::Table)? {
                codes[usize::from(symbol)] = (code as u16, n as u8 + 1);
                code += 1;
            }
            if code > 1 << (n + 1) {
                return Err(Wrong::Table);
            }
            at += usize::from(count);
            code <<= 1;
        }
        Ok(Table { lengths, symbols: symbols[..at].to_vec(), codes })
    }

    /// Reads the next symbol.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> Option<u8> {
        let next = reader.peek();
        for (n, &(first, count, at)) in self.lengths.iter().enumerate() {
            let above = (next >> (15 - n)).wrapping_sub(first);
            if above < count {
                reader.take(n as u8 + 1)?;
                return self.symbols.get(usize::from(at + above)).copied();
            }
        }
        None
    }

    /// Returns a symbol's code and its length in bits, if the symbol has a code.
    pub(super) fn code(&self, symbol: u8) -> Option<(u16, u8)> {
        Some(self.codes[usize::from(symbol)]).filter(|(_, length)| *length > 0)
    }
}
