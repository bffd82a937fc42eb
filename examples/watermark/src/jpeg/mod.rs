//! A JPEG file as this example sees it (ITU-T T.81): what stands before the coded picture, the picture as
//! coding units that can be coded anew from any of them on, and what stands behind.
//!
//! ```text
//!   file   head: markers, tables │ scan: unit │ unit │ unit ...                 │ tail
//!   unit   blocks; a block: tokens, each a Huffman code and the bits behind it
//! ```
//!
//! Baseline and extended sequential files of one scan, 8 bits a sample, Huffman coding, without restart
//! intervals: what `cjpeg` and cameras make. Coefficients are never computed with, so nothing is lost but what a
//! mark changes. What precedes a block in its scan matters to it in one way alone: by the bit at which
//! it begins.

mod bits;
mod huffman;
mod markers;

use std::ops::Range;

use bits::Reader;
pub use bits::{Partial, Writer};
use huffman::Table;

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It does not begin as JPEG files do.
    #[error("no JPEG file")]
    NoJpeg,
    /// It ends before its end, or lengths contradict each other.
    #[error("the file is cut, or its lengths are wrong")]
    Cut,
    /// Another kind of JPEG.
    #[error("{0} is not served: a baseline file of one scan is expected, as cjpeg makes it")]
    Kind(&'static str),
    /// A table is not one, or is missing.
    #[error("a Huffman table is wrong, or missing")]
    Table,
    /// The picture is not coded as its tables say.
    #[error("the coded picture is damaged at unit {0}")]
    Damaged(usize),
}

/// One code of a block, and the bits behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Of AC coefficients: how many zeros precede the value, and how many bits it has. Of the DC
    /// coefficient: how many bits.
    pub symbol: u8,
    /// These bits.
    pub bits: u16,
}

impl Token {
    /// How many bits stand behind the code.
    fn size(self) -> u8 {
        self.symbol & 15
    }

    /// The absolute value of an AC coefficient; 0 where the token is none.
    pub fn magnitude(self) -> u16 {
        let (size, bits) = (self.size(), self.bits);
        match size {
            0 => 0,
            _ if bits >> (size - 1) == 1 => bits,
            _ => ((1 << size) - 1) - bits,
        }
    }

    /// The same coefficient with another absolute value, 1 to 1023.
    #[must_use]
    pub fn with_magnitude(self, magnitude: u16) -> Token {
        let size = (16 - magnitude.leading_zeros()) as u8;
        let negative = self.bits >> (self.size() - 1) == 0;
        let bits = if negative { ((1 << size) - 1) - magnitude } else { magnitude };
        Token { symbol: self.symbol & 0xf0 | size, bits }
    }
}

/// A block of 8 by 8 coefficients, as codes: first DC's, then AC's.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The codes.
    pub tokens: Vec<Token>,
    tables: (usize, usize),
}

/// A file. See the [module](self).
#[derive(Clone, Debug)]
pub struct Jpeg {
    /// All before the coded picture.
    pub head: Vec<u8>,
    /// All behind it.
    pub tail: Vec<u8>,
    scan: Vec<u8>,
    scan_len: usize,
    /// The tables of each block of a unit, for DC and AC.
    blocks: Vec<(usize, usize)>,
    units: usize,
    tables: [[Option<Table>; 4]; 2],
}

impl Jpeg {
    /// Reads a file; the coded picture is only looked at by [`Jpeg::unit`].
    ///
    /// # Errors
    /// As [`Wrong`] says.
    pub fn parse(file: &[u8]) -> Result<Jpeg, Wrong> {
        markers::parse(file)
    }

    /// Coding units (MCUs) of the picture.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Blocks of each.
    pub fn blocks_a_unit(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of the coded picture in the file.
    pub fn scan_len(&self) -> usize {
        self.scan_len
    }

    /// Reads the blocks of the unit that begins at bit `at` of the picture; where the next one begins.
    /// None if it is damaged.
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

    /// Whether a block's tables have a code for an AC token.
    pub fn has_code(&self, block: &Block, token: Token) -> bool {
        self.table(1, block.tables.1).is_some_and(|table| table.code(token.symbol).is_some())
    }

    /// Writes blocks.
    pub fn write(&self, blocks: &[Block], out: &mut Writer) {
        for block in blocks {
            for (n, token) in block.tokens.iter().enumerate() {
                let table = match n {
                    0 => self.table(0, block.tables.0),
                    _ => self.table(1, block.tables.1),
                };
                // What was read, or asked for, has a code.
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

/// Where `range` of the file stands, if it does.
fn part(file: &[u8], range: Range<usize>) -> Result<&[u8], Wrong> {
    file.get(range).ok_or(Wrong::Cut)
}
