//! Packets of a window.

use crate::fec::sum::Sum;
use crate::fec::{Draw, Seq, kernel};
use crate::packet_log::PacketLog;

/// Newest packets, up to a limit.
#[derive(Debug)]
pub(super) struct History {
    packets: PacketLog,
    max: usize,
}

impl History {
    /// Creates a history of up to `max` packets.
    pub(super) fn new(max: u16) -> Self {
        History { packets: PacketLog::default(), max: usize::from(max) }
    }

    /// Changes the limit of packets.
    pub(super) fn resize(&mut self, max: u16) {
        self.max = usize::from(max);
        self.forget(self.packets.len().saturating_sub(self.max));
    }

    /// Drops up to `many` of the oldest packets.
    pub(super) fn forget(&mut self, many: usize) {
        self.packets.drop_front(many.min(self.packets.len()));
    }

    /// Frees memory: spare memory if there is any, otherwise that of the oldest packets.
    pub(super) fn shed(&mut self) {
        self.packets.shed();
    }

    /// Adds the next packet, in place of the oldest if the history is full.
    pub(super) fn push(&mut self, packet: &[u8]) {
        if self.packets.len() >= self.max {
            self.forget(1);
        }
        self.packets.push(&[packet]);
    }

    /// Number of packets held.
    pub(super) fn len(&self) -> u16 {
        self.packets.len() as u16
    }

    /// Sets each of `sums` to a combination of `count` packets, with the coefficients of the draw
    /// at the same index. The first of these packets is number `first`, which is `back` below the
    /// number of the next packet.
    pub(super) fn combine(
        &self,
        back: u16,
        count: u16,
        first: Seq,
        draws: &[Draw],
        sums: &mut [Sum],
    ) {
        let from = self.packets.len() - usize::from(back);
        let packets = self.packets.range(from).take(usize::from(count));
        let longest = packets.clone().map(<[u8]>::len).max().unwrap_or(0);
        for sum in &mut *sums {
            sum.clear();
            sum.buffer.grow(longest);
        }
        let mut group = Vec::with_capacity(kernel::GROUP);
        let mut coefficients = Vec::with_capacity(kernel::GROUP * kernel::GROUP);
        for (seq, packet) in (first..).zip(packets) {
            group.push(packet);
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
        self.packets.held()
    }
}

/// Adds all packets of `group`, and empties it.
fn add(group: &mut Vec<&[u8]>, coefficients: &mut Vec<u8>, sums: &mut [Sum]) {
    let mut lines: Vec<_> = sums.iter_mut().map(|sum| sum.buffer.lines()).collect();
    kernel::mul_add_many(&mut lines, group, coefficients);
    group.clear();
    coefficients.clear();
}
