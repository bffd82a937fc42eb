//! First window of a requested generation ([`super::generations`]) of which no packet has arrived.

use std::collections::VecDeque;

use super::asks::{Asks, Expected, Want};
use crate::time::Instant;

/// Byte ranges ([`Want`]) that were requested for the packets of the first window, and the parcel
/// (data of the application) that the request carried.
#[derive(Debug, Default)]
pub(super) struct FirstWindow {
    /// Wants in the order of the packets.
    wants: VecDeque<Want>,
    pub(super) parcel: Option<u64>,
}

impl FirstWindow {
    pub(super) fn assign(&mut self, want: Option<Want>) {
        self.wants.extend(want);
    }

    /// The assigned wants, in the order of the packets.
    pub(super) fn wants(&mut self) -> &[Want] {
        self.wants.make_contiguous()
    }

    /// Takes the first packet, which was requested at `sent`.
    pub(super) fn take_packet(&mut self, sent: Instant) -> Expected {
        Expected::new(sent, self.wants.pop_front(), self.parcel)
    }

    /// Records in `asks` that packets with these numbers, requested at `sent`, are in flight. Wants
    /// that no packet takes return to `asks`.
    pub(super) fn begin(
        &mut self,
        asks: &mut Asks,
        numbers: impl Iterator<Item = u64>,
        sent: Instant,
    ) {
        numbers.for_each(|number| asks.expect(number, self.take_packet(sent)));
        self.parcel = None;
        self.cancel(asks);
    }

    /// Returns to `asks` the wants of packets that will not arrive, and settles the parcel.
    pub(super) fn cancel(&mut self, asks: &mut Asks) {
        asks.parcels.settle(self.parcel.take());
        while let Some(want) = self.wants.pop_back() {
            asks.want_again(Some(want));
        }
    }
}
