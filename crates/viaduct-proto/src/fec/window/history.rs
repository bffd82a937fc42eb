//! Packets of a window.

use std::collections::VecDeque;

use crate::fec::sum::Sum;
use crate::fec::{Draw, Seq, kernel};

/// Newest packets, up to a limit.
#[derive(Debug)]
pub(super) struct History {
    packets: VecDeque<Vec<u8>>,
    max: usize,
}

impl History {
    /// Creates a history of up to `max` packets.
    pub(super) fn new(max: u16) -> Self {
        History { packets: VecDeque::new(), max: usize::from(max) }
    }

    /// Changes the limit of packets.
    pub(super) fn resize(&mut self, max: u16) {
        self.max = usize::from(max);
        let many = self.packets.len().saturating_sub(self.max);
        self.packets.drain(..many);
    }

    /// Adds the next packet, in place of the oldest if the history is full.
    pub(super) fn push(&mut self, packet: &[u8]) {
        let full = self.packets.len() >= self.max;
        let mut store = if full { self.packets.pop_front() } else { None }.unwrap_or_default();
        store.clear();
        store.extend_from_slice(packet);
        self.packets.push_back(store);
    }

    /// Number of packets held.
    pub(super) fn len(&self) -> u16 {
        self.packets.len() as u16
    }

    /// Sets each of `sums` to a combination of `count` packets, whose coefficients the draw at the
    /// same index gives. The first of these packets is `first`, which is `back` packets before the
    /// next one.
    pub(super) fn combine(
        &self,
        back: u16,
        count: u16,
        first: Seq,
        draws: &[Draw],
        sums: &mut [Sum],
    ) {
        let from = self.packets.len() - usize::from(back);
        let packets = self.packets.range(from..from + usize::from(count));
        let longest = packets.clone().map(Vec::len).max().unwrap_or(0);
        for sum in &mut *sums {
            sum.clear();
            sum.buffer.grow(longest);
        }
        let mut group = Vec::with_capacity(kernel::GROUP);
        let mut coefficients = Vec::with_capacity(kernel::GROUP * kernel::GROUP);
        for (seq, packet) in (first..).zip(packets) {
            group.push(packet.as_slice());
            for (draw, sum) in draws.iter().zip(&mut *sums) {
                let coefficient = draw.of(seq, true);
                sum.add_len(packet.len(), coefficient);
                coefficients.push(coefficient);
            }
            if group.len() == kernel::GROUP {
                add(&mut group, &mut coefficients, sums);
            }
        }
        add(&mut group, &mut coefficients, sums);
    }

    pub(super) fn memory(&self) -> usize {
        self.packets.iter().map(Vec::capacity).sum()
    }
}

/// Adds all packets of `group`, and empties it.
fn add(group: &mut Vec<&[u8]>, coefficients: &mut Vec<u8>, sums: &mut [Sum]) {
    let mut lines: Vec<_> = sums.iter_mut().map(|sum| sum.buffer.lines()).collect();
    kernel::mul_add_many(&mut lines, group, coefficients);
    group.clear();
    coefficients.clear();
}
