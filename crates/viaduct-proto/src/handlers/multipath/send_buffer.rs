//! Send buffer: keeps data until the other end has acknowledged it, on any connection.

use std::collections::VecDeque;

use bytes::Bytes;

use super::wire::MAX_DATA;
use crate::flow::Output;

/// Overhead of a block in bytes.
pub(super) const BLOCK_COST: usize = 64;

pub(super) struct Block {
    pub(super) at: u64,
    pub(super) data: Bytes,
    /// True if the block is the end of the flow.
    pub(super) is_end: bool,
    /// Connection on which the block was sent; `None` if it is to be sent, or retransmitted.
    on: Option<Output>,
}

#[derive(Default)]
pub(super) struct SendBuffer {
    blocks: VecDeque<Block>,
    next: u64,
    pub(super) ended: bool,
    /// True if the end of the flow has been sent at least once.
    pub(super) end_was_sent: bool,
    /// Index before which all blocks have been sent.
    first_unsent: usize,
    unsent: usize,
    cost: usize,
}

impl Block {
    fn end(&self) -> u64 {
        self.at + self.data.len() as u64 + u64::from(self.is_end)
    }

    fn cost(&self) -> usize {
        self.data.len() + BLOCK_COST
    }
}

impl SendBuffer {
    pub(super) fn push(&mut self, mut data: Bytes) {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(MAX_DATA));
            self.add(piece, false);
        }
    }

    /// Appends the end of the flow.
    pub(super) fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.add(Bytes::new(), true);
        }
    }

    fn add(&mut self, data: Bytes, is_end: bool) {
        let block = Block { at: self.next, data, is_end, on: None };
        self.next = block.end();
        self.cost += block.cost();
        self.unsent += block.cost();
        self.blocks.push_back(block);
    }

    /// Returns whether the other end has acknowledged everything, including the end.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.blocks.is_empty()
    }

    /// Returns whether the other end has acknowledged everything but the end.
    pub(super) fn lacks_only_the_end(&self) -> bool {
        self.ended && self.blocks.iter().all(|block| block.is_end)
    }

    /// Cost of all blocks, and of those that have not been sent.
    pub(super) fn costs(&self) -> (usize, usize) {
        (self.cost, self.unsent)
    }

    /// Returns the next block to send, and marks it as in flight on `on`.
    pub(super) fn send(&mut self, on: Output) -> Option<&Block> {
        self.find_unsent()?;
        let block = self.blocks.get_mut(self.first_unsent)?;
        block.on = Some(on);
        self.end_was_sent |= block.is_end;
        self.unsent -= block.cost();
        self.first_unsent += 1;
        Some(block)
    }

    fn find_unsent(&mut self) -> Option<()> {
        while self.blocks.get(self.first_unsent)?.on.is_some() {
            self.first_unsent += 1;
        }
        Some(())
    }

    /// Returns whether another block fits the other end's receive window.
    pub(super) fn fits(&self, window: usize) -> bool {
        let in_flight = self.cost - self.unsent;
        in_flight == 0 || in_flight + MAX_DATA + BLOCK_COST <= window
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Handles an acknowledgement of all bytes before `received`. Calls `gone` with the connection
    /// and the length of each block that was in flight. Returns false if some of the bytes were
    /// never written.
    pub(super) fn acked(&mut self, received: u64, mut gone: impl FnMut(Output, usize)) -> bool {
        while let Some(block) = self.blocks.front().filter(|block| block.end() <= received) {
            self.cost -= block.cost();
            match block.on {
                Some(on) => gone(on, block.data.len()),
                None => self.unsent -= block.cost(),
            }
            self.first_unsent = self.first_unsent.saturating_sub(1);
            self.blocks.pop_front();
        }
        received <= self.next
    }

    /// Marks everything sent on `lost` for retransmission.
    pub(super) fn lost(&mut self, lost: Output) {
        for (number, block) in self.blocks.iter_mut().enumerate().rev() {
            if block.on == Some(lost) {
                block.on = None;
                self.unsent += block.cost();
                self.first_unsent = self.first_unsent.min(number);
            }
        }
    }
}
