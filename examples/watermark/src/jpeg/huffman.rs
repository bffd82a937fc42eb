//! Huffman tables, both ways (ITU-T T.81, annex C and F.2.2.3).

use super::Wrong;
use super::bits::Reader;

/// A table: symbols by code, codes by symbol.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Of each length, from 1: the first code, how many there are, and where their symbols begin.
    lengths: [(u16, u16, u16); 16],
    symbols: Vec<u8>,
    /// Code and its length, of each symbol; length 0: it has none.
    codes: Vec<(u16, u8)>,
}

impl Table {
    /// From how many codes there are of each length, and the symbols in their order.
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

    /// The next symbol.
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

    /// A symbol's code and its length, if it has one.
    pub(super) fn code(&self, symbol: u8) -> Option<(u16, u8)> {
        Some(self.codes[usize::from(symbol)]).filter(|(_, length)| *length > 0)
    }
}
