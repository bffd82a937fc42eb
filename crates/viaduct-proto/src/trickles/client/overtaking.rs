//! Reordering: how far packets overtake each other.
//!
//! ```text
//!   1 2 3 5 6 7        4 is given up: three later ones have arrived
//!   1 2 3 5 6 7 8 4    4 arrives: from now on a gap is given up after five later ones
//! ```
//!
//! On a path with two queues, or to two servers that answer in turn, packets are constantly
//! reordered, and a window that is halved for each reordered packet stays small. So when a packet
//! arrives after it was given up, the client waits longer for missing packets from then on: for
//! more packets, as the kernel's TCP does (`tcp_reordering` up to `tcp_max_reordering`), and for a
//! longer time (RFC 8985, 6.2). A restart resets the number of packets, as the kernel's timeout
//! does, because the path may have changed.

use std::collections::VecDeque;
use std::ops::Range;

/// Initial reordering degree: number of later packets after which a missing one is given up.
const FEW: usize = 3;
/// Maximum reordering degree.
const MAX_OVERTAKEN: usize = 300;
/// Maximum number of given-up runs that are remembered.
const REMEMBERED: usize = 64;

/// Reordering that was observed.
#[derive(Debug)]
pub(super) struct Overtaking {
    /// Reordering degree: number of later packets after which a missing one is given up.
    pub(super) degree: usize,
    /// Recently given-up runs of packets.
    given_up: VecDeque<Range<u64>>,
}

impl Default for Overtaking {
    fn default() -> Self {
        Overtaking { degree: FEW, given_up: VecDeque::new() }
    }
}

impl Overtaking {
    /// Records packets that were given up.
    pub(super) fn give_up(&mut self, packets: Range<u64>) {
        if packets.is_empty() {
            return;
        }
        if self.given_up.len() == REMEMBERED {
            self.given_up.pop_front();
        }
        self.given_up.push_back(packets);
    }

    /// Records a packet that arrived when all packets below `next` had arrived or were given up.
    /// Returns whether this packet had been given up.
    pub(super) fn came(&mut self, number: u64, next: u64) -> bool {
        let given_up = self.given_up.iter().any(|run| run.contains(&number));
        if given_up {
            let behind = usize::try_from(next - number).unwrap_or(MAX_OVERTAKEN).min(MAX_OVERTAKEN);
            self.degree = self.degree.max(behind);
        }
        given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_up_packet_that_arrives_raises_the_reordering_degree() {
        let mut overtaking = Overtaking::default();
        overtaking.give_up(4..5);
        assert!(!overtaking.came(3, 9), "never given up");
        assert_eq!(overtaking.degree, FEW);
        assert!(overtaking.came(4, 9));
        assert_eq!(overtaking.degree, 5);
        overtaking.give_up(10..12);
        assert!(overtaking.came(11, 13));
        assert_eq!(overtaking.degree, 5, "the degree never decreases");
        assert!(overtaking.came(10, 1 << 40));
        assert_eq!(overtaking.degree, MAX_OVERTAKEN);
    }

    #[test]
    fn the_list_of_given_up_runs_is_bounded() {
        let mut overtaking = Overtaking::default();
        for number in 0..1_000 {
            overtaking.give_up(2 * number..2 * number + 1);
        }
        assert_eq!(overtaking.given_up.len(), REMEMBERED);
        assert!(!overtaking.came(0, 2_000) && overtaking.came(1_998, 2_000));
    }
}
