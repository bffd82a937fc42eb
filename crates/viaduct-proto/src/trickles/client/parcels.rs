//! Parcels that were sent with requests, and the arrival of their answers' packets.

use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, Default)]
struct Answer {
    packets: u32,
    /// Number of outstanding packets.
    left: u32,
    /// Bitmap of the packets that have arrived, among the first 64.
    came: u64,
}

#[derive(Debug, Default)]
pub(super) struct Parcels {
    answers: BTreeMap<u64, Answer>,
    settled: VecDeque<u64>,
}

impl Parcels {
    /// Adds a packet to the answer to `parcel`, and returns its index.
    pub(super) fn expect(&mut self, parcel: Option<u64>) -> u32 {
        let Some(parcel) = parcel else { return 0 };
        let answer = self.answers.entry(parcel).or_default();
        answer.packets += 1;
        answer.left += 1;
        answer.packets - 1
    }

    /// Records the arrival of packet `turn` of the answer to `parcel`. Returns whether all earlier
    /// packets of the answer have arrived: always true without a parcel, always false for packets
    /// after the first 64.
    pub(super) fn came(&mut self, parcel: Option<u64>, turn: u32) -> bool {
        let Some(answer) = parcel.and_then(|parcel| self.answers.get_mut(&parcel)) else {
            return true;
        };
        let bit = 1_u64.checked_shl(turn).unwrap_or(0);
        answer.came |= bit;
        let before = bit.wrapping_sub(1);
        let in_order = bit != 0 && answer.came & before == before;
        self.is_out(parcel);
        in_order
    }

    /// Records that a packet of the answer to `parcel` is no longer outstanding.
    pub(super) fn is_out(&mut self, parcel: Option<u64>) {
        let Some(number) = parcel else { return };
        let left = self.answers.get_mut(&number).map_or(0, |answer| {
            answer.left -= 1;
            answer.left
        });
        if left == 0 {
            self.answers.remove(&number);
            self.settle(parcel);
        }
    }

    /// Settles a parcel: no further answer to it can arrive.
    pub(super) fn settle(&mut self, parcel: Option<u64>) {
        self.settled.extend(parcel);
    }

    pub(super) fn poll_settled(&mut self) -> Option<u64> {
        self.settled.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_in_order_when_all_earlier_packets_have_arrived() {
        let mut parcels = Parcels::default();
        let turns: Vec<u32> = (0..70).map(|_| parcels.expect(Some(3))).collect();
        assert_eq!((turns[0], turns[69]), (0, 69));
        assert!(parcels.came(Some(3), 0) && !parcels.came(Some(3), 2));
        assert!(parcels.came(Some(3), 1) && parcels.came(Some(3), 3));
        parcels.is_out(Some(3));
        assert!(!parcels.came(Some(3), 5) && !parcels.came(Some(3), 64), "the fourth was lost");
        assert!(parcels.came(None, 0) && parcels.poll_settled().is_none());
        (7..70).for_each(|_| parcels.is_out(Some(3)));
        assert_eq!((parcels.poll_settled(), parcels.poll_settled()), (Some(3), None));
    }
}
