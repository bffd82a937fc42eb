//! Decompression of the direction from the network: validates all input.

use bytes::{Buf as _, Bytes, BytesMut};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation as _, OutBuffer};

use super::{HEAD, MAX_BLOCK, MAX_PLAIN, PLAIN, SQUEEZED, WINDOW_LOG};

/// Bytes of queued input beyond which the source is stopped.
const MAX_WAITING: usize = 2 * MAX_BLOCK;
/// Maximum bytes expanded in one step.
const STEP: usize = 16 << 10;

/// Input that has not been delivered, and its decoder.
pub(super) struct Expand {
    /// True if upstream takes bytes.
    pub(super) is_open: bool,
    stopped: bool,
    inbox: BytesMut,
    block: Option<Block>,
    decoder: Option<Decoder<'static>>,
}

struct Block {
    squeezed: bool,
    /// Bytes of the block that have not been read yet.
    left: usize,
    /// Bytes that the block may still expand to.
    most: usize,
    /// True if the last step filled its output buffer, so zstd may have more output.
    full: bool,
}

/// Error in the input that a correct peer never causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpandError {
    #[error("a block of {0} bytes, or of an unknown kind; does the other end have compress?")]
    Head(usize),
    #[error("a block that expands to more than {MAX_PLAIN} bytes")]
    Bomb,
    #[error("invalid zstd data")]
    Zstd,
}

impl Default for Expand {
    fn default() -> Self {
        let inbox = BytesMut::new();
        Expand { is_open: true, stopped: false, inbox, block: None, decoder: None }
    }
}

impl Expand {
    pub(super) fn push(&mut self, data: Bytes) {
        match data.try_into_mut() {
            Ok(data) if self.inbox.is_empty() => self.inbox = data,
            Ok(data) => self.inbox.extend_from_slice(&data),
            Err(data) => self.inbox.extend_from_slice(&data),
        }
    }

    /// Returns whether all input was processed, and no block is incomplete.
    pub(super) fn is_between(&self) -> bool {
        self.inbox.is_empty() && self.block.is_none()
    }

    /// Returns false if the source must now stop, true if it may resume; `None` if nothing changes.
    pub(super) fn steer(&mut self) -> Option<bool> {
        let stop = !self.is_open || self.inbox.len() > MAX_WAITING;
        (stop != self.stopped).then(|| {
            self.stopped = stop;
            !stop
        })
    }

    /// Returns the next bytes of the flow, at most those of one block; `None` if more input is
    /// needed.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, ExpandError> {
        loop {
            let Some(block) = &mut self.block else {
                let Some(head) = self.inbox.first_chunk::<HEAD>().copied() else { return Ok(None) };
                self.block = Some(Block::new(head)?);
                self.inbox.advance(HEAD);
                continue;
            };
            if self.inbox.is_empty() && block.left > 0 && !block.full {
                return Ok(None);
            }
            let most = block.left.min(self.inbox.len());
            let data = match block.squeezed {
                false => {
                    block.left -= most;
                    self.inbox.split_to(most).freeze()
                }
                true => {
                    let decoder = match &mut self.decoder {
                        Some(decoder) => decoder,
                        none => none.insert(decoder().ok_or(ExpandError::Zstd)?),
                    };
                    let (data, read) = block.step(decoder, &self.inbox[..most])?;
                    self.inbox.advance(read);
                    data
                }
            };
            if block.left == 0 && !block.full {
                self.block = None;
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }
}

impl Block {
    fn new(head: [u8; HEAD]) -> Result<Block, ExpandError> {
        let [kind, a, b, c] = head;
        let left = u32::from_be_bytes([0, a, b, c]) as usize;
        let most = if kind == PLAIN { MAX_PLAIN } else { MAX_BLOCK };
        match kind {
            PLAIN | SQUEEZED if (1..=most).contains(&left) => {
                Ok(Block { squeezed: kind == SQUEEZED, left, most: MAX_PLAIN, full: false })
            }
            _ => Err(ExpandError::Head(left)),
        }
    }

    /// Expands some of `from`; returns the output, and the number of bytes read.
    fn step(
        &mut self,
        decoder: &mut Decoder<'static>,
        from: &[u8],
    ) -> Result<(Bytes, usize), ExpandError> {
        // One byte of room more than allowed: if it is filled, the input is a decompression bomb.
        let mut room = vec![0; STEP.min(self.most + 1)];
        let mut source = InBuffer::around(from);
        let mut out = OutBuffer::around(&mut room[..]);
        decoder.run(&mut source, &mut out).map_err(|_| ExpandError::Zstd)?;
        let (read, written) = (source.pos(), out.pos());
        self.left -= read;
        self.most = self.most.checked_sub(written).ok_or(ExpandError::Bomb)?;
        self.full = written == room.len();
        if read == 0 && written == 0 && !from.is_empty() {
            return Err(ExpandError::Zstd);
        }
        room.truncate(written);
        // Shrunk to its size, because many short pieces may be queued.
        room.shrink_to_fit();
        Ok((room.into(), read))
    }
}

fn decoder() -> Option<Decoder<'static>> {
    let mut decoder = Decoder::new().ok()?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).ok()?;
    Some(decoder)
}

#[cfg(test)]
mod tests {
    use super::super::squeeze::Squeeze;
    use super::*;

    #[test]
    fn a_byte_takes_no_more_room_than_it_needs() {
        let (mut squeeze, mut expand) = (Squeeze::new(3), Expand::default());
        for _ in 0..100 {
            squeeze.waits.push(Bytes::from_static(b"x"));
            squeeze.block().unwrap().into_iter().for_each(|piece| expand.push(piece));
            let byte = expand.next().unwrap().unwrap();
            assert_eq!(&byte[..], b"x");
            let room = byte.try_into_mut().unwrap().capacity();
            assert!(room <= 64, "{room} bytes for one");
        }
    }
}
