//! JPEG files (ITU-T T.81) as three parts: the head before the coded picture, the picture as coding
//! units, and the tail after it. Re-encoding can start at any coding unit.
//!
//! ```text
//!   file   head: markers, tables │ scan: unit │ unit │ unit ...                 │ tail
//!   unit   blocks; a block: tokens, each a Huffman code and the bits after it
//! ```
//!
//! Baseline and extended sequential files of one scan are supported, with 8 bits a sample, Huffman
//! coding and no restart intervals, as `cjpeg` and cameras write them. Coefficients are copied, not
//! recomputed, so only a mark changes the picture. A block depends on the blocks before it in the
//! scan only through the bit position at which it begins.

mod bits;
mod huffman;
mod markers;

use std::ops::Range;

use bits::Reader;
pub use bits::{Partial, Writer};
use huffman::Table;

/// Error of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// The file does not begin with a JPEG start marker.
    #[error("not a JPEG file")]
    NoJpeg,
    /// The file is truncated, or its lengths contradict each other.
    #[error("the file is truncated, or its lengths are wrong")]
    Cut,
    /// Unsupported kind of JPEG.
    #[error("{0} is not supported: a baseline file of one scan is expected, as cjpeg writes it")]
    Kind(&'static str),
    /// A Huffman table is invalid or missing.
    #[error("a Huffman table is invalid or missing")]
    Table,
    /// The coded picture does not match its tables.
    #[error("the coded picture is damaged at unit {0}")]
    Damaged(usize),
}

/// Huffman code of a block, and the bits that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// AC coefficients: the number of zeros before the value, and its size in bits. DC coefficient:
    /// its size in bits.
    pub symbol: u8,
    /// Bits of the value.
    pub bits: u16,
}

impl Token {
    /// Number of bits that follow the code.
    fn size(self) -> u8 {
        self.symbol & 15
    }

    /// Absolute value of an AC coefficient; 0 if the token holds no coefficient.
    pub fn magnitude(self) -> u16 {
        let (size, bits) = (self.size(), self.bits);
        match size {
            0 => 0,
            _ if bits >> (size - 1) == 1 => bits,
            _ => ((1 << size) - 1) - bits,
        }
    }

    /// Returns the same coefficient with another absolute value, 1 to 1023.
    #[must_use]
    pub fn with_magnitude(self, magnitude: u16) -> Token {
        let size = (16 - magnitude.leading_zeros()) as u8;
        let negative = self.bits >> (self.size() - 1) == 0;
        let bits = if negative { ((1 << size) - 1) - magnitude } else { magnitude };
        Token { symbol: self.symbol & 0xf0 | size, bits }
    }
}

/// Block of 8 by 8 coefficients, as tokens: first DC, then AC.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Tokens of the block.
    pub tokens: Vec<Token>,
    tables: (usize, usize),
}

/// Parsed JPEG file. See the [module](self).
#[derive(Clone, Debug)]
pub struct Jpeg {
    /// Bytes before the coded picture.
    pub head: Vec<u8>,
    /// Bytes after the coded picture.
    pub tail: Vec<u8>,
    scan: Vec<u8>,
    scan_len: usize,
    /// Numbers of the DC and AC tables of each block of a unit.
    blocks: Vec<(usize, usize)>,
    units: usize,
    tables: [[Option<Table>; 4]; 2],
}

impl Jpeg {
    /// Parses a file. Only [`Jpeg::unit`] decodes the coded picture.
    ///
    /// # Errors
    /// Any [`Wrong`].
    pub fn parse(file: &[u8]) -> Result<Jpeg, Wrong> {
        markers::parse(file)
    }

    /// Number of coding units (MCUs) of the picture.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Number of blocks of each unit.
    pub fn blocks_a_unit(&self) -> usize {
        self.blocks.len()
    }

    /// Length in bytes of the coded picture in the file.
    pub fn scan_len(&self) -> usize {
        self.scan_len
    }

    /// Reads the blocks of the unit that begins at bit `at` of the picture. Returns the bit at
    /// which the next unit begins; `None` if the unit is damaged.
    pub fn unit(&self, at: usize, blocks: &mut Vec<Block>) -> Option<usize> {
        blocks.resize_with(self.blocks.len(), Block::default);
        let mut reader = Reader::new(&self.scan, at);
        for (&tables, block) in self.blocks.iter().zip(blocks) {
            block.tables = tables;
            self.block(&mut reader, block)?;
        }
        Some(reader.position())
    }

    fn block(&self, reader: &mut Reader<'_>, block: &mut Block) -> Option<()> {
        let (dc, ac) = (self.table(0, block.tables.0)?, self.table(1, block.tables.1)?);
        block.tokens.clear();
        let symbol = dc.read(reader).filter(|&size| size <= 11)?;
        block.tokens.push(Token { symbol, bits: reader.take(symbol)? });
        let mut coefficient = 1;
        while coefficient < 64 {
            let symbol = ac.read(reader)?;
            let (zeros, size) = (symbol >> 4, symbol & 15);
            let token = Token { symbol, bits: reader.take(size)? };
            block.tokens.push(token);
            match (zeros, size) {
                (15, 0) => coefficient += 16,
                (_, 0) => return Some(()),
                (_, 11..) => return None,
                _ => coefficient += zeros + 1,
            }
        }
        (coefficient == 64).then_some(())
    }

    /// Returns whether a block's tables have a code for an AC token.
    pub fn has_code(&self, block: &Block, token: Token) -> bool {
        self.table(1, block.tables.1).is_some_and(|table| table.code(token.symbol).is_some())
    }

    /// Encodes blocks.
    pub fn write(&self, blocks: &[Block], out: &mut Writer) {
        for block in blocks {
            for (n, token) in block.tokens.iter().enumerate() {
                let table = match n {
                    0 => self.table(0, block.tables.0),
                    _ => self.table(1, block.tables.1),
                };
                // Tokens that were read, or checked by `has_code`, have a code.
                if let Some((code, length)) = table.and_then(|table| table.code(token.symbol)) {
                    out.put(code, length);
                    out.put(token.bits, token.size());
                }
            }
        }
    }

    fn table(&self, class: usize, number: usize) -> Option<&Table> {
        self.tables[class][number].as_ref()
    }
}

/// Returns the bytes in `range` of the file; [`Wrong::Cut`] if the file is shorter.
fn part(file: &[u8], range: Range<usize>) -> Result<&[u8], Wrong> {
    file.get(range).ok_or(Wrong::Cut)
}
