//! Lists of peers with an event, one for each purpose. Other peers need not be examined.
//!
//! ```text
//!   packet, datagram, timer ─▶ touch ─┬─▶ Deadline   until the next deadline is recorded
//!                                     ├─▶ Datagrams  until the datagrams to send are taken
//!                                     ├─▶ Counters   until the counters are published
//!                                     └─▶ Facts      until the other facts are published
//! ```

/// Purpose for which peers are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Deadline,
    Datagrams,
    Counters,
    Facts,
}

const PURPOSES: usize = 4;
const ALL: u8 = (1 << PURPOSES) - 1;

/// Lists of peers, by index; no list has a peer twice.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// For each peer, the lists that contain it, as bits.
    listed: Vec<u8>,
    lists: [Vec<usize>; PURPOSES],
}

impl Touched {
    /// Resets each list to the peers 0 to `peers` - 1.
    pub(super) fn reset(&mut self, peers: usize) {
        self.listed = vec![ALL; peers];
        self.lists.fill((0..peers).collect());
    }

    /// Adds the peer to all lists.
    #[inline]
    pub(super) fn touch(&mut self, peer: usize) {
        let missing = std::mem::replace(&mut self.listed[peer], ALL) ^ ALL;
        if missing != 0 {
            for (bit, list) in self.lists.iter_mut().enumerate() {
                if missing & 1 << bit != 0 {
                    list.push(peer);
                }
            }
        }
    }

    /// Adds the peer to one list.
    pub(super) fn add(&mut self, of: Purpose, peer: usize) {
        let bit = 1 << of as u8;
        if self.listed[peer] & bit == 0 {
            self.listed[peer] |= bit;
            self.lists[of as usize].push(peer);
        }
    }

    /// Peers in a list, in the order in which they were added.
    pub(super) fn iter(&self, of: Purpose) -> impl Iterator<Item = usize> {
        self.lists[of as usize].iter().copied()
    }

    /// Takes a peer from a list; `None` if the list is empty.
    pub(super) fn pop(&mut self, of: Purpose) -> Option<usize> {
        let peer = self.lists[of as usize].pop()?;
        self.listed[peer] &= !(1 << of as u8);
        Some(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_listed_once_for_each_purpose() {
        let mut touched = Touched::default();
        touched.reset(3);
        while touched.pop(Purpose::Counters).is_some() {}
        for peer in [2, 0, 2] {
            touched.touch(peer);
        }
        touched.add(Purpose::Counters, 0);
        let listed = |touched: &Touched, of| touched.iter(of).collect::<Vec<_>>();
        assert_eq!(listed(&touched, Purpose::Counters), [2, 0]);
        assert_eq!(listed(&touched, Purpose::Deadline), [0, 1, 2]);
        assert_eq!(touched.pop(Purpose::Counters), Some(0));
        touched.add(Purpose::Counters, 0);
        assert_eq!(listed(&touched, Purpose::Counters), [2, 0]);
    }
}
