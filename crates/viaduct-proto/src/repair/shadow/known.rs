//! Packets of an observed link.

use std::collections::VecDeque;

use crate::fec::{Seq, Sources};

/// Number of remembered packets: more than a repair of any of the codes spans.
const MAX_KNOWN: usize = 16_384;

/// Packet of two bytes.
pub(super) fn symbol(seq: Seq) -> [u8; 2] {
    [seq as u8, (seq >> 8) as u8]
}

/// Latest packets, and which of them have arrived or were recovered.
pub(super) struct Known {
    pub(super) first: Seq,
    here: VecDeque<Option<[u8; 2]>>,
}

impl Default for Known {
    fn default() -> Self {
        Known { first: 1, here: VecDeque::new() }
    }
}

impl Known {
    pub(super) fn next(&self) -> Seq {
        self.first + self.here.len() as u64
    }

    pub(super) fn push(&mut self, is_here: bool) -> Seq {
        let seq = self.next();
        if self.here.len() == MAX_KNOWN {
            self.here.pop_front();
            self.first += 1;
        }
        self.here.push_back(is_here.then(|| symbol(seq)));
        seq
    }

    pub(super) fn mark(&mut self, seq: Seq) {
        let at = seq.checked_sub(self.first).map(|at| at as usize);
        if let Some(here) = at.and_then(|at| self.here.get_mut(at)) {
            *here = Some(symbol(seq));
        }
    }
}

impl Sources for Known {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let at = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.here.get(at)?.as_ref().map(<[u8; 2]>::as_slice)
    }
}
