//! What an output continuation says of a transfer: all that a server knows of it.
//!
//! ```text
//!   state   print of the file 8 | client 4 | where the answer begins 8 | stride 4 | its offset 8 | bits 1
//!           | for each that follows: bytes to it, a number | bits 1
//!   number  seven bits a byte, low first, the eighth bit of all but the last
//!   bits    of the byte at which a stride begins: a one, and those that are before it
//! ```
//!
//! The last of them is where the continuation ends, and the next one begins.

use crate::jpeg::Partial;
use crate::picture::Checkpoint;

/// Most strides of a continuation: with it, and what else there is, no more than 768 bytes.
pub const MAX_STRIDES: usize = 160;

/// A part of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Which file.
    pub print: [u8; 8],
    /// Whom it is for.
    pub client: u32,
    /// Where the answer begins in the output of its stream.
    pub start: u64,
    /// The stride at which the first checkpoint stands.
    pub stride: usize,
    /// The checkpoints: one at least.
    pub checkpoints: Vec<Checkpoint>,
}

impl State {
    /// The checkpoint from which the byte at `offset` of the file is made, and its stride.
    pub fn before(&self, offset: u64) -> (usize, Checkpoint) {
        // The bits that a byte has from before are in its checkpoint, so the byte is made from there.
        let n = self.checkpoints.partition_point(|at| at.offset <= offset).saturating_sub(1);
        (self.stride + n, self.checkpoints[n])
    }

    /// Where it ends.
    pub fn last(&self) -> (usize, Checkpoint) {
        let n = self.checkpoints.len() - 1;
        (self.stride + n, self.checkpoints[n])
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let (mut out, first) = (self.print.to_vec(), self.checkpoints[0]);
        out.extend(self.client.to_be_bytes());
        out.extend(self.start.to_be_bytes());
        out.extend((self.stride as u32).to_be_bytes());
        out.extend(first.offset.to_be_bytes());
        out.push(first.partial.byte());
        for pair in self.checkpoints.windows(2) {
            let mut left = pair[1].offset - pair[0].offset;
            while left > 0x7f {
                out.push(0x80 | left as u8);
                left >>= 7;
            }
            out.push(left as u8);
            out.push(pair[1].partial.byte());
        }
        out
    }

    /// From those; none if they are not of this form.
    pub fn parse(bytes: &[u8]) -> Option<State> {
        let (print, rest) = bytes.split_first_chunk()?;
        let (client, rest) = rest.split_first_chunk()?;
        let (start, rest) = rest.split_first_chunk()?;
        let (stride, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (&partial, mut rest) = rest.split_first()?;
        let mut offset = u64::from_be_bytes(*offset);
        let mut checkpoints = vec![Checkpoint { offset, partial: Partial::of(partial)? }];
        while !rest.is_empty() {
            let length = rest.iter().position(|byte| byte & 0x80 == 0).filter(|&n| n < 4)? + 1;
            let number = rest[..length].iter().rev();
            offset += number.fold(0, |sum, &byte| sum << 7 | u64::from(byte & 0x7f));
            let partial = Partial::of(*rest.get(length)?)?;
            checkpoints.push(Checkpoint { offset, partial });
            rest = &rest[length + 1..];
        }
        Some(State {
            print: *print,
            client: u32::from_be_bytes(*client),
            start: u64::from_be_bytes(*start),
            stride: u32::from_be_bytes(*stride) as usize,
            checkpoints,
        })
    }
}
