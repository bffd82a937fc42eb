//! State of a transfer in an output continuation. The server keeps no other state of the transfer.
//!
//! ```text
//!   state   print of the file 8 | client 4 | start of the answer 8
//!           | stride 4 | its offset 8 | bits 1
//!           | for each further checkpoint: bytes to it, a number | bits 1
//!   number  seven bits a byte, low first, the eighth bit of all but the last
//!   bits    of the byte at which a stride begins: a one, and the bits before the stride
//! ```
//!
//! The continuation ends, and the next one begins, at the last checkpoint.

use crate::jpeg::Partial;
use crate::picture::Checkpoint;

/// Maximum number of strides in a continuation, so that a continuation has at most 768 bytes.
pub const MAX_STRIDES: usize = 160;

/// State of one part of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Fingerprint of the file.
    pub print: [u8; 8],
    /// Client for which the picture is marked.
    pub client: u32,
    /// Position in the stream's output at which the answer begins.
    pub start: u64,
    /// Number of the stride that begins at the first checkpoint.
    pub stride: usize,
    /// Checkpoints, at least one.
    pub checkpoints: Vec<Checkpoint>,
}

impl State {
    /// Returns the checkpoint from which the byte at `offset` of the file is produced, and its
    /// stride.
    pub fn before(&self, offset: u64) -> (usize, Checkpoint) {
        // A checkpoint has the leading bits of the byte at its offset, so this byte is produced
        // from this checkpoint.
        let n = self.checkpoints.partition_point(|at| at.offset <= offset).saturating_sub(1);
        (self.stride + n, self.checkpoints[n])
    }

    /// Returns the last checkpoint and its stride, where this part ends.
    pub fn last(&self) -> (usize, Checkpoint) {
        let n = self.checkpoints.len() - 1;
        (self.stride + n, self.checkpoints[n])
    }

    /// Serialises the state.
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

    /// Parses a serialised state; `None` if it is malformed.
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
