//! A picture with a client's mark, from any place on (section 6.2).
//!
//! Where a unit begins in what a client gets depends on all units before it: codes have become longer, bytes
//! were stuffed. So a server that keeps nothing would have to begin at the beginning. Instead the client keeps, in
//! its output continuation, where every so many units begin: byte, and bits of that byte.
//!
//! ```text
//!   head │ unit 0 ... │ unit n ... │ unit 2n ... │ ... │ tail
//!        └ Checkpoint ┴ Checkpoint ┴ offset, bits
//! ```
//!
//! What is known of the file itself, and is the same for all clients, is an index that is made when it is
//! opened: at which bit of the file every so many units begin.

use std::ops::Range;

use ring::digest;

use crate::jpeg::{Jpeg, Partial, Writer, Wrong};
use crate::mark::{Key, Mark};

/// Bytes of the file between two checkpoints, about: what is computed for nothing before a range.
const STRIDE: usize = 4096;

/// A file, ready to be marked.
#[derive(Debug)]
pub struct Picture {
    jpeg: Jpeg,
    /// Units between two checkpoints.
    stride: usize,
    /// The bit of the file at which each stride of units begins.
    index: Vec<usize>,
    print: [u8; 8],
}

/// Where a stride of units begins for a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The byte, from the beginning of the file.
    pub offset: u64,
    /// What of the byte is before them.
    pub partial: Partial,
}

impl Picture {
    /// Reads a file, and goes through all of it once.
    ///
    /// # Errors
    /// It is no JPEG file of the kind that is served, or damaged.
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

    /// By which replicas know that they have the same file.
    pub fn print(&self) -> [u8; 8] {
        self.print
    }

    /// How many strides of units there are.
    pub fn strides(&self) -> usize {
        self.index.len()
    }

    /// The first checkpoint, which is the same for all.
    pub fn first(&self) -> Checkpoint {
        Checkpoint { offset: self.jpeg.head.len() as u64, partial: Partial::default() }
    }

    /// Where the strides from `from` on begin for a client, whose first begins at `at`: that, and up to
    /// `most` behind it, of which the last may be the end of the file.
    pub fn checkpoints(
        &self,
        key: &Key,
        client: u32,
        from: usize,
        at: Checkpoint,
        most: usize,
    ) -> Vec<Checkpoint> {
        let (mut mark, mut found) = (key.mark(client), vec![at]);
        let mut writer = Writer::behind(at.partial);
        for stride in from..self.strides().min(from + most) {
            self.write(stride, &mut mark, &mut writer);
            let offset = at.offset + writer.bytes.len() as u64;
            found.push(Checkpoint { offset, partial: writer.partial() });
        }
        found
    }

    /// The client's bytes in `range`, of the file with its mark; `stride` begins at `at`, which is before all of
    /// them but those of the head. Fewer if the file ends before.
    pub fn bytes(
        &self,
        key: &Key,
        client: u32,
        (stride, at): (usize, Checkpoint),
        range: Range<u64>,
    ) -> Vec<u8> {
        let head = cut(&self.jpeg.head, 0, &range);
        let mut writer = Writer::behind(at.partial);
        let mut mark = key.mark(client);
        for stride in stride..self.strides() {
            if at.offset + writer.bytes.len() as u64 >= range.end {
                break;
            }
            self.write(stride, &mut mark, &mut writer);
        }
        [head, cut(&writer.bytes, at.offset, &range)].concat()
    }

    /// The whole file with a client's mark, in one go.
    pub fn whole(&self, key: &Key, client: u32) -> Vec<u8> {
        self.bytes(key, client, (0, self.first()), 0..u64::MAX)
    }

    /// Writes a stride of units, and what is behind the last of them.
    fn write(&self, stride: usize, mark: &mut Mark<'_>, out: &mut Writer) {
        let mut at = self.index[stride];
        let (first, mut blocks) = (stride * self.stride, Vec::new());
        for unit in first..self.jpeg.units().min(first + self.stride) {
            // It was read when the index was made.
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

/// What of `bytes`, which begin at `start`, is in `range`.
fn cut<'a>(bytes: &'a [u8], start: u64, range: &Range<u64>) -> &'a [u8] {
    let place = |at: u64| at.saturating_sub(start).min(bytes.len() as u64) as usize;
    &bytes[place(range.start)..place(range.end).max(place(range.start))]
}
