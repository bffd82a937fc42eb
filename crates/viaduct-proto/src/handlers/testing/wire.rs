//! One direction of a connection.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::time::{Duration, Instant};

/// Most bytes on their way.
const WINDOW: usize = 20_000;
const DEEP: usize = 4 << 20;

#[derive(Debug)]
pub(crate) enum Item {
    /// For who connected: the connection is there.
    Connected,
    /// For who listened.
    Accepted,
    Data(Bytes),
    Fin,
}

#[derive(Default)]
pub(crate) struct Wire {
    items: VecDeque<(Instant, Item)>,
    is_cut: bool,
    /// Bytes a second, with a deep buffer before it; as many as its window allows if it has none.
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

    /// When the next arrives; `waits`: bytes are not read.
    pub(crate) fn next(&self, waits: bool) -> Option<Instant> {
        let (at, item) = self.items.front()?;
        let held = waits && matches!(item, Item::Data(_) | Item::Fin);
        (!held).then_some(*at)
    }

    /// Bytes that it takes: as a kernel's, its buffer is full some time after it was cut.
    pub(crate) fn room(&self) -> usize {
        let data = |item: &Item| if let Item::Data(data) = item { data.len() } else { 0 };
        let held: usize = self.items.iter().map(|(_, item)| data(item)).sum();
        let window = if self.rate.is_some() { DEEP } else { WINDOW };
        if self.is_cut { 0 } else { window.saturating_sub(held) }
    }

    /// Nothing passes any more, and what is on its way is lost.
    pub(crate) fn cut(&mut self) {
        self.items.clear();
        self.is_cut = true;
    }

    /// Changes a bit of the `nth` byte that is on its way; false if there is none.
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
