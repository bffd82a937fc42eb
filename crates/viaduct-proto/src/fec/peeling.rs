//! Decoder of layered interleaving (Maelstrom 4.3): recovers a packet as soon as it is the only
//! one missing from some repair, which may unlock other repairs.
//!
//! ```text
//!   repair ─▶ how many of its packets are missing?
//!               0 ─▶ useless
//!               1 ─▶ recovered ──────────────────┐
//!               2 or more ─▶ stored              │
//!                              ▲                 ▼
//!                   table: missing packet ─▶ repairs that wait for it (of any layer)
//! ```
//!
//! A stored repair is reduced to the sum of its missing packets, so a recovery never needs old
//! packets again.

use std::collections::BTreeMap;

use super::sum::{Batch, Sum, plausible};
use super::{Decoder, Recovered, Repair, Row, Seq, Sources, Verdict};

/// Number of a stored repair; later ones have higher numbers.
type Id = u64;

/// Decoder for repairs of [`Row::Xor`].
#[derive(Debug, Default)]
pub struct Peeling {
    stored: BTreeMap<Id, Stored>,
    /// Stored repairs that wait for each missing packet.
    waiting: BTreeMap<Seq, Vec<Id>>,
    next_id: Id,
    memory: usize,
    bound: usize,
}

/// Repair with two or more packets missing.
#[derive(Debug)]
struct Stored {
    /// Sum of the missing packets.
    sum: Sum,
    missing: Vec<Seq>,
    /// Highest number that the repair covers.
    last: Seq,
}

impl Stored {
    /// Memory of the repair in bytes, including its share of the tables.
    fn cost(&self) -> usize {
        self.sum.buffer.memory() + 128 + 64 * self.missing.capacity()
    }
}

impl Peeling {
    /// Creates a decoder that holds at most `bound` bytes of repairs, the newest ones.
    pub fn new(bound: usize) -> Self {
        Peeling { bound, ..Peeling::default() }
    }

    /// Drops the older half of the repairs, to free memory.
    pub fn shed(&mut self) {
        let half = self.memory / 2;
        self.evict(half);
    }

    /// Drops the oldest repairs until the rest has at most `bound` bytes.
    fn evict(&mut self, bound: usize) {
        while self.memory > bound {
            let Some(&oldest) = self.stored.keys().next() else { break };
            self.remove(oldest);
        }
    }

    fn store(&mut self, stored: Stored) -> Verdict {
        let cost = stored.cost();
        if cost > self.bound {
            return Verdict::Refused;
        }
        self.evict(self.bound - cost);
        let id = self.next_id;
        self.next_id += 1;
        for &seq in &stored.missing {
            self.waiting.entry(seq).or_default().push(id);
        }
        self.memory += cost;
        self.stored.insert(id, stored);
        Verdict::Stored
    }

    /// Removes a stored repair from both tables.
    fn remove(&mut self, id: Id) -> Option<Stored> {
        let stored = self.stored.remove(&id)?;
        self.memory -= stored.cost();
        for seq in &stored.missing {
            if let Some(ids) = self.waiting.get_mut(seq) {
                ids.retain(|&other| other != id);
                if ids.is_empty() {
                    self.waiting.remove(seq);
                }
            }
        }
        Some(stored)
    }

    /// Removes `packet` from every repair that waits for `seq`. Repairs with one missing packet
    /// left are solved and moved to `solved`.
    fn subtract(&mut self, seq: Seq, packet: &[u8], solved: &mut Vec<(Seq, Sum)>) {
        for id in self.waiting.remove(&seq).unwrap_or_default() {
            let Some(stored) = self.stored.get_mut(&id) else { continue };
            stored.missing.retain(|&missing| missing != seq);
            if packet.len() > stored.sum.buffer.len() {
                // Longer than the longest packet covered: the repair is garbled.
                self.remove(id);
                continue;
            }
            stored.sum.add_packet(packet, 1);
            if stored.missing.len() == 1
                && let Some(stored) = self.remove(id)
            {
                solved.push((stored.missing[0], stored.sum));
            }
        }
    }

    /// Recovers the packets of solved repairs, and of the repairs that these packets solve in turn;
    /// returns whether a packet was recovered.
    fn follow(&mut self, mut solved: Vec<(Seq, Sum)>, recovered: &mut Recovered) -> bool {
        let mut any = false;
        while let Some((seq, sum)) = solved.pop() {
            if recovered.get(seq).is_some() {
                continue;
            }
            if let Some(packet) = sum.packet() {
                recovered.push(seq, packet);
                any = true;
                self.subtract(seq, packet, &mut solved);
            }
        }
        any
    }
}

impl Decoder for Peeling {
    fn repair(&mut self, repair: Repair<'_>, from: &dyn Sources, out: &mut Recovered) -> Verdict {
        if !plausible(&repair) || !matches!(repair.row, Row::Xor { .. }) {
            return Verdict::Refused;
        }
        let Some((missing, sum)) = subtract_known(&repair, from) else {
            return Verdict::Refused;
        };
        match missing[..] {
            [] => Verdict::Useless,
            [_] if sum.packet().is_none() => Verdict::Refused,
            [seq] => match self.follow(vec![(seq, sum)], out) {
                true => Verdict::Used,
                false => Verdict::Useless,
            },
            _ => self.store(Stored { sum, missing, last: repair.cover.last() }),
        }
    }

    fn known(&mut self, seq: Seq, sources: &dyn Sources, recovered: &mut Recovered) {
        if self.waiting.contains_key(&seq)
            && let Some(packet) = sources.get(seq)
        {
            let mut solved = Vec::new();
            self.subtract(seq, packet, &mut solved);
            self.follow(solved, recovered);
        }
    }

    fn forget_below(&mut self, seq: Seq) {
        let old = self.stored.iter().filter(|(_, stored)| stored.last < seq);
        let old: Vec<_> = old.map(|(&id, _)| id).collect();
        for id in old {
            self.remove(id);
        }
    }

    fn memory(&self) -> usize {
        self.memory
    }
}

/// Missing packets of a repair, and their sum; `None` if the repair is shorter than a packet that
/// it covers.
fn subtract_known(repair: &Repair<'_>, sources: &dyn Sources) -> Option<(Vec<Seq>, Sum)> {
    let mut missing = Vec::new();
    for seq in repair.cover.seqs() {
        match sources.get(seq) {
            Some(packet) if packet.len() > repair.body.len() => return None,
            Some(_) => {}
            None => missing.push(seq),
        }
    }
    if missing.is_empty() {
        return Some((missing, Sum::default()));
    }
    let mut sum = Sum::of(repair);
    let mut batch = Batch::into_sum(&mut sum);
    for packet in repair.cover.seqs().filter_map(|seq| sources.get(seq)) {
        batch.add(packet, 1);
    }
    batch.finish();
    Some((missing, sum))
}

#[cfg(test)]
mod tests;
