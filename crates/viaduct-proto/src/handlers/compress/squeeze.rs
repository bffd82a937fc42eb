//! Compression of the direction towards the network.

use std::io;

use bytes::Bytes;
use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation as _, OutBuffer};

use super::{GROWTH, HEAD, MAX_PLAIN, PLAIN, SQUEEZED, WINDOW_LOG};
use crate::flow::Buffer;

/// Maximum number of plain blocks after a trial block that did not shrink. The number begins at 1
/// and doubles with each such trial.
const MAX_PLAIN_BLOCKS: u32 = 32;
/// Minimum size of a block that predicts how the next ones compress, in bytes.
const TELLING: usize = 1 << 10;

/// Data that waits to be sent, and its encoder.
pub(super) struct Squeeze {
    level: i32,
    pub(super) waits: Buffer,
    /// Created on first use, because it takes about a megabyte.
    encoder: Option<Encoder<'static>>,
    /// Number of plain blocks left until the next trial.
    plain: u32,
    /// Number of plain blocks after that trial, if it fails.
    next_plain: u32,
}

impl Squeeze {
    pub(super) fn new(level: i32) -> Squeeze {
        Squeeze { level, waits: Buffer::default(), encoder: None, plain: 0, next_plain: 1 }
    }

    /// Takes a block of waiting data, as pieces to be written.
    pub(super) fn block(&mut self) -> io::Result<Vec<Bytes>> {
        let mut pieces = Vec::new();
        let mut length = 0;
        while let Some(piece) = self.waits.pop(MAX_PLAIN - length) {
            length += piece.len();
            pieces.push(piece);
        }
        if self.plain > 0 {
            self.plain -= 1;
            pieces.insert(0, Bytes::from(head(PLAIN, length).to_vec()));
            return Ok(pieces);
        }
        let block = self.squeezed(&pieces, length)?;
        let useless = block.len() - HEAD > length - length / 20;
        if length >= TELLING {
            self.plain = if useless { self.next_plain } else { 0 };
            self.next_plain = if useless { (self.plain * 2).min(MAX_PLAIN_BLOCKS) } else { 1 };
        }
        Ok(vec![block.into()])
    }

    /// Compressed block, shrunk to its size because many short blocks may wait to be sent.
    fn squeezed(&mut self, pieces: &[Bytes], length: usize) -> io::Result<Vec<u8>> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(encoder(self.level)?),
        };
        let mut block = vec![0; HEAD + length + GROWTH];
        let mut out = OutBuffer::around(&mut block[HEAD..]);
        for piece in pieces {
            let mut from = InBuffer::around(piece);
            while from.pos() < piece.len() {
                encoder.run(&mut from, &mut out)?;
            }
        }
        while encoder.flush(&mut out)? > 0 {}
        let length = out.pos();
        block.truncate(HEAD + length);
        block.shrink_to_fit();
        block[..HEAD].copy_from_slice(&head(SQUEEZED, length));
        Ok(block)
    }
}

fn encoder(level: i32) -> io::Result<Encoder<'static>> {
    let mut encoder = Encoder::new(level)?;
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
    Ok(encoder)
}

fn head(kind: u8, length: usize) -> [u8; HEAD] {
    let [.., a, b, c] = (length as u32).to_be_bytes();
    [kind, a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_a_byte_takes_no_more_room_than_it_needs() {
        let mut squeeze = Squeeze::new(3);
        for _ in 0..100 {
            squeeze.waits.push(Bytes::from_static(b"x"));
            for piece in squeeze.block().unwrap() {
                let (length, room) = (piece.len(), piece.try_into_mut().unwrap().capacity());
                assert!(room <= 2 * length + 32, "{room} bytes for {length}");
            }
        }
    }
}
