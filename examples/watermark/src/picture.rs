//! Pictures with a client's mark, produced from any offset (section 6.2).
//!
//! The offset of a unit in a client's file depends on all units before it, because the mark changes
//! code lengths and byte stuffing. So without further information, a server that keeps no state of
//! clients would have to start at the beginning of the file. The client's output continuation
//! therefore records where strides of units begin: the byte offset, and the leading bits of that
//! byte.
//!
//! ```text
//!   head │ unit 0 ... │ unit n ... │ unit 2n ... │ ... │ tail
//!        └ Checkpoint ┴ Checkpoint ┴ offset, bits
//! ```
//!
//! The source file has an index, which is built when the file is opened and is the same for all
//! clients. The index contains the bit position in the coded picture at which each stride of units
//! begins.

use std::ops::Range;

use ring::digest;

use crate::jpeg::{Jpeg, Partial, Writer, Wrong};
use crate::mark::{Key, Mark};

/// Approximate bytes of the file between two checkpoints. Producing a range also computes, and
/// discards, less than one stride before the range.
const STRIDE: usize = 4096;

/// Source file with its index, ready to be marked.
#[derive(Debug)]
pub struct Picture {
    jpeg: Jpeg,
    /// Number of units between two checkpoints.
    stride: usize,
    /// Bit of the coded picture, without stuffing, at which each stride of units begins.
    index: Vec<usize>,
    print: [u8; 8],
}

/// Start of a stride of units in a client's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Byte offset from the beginning of the file.
    pub offset: u64,
    /// Bits of that byte that precede the stride.
    pub partial: Partial,
}

impl Picture {
    /// Parses a file, and decodes all of it once to build the index.
    ///
    /// # Errors
    /// The file is not a JPEG file of a supported kind, or it is damaged.
    pub fn open(file: &[u8]) -> Result<Picture, Wrong> {
        let jpeg = Jpeg::parse(file)?;
        let strides = jpeg.scan_len().div_ceil(STRIDE).max(1);
        let stride = jpeg.units().div_ceil(strides);
        let (mut at, mut index, mut blocks) = (0, Vec::new(), Vec::new());
        for n in 0..jpeg.units() {
            if n % stride == 0 {
                index.push(at);
            }
            at = jpeg.unit(at, &mut blocks).ok_or(Wrong::Damaged(n))?;
        }
        let digest = digest::digest(&digest::SHA256, file);
        let print = digest.as_ref().first_chunk().copied().unwrap_or_default();
        Ok(Picture { jpeg, stride, index, print })
    }

    /// Fingerprint by which replicas recognise the same file: the first 8 bytes of the file's
    /// SHA-256.
    pub fn print(&self) -> [u8; 8] {
        self.print
    }

    /// Number of strides of units.
    pub fn strides(&self) -> usize {
        self.index.len()
    }

    /// Returns the first checkpoint, which is the same for all clients.
    pub fn first(&self) -> Checkpoint {
        Checkpoint { offset: self.jpeg.head.len() as u64, partial: Partial::default() }
    }

    /// Returns a client's checkpoints from stride `from`, which begins at `at`: `at` itself and up
    /// to `most` further checkpoints, the last of which may be the end of the file.
    pub fn checkpoints(
        &self,
        key: &Key,
        client: u32,
        from: usize,
        at: Checkpoint,
        most: usize,
    ) -> Vec<Checkpoint> {
        let (mut mark, mut found) = (key.mark(client), vec![at]);
        let mut writer = Writer::after(at.partial);
        for stride in from..self.strides().min(from + most) {
            self.write(stride, &mut mark, &mut writer);
            let offset = at.offset + writer.bytes.len() as u64;
            found.push(Checkpoint { offset, partial: writer.partial() });
        }
        found
    }

    /// Returns the bytes in `range` of the file with a client's mark. `stride` begins at `at`,
    /// which must not be after the first byte of the range that follows the head. The result is
    /// shorter if the file ends within the range.
    pub fn bytes(
        &self,
        key: &Key,
        client: u32,
        (stride, at): (usize, Checkpoint),
        range: Range<u64>,
    ) -> Vec<u8> {
        let head = cut(&self.jpeg.head, 0, &range);
        let mut writer = Writer::after(at.partial);
        let mut mark = key.mark(client);
        for stride in stride..self.strides() {
            if at.offset + writer.bytes.len() as u64 >= range.end {
                break;
            }
            self.write(stride, &mut mark, &mut writer);
        }
        [head, cut(&writer.bytes, at.offset, &range)].concat()
    }

    /// Returns the complete file with a client's mark.
    pub fn whole(&self, key: &Key, client: u32) -> Vec<u8> {
        self.bytes(key, client, (0, self.first()), 0..u64::MAX)
    }

    /// Writes a stride of units; after the last stride, the padding and the tail of the file.
    fn write(&self, stride: usize, mark: &mut Mark<'_>, out: &mut Writer) {
        let mut at = self.index[stride];
        let (first, mut blocks) = (stride * self.stride, Vec::new());
        for unit in first..self.jpeg.units().min(first + self.stride) {
            // `open` has decoded all units, so this does not fail.
            let Some(next) = self.jpeg.unit(at, &mut blocks) else { return };
            for (n, block) in blocks.iter_mut().enumerate() {
                mark.put(&self.jpeg, unit * self.jpeg.blocks_a_unit() + n, block);
            }
            self.jpeg.write(&blocks, out);
            at = next;
        }
        if stride + 1 == self.strides() {
            out.pad();
            out.bytes.extend_from_slice(&self.jpeg.tail);
        }
    }
}

/// Returns the part of `bytes`, which begin at offset `start`, that is in `range`.
fn cut<'a>(bytes: &'a [u8], start: u64, range: &Range<u64>) -> &'a [u8] {
    let place = |at: u64| at.saturating_sub(start).min(bytes.len() as u64) as usize;
    &bytes[place(range.start)..place(range.end).max(place(range.start))]
}
