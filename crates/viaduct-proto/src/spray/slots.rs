//! Slots: the replica for each packet number, or for each hash of a connection.

use std::ops::RangeInclusive;

/// Allowed weights of a replica.
pub const MAX_WEIGHT: RangeInclusive<u32> = 1..=100;
/// Minimum number of slots. With many slots for each replica, those of a replica that is down are
/// divided evenly among the others.
const MIN_SLOTS: usize = 240;

/// Returns the replica of each slot. A replica has a share of the slots in proportion to its
/// weight, spread evenly. The slots of replicas that are not available are lent to the available
/// ones in proportion to their weights. Empty if no replica is available.
pub fn slots(weights: &[u32], is_available: &[bool]) -> Vec<usize> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let parts: Vec<u32> = weights.iter().map(|weight| weight / divisor).collect();
    let period = parts.iter().sum::<u32>() as usize;
    if period == 0 || !is_available.contains(&true) {
        return Vec::new();
    }
    let mut own = Turns::new(parts.clone());
    let available = parts.iter().zip(is_available);
    let mut lent = Turns::new(available.map(|(part, yes)| part * u32::from(*yes)).collect());
    let count = period * MIN_SLOTS.div_ceil(period);
    let slot = |_| match own.next() {
        replica if is_available[replica] => replica,
        _ => lent.next(),
    };
    (0..count).map(slot).collect()
}

/// Turns of replicas, in proportion to their weights and spread evenly: the replica that lags
/// furthest behind its share is next.
struct Turns {
    weights: Vec<u32>,
    /// Turns that each replica is due, multiplied by the sum of the weights.
    due: Vec<i64>,
}

impl Turns {
    fn new(weights: Vec<u32>) -> Turns {
        Turns { due: vec![0; weights.len()], weights }
    }

    fn next(&mut self) -> usize {
        let total: u32 = self.weights.iter().sum();
        for (due, weight) in self.due.iter_mut().zip(&self.weights) {
            *due += i64::from(*weight);
        }
        let candidates = (0..self.due.len()).filter(|&n| self.weights[n] > 0);
        // If several lag equally, the first one is next.
        let next = candidates.rev().max_by_key(|&n| self.due[n]).unwrap_or(0);
        self.due[next] -= i64::from(total);
        next
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(slots: &[usize], replicas: usize) -> Vec<usize> {
        (0..replicas).map(|n| slots.iter().filter(|&&slot| slot == n).count()).collect()
    }

    #[test]
    fn shares_follow_the_weights_and_are_spread_evenly() {
        let all = slots(&[20, 10, 10], &[true; 3]);
        assert_eq!(all.len(), 240);
        assert_eq!(counts(&all, 3), [120, 60, 60]);
        assert_eq!(all[..8], [0, 1, 2, 0, 0, 1, 2, 0]);
        assert_eq!(slots(&[7], &[true]), [0; 240]);
    }

    #[test]
    fn the_slots_of_a_dead_replica_are_lent_to_the_others() {
        let one_dead = slots(&[1, 1, 1], &[true, false, true]);
        assert_eq!(counts(&one_dead, 3), [120, 0, 120]);
        assert!(slots(&[1, 2], &[false; 2]).is_empty());
        assert!(slots(&[], &[]).is_empty());
    }

    proptest! {
        #[test]
        fn only_slots_of_unavailable_replicas_move(
            replicas in prop::collection::vec((MAX_WEIGHT, any::<bool>()), 1..12)
        ) {
            let (weights, available): (Vec<_>, Vec<_>) = replicas.into_iter().unzip();
            let all = slots(&weights, &vec![true; weights.len()]);
            let some = slots(&weights, &available);
            prop_assert_eq!(some.is_empty(), !available.contains(&true));
            for (before, after) in all.iter().zip(&some) {
                prop_assert!(available[*after]);
                prop_assert!(before == after || !available[*before]);
            }
            let total: u32 = weights.iter().sum();
            for (count, weight) in counts(&all, weights.len()).iter().zip(&weights) {
                prop_assert_eq!(count * total as usize, all.len() * *weight as usize);
            }
        }
    }
}
