//! Wire: one direction of a connection.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::time::{Duration, Instant};

/// Maximum bytes in flight on a wire without a rate.
const WINDOW: usize = 20_000;
/// Maximum bytes in flight, queued ones included, on a wire with a rate.
const DEEP: usize = 4 << 20;

#[derive(Debug)]
pub(crate) enum Item {
    /// The connection is established (connecting end).
    Connected,
    /// The connection is accepted (listening end).
    Accepted,
    Data(Bytes),
    Fin,
}

#[derive(Default)]
pub(crate) struct Wire {
    items: VecDeque<(Instant, Item)>,
    is_cut: bool,
    /// Rate in bytes a second, with a deep buffer; `None` is limited only by the window.
    pub(crate) rate: Option<u64>,
}

impl Wire {
    pub(crate) fn put(&mut self, at: Instant, item: Item) {
        if self.is_cut {
            return;
        }
        let before = self.items.back().map(|(at, _)| *at);
        let at = match (self.rate, &item, before) {
            (Some(rate), Item::Data(data), before) => {
                let takes = Duration::from_micros(data.len() as u64 * 1_000_000 / rate);
                before.map_or(at, |before| at.max(before)) + takes
            }
            (_, _, Some(before)) => at.max(before),
            (..) => at,
        };
        self.items.push_back((at, item));
    }

    pub(crate) fn pop(&mut self) -> Option<Item> {
        self.items.pop_front().map(|(_, item)| item)
    }

    /// Arrival time of the next item. `waits`: the receiver does not read.
    pub(crate) fn next(&self, waits: bool) -> Option<Instant> {
        let (at, item) = self.items.front()?;
        let held = waits && matches!(item, Item::Data(_) | Item::Fin);
        (!held).then_some(*at)
    }

    /// Room in bytes. A cut wire has no room: after a cut, a kernel's buffer soon fills up.
    pub(crate) fn room(&self) -> usize {
        let data = |item: &Item| if let Item::Data(data) = item { data.len() } else { 0 };
        let held: usize = self.items.iter().map(|(_, item)| data(item)).sum();
        let window = if self.rate.is_some() { DEEP } else { WINDOW };
        if self.is_cut { 0 } else { window.saturating_sub(held) }
    }

    /// Breaks the wire, and loses what is in flight.
    pub(crate) fn cut(&mut self) {
        self.items.clear();
        self.is_cut = true;
    }

    /// Flips a bit of the `nth` byte in flight; false if there is none.
    pub(crate) fn flip(&mut self, nth: usize, bit: u8) -> bool {
        let mut left = nth;
        for (_, item) in &mut self.items {
            let Item::Data(data) = item else { continue };
            if left < data.len() {
                let mut bytes = data.to_vec();
                bytes[left] ^= 1 << bit;
                *data = bytes.into();
                return true;
            }
            left -= data.len();
        }
        false
    }
}
