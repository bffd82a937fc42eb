//! Replay window: accepts each number of a sender once, and refuses numbers far below the highest.
//!
//! ```text
//!            │◀──── 64 * (WORDS - 1) ────▶│ next
//!   refused  │  once each                 │  accepted
//! ```

/// Numbers accepted so far. The bitmap has one word more than the window: the lowest numbers must
/// not share a word with the highest.
#[derive(Debug)]
pub(crate) struct ReplayWindow<const WORDS: usize> {
    /// Highest number accepted, plus one.
    next: u64,
    seen: [u64; WORDS],
}

impl<const WORDS: usize> Default for ReplayWindow<WORDS> {
    fn default() -> Self {
        ReplayWindow { next: 0, seen: [0; WORDS] }
    }
}

impl<const WORDS: usize> ReplayWindow<WORDS> {
    /// Creates a window that refuses `number` and all before it.
    pub(crate) fn after(number: u64) -> Self {
        let mut window = ReplayWindow { next: number.saturating_add(1), seen: [u64::MAX; WORDS] };
        window.seen[word::<WORDS>(window.next)] = (1 << (window.next % 64)) - 1;
        window
    }

    /// Number after the highest one accepted.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn is_fresh(&self, number: u64) -> bool {
        let below = number.saturating_add((WORDS as u64 - 1) * 64) < self.next;
        let bit = self.seen[word::<WORDS>(number)] >> (number % 64) & 1;
        number != u64::MAX && (number >= self.next || (!below && bit == 0))
    }

    /// Records a number, which must be fresh, as accepted.
    pub(crate) fn mark(&mut self, number: u64) {
        if number >= self.next {
            // Words that the window slides into start empty.
            let (from, to) = (self.next.div_ceil(64), number / 64);
            let slide = (to + 1).saturating_sub(from).min(WORDS as u64);
            for w in 0..slide {
                self.seen[word::<WORDS>((to - w) * 64)] = 0;
            }
            self.next = number + 1;
        }
        self.seen[word::<WORDS>(number)] |= 1 << (number % 64);
    }

    pub(crate) fn admit(&mut self, number: u64) -> bool {
        let is_fresh = self.is_fresh(number);
        if is_fresh {
            self.mark(number);
        }
        is_fresh
    }
}

fn word<const WORDS: usize>(number: u64) -> usize {
    (number / 64 % WORDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::HashSet;

    /// Compares a window with the set of all numbers seen. Each number is at most about `far` below
    /// the highest earlier one.
    fn agrees<const WORDS: usize>(numbers: usize, far: u64) {
        let span = (WORDS as u64 - 1) * 64;
        let (mut window, mut rng) = (ReplayWindow::<WORDS>::default(), Rng::from_seed(3));
        let (mut seen, mut highest) = (HashSet::new(), 0u64);
        for _ in 0..numbers {
            let jump = if rng.chance(0.001) { 2 * far } else { 40 };
            let number = (highest + rng.below(jump)).saturating_sub(rng.below(far));
            let expected = number + span > highest && !seen.contains(&number);
            assert_eq!(window.is_fresh(number), expected, "{number} of {highest}");
            assert_eq!(window.admit(number), expected, "{number} of {highest}");
            seen.insert(number);
            highest = highest.max(number);
        }
    }

    #[test]
    fn the_window_agrees_with_a_set_of_all_numbers() {
        agrees::<2>(20_000, 90);
        agrees::<64>(200_000, 5_000);
    }

    #[test]
    fn a_window_after_a_number_refuses_those_before_it() {
        for number in [7, 62, 63, 64, 127, 128, 1_000] {
            let mut window = ReplayWindow::<2>::after(number);
            assert!(!window.admit(number) && !window.admit(0));
            assert!(window.admit(number + 3) && window.admit(number + 1));
            assert!(!window.admit(number + 1) && !window.admit(number));
        }
        assert!(!ReplayWindow::<2>::default().admit(u64::MAX));
    }
}
