//! Rotation of the secrets without distributing new ones: the secret of each period is derived from
//! a root secret and the period's number, which follows from the time.
//!
//! ```text
//!   time    ──────┬───────────────┬───────────────┬──────▶
//!   period        n               n + 1           n + 2
//!   seals         s(n)            s(n + 1)        s(n + 2)        s(n) = HMAC(root, n)
//!   accepted      n - 1 … n + 1   n … n + 2       n + 1 … n + 3   (one earlier period is kept)
//! ```
//!
//! The next period's secret is already accepted, for replicas whose clocks are ahead. A new root
//! has a time from which its secrets seal. Until that time they are only accepted, so that all
//! replicas have the root before the first replica seals with it. After that time the old root is
//! accepted until its last periods expire. Then the old root has no effect, and can be removed at
//! any time.

use ring::hmac;

/// Maximum number of roots.
pub const MAX_ROOTS: usize = 4;
/// Maximum number of earlier periods whose secrets are accepted.
pub const MAX_KEPT: u8 = 6;
/// Allowed length of a period in seconds: ten seconds to a year.
pub const PERIODS: std::ops::RangeInclusive<u64> = 10..=366 * 24 * 3600;
/// Allowed numbers of roots. A root's number is the upper bits of the numbers of its
/// derived secrets.
pub const ROOT_NUMBERS: std::ops::RangeInclusive<u8> = 0..=7;
/// Number of lower bits of a secret's number that are taken from the period's number.
const PERIOD_BITS: u8 = 5;
const LABEL: &[u8] = b"viaduct secret of a period";

/// Root secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Root {
    /// Number, the same at all replicas; see [`ROOT_NUMBERS`].
    pub number: u8,
    /// Random bytes.
    pub secret: [u8; 32],
    /// Time from which the root seals, in seconds since 1970.
    pub from: u64,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Roots, and the periods of their secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Length of a period in seconds.
    period: u64,
    /// Number of earlier periods whose secrets are accepted.
    keep: u8,
    /// Roots, sorted by the times from which they seal; never empty.
    roots: Vec<Root>,
}

/// Reason why roots and periods are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRotation {
    /// No root, or too many.
    #[error("{0} roots: 1 to {MAX_ROOTS} are allowed")]
    Roots(usize),
    /// A root's number is out of range.
    #[error("root {0}: a number from 0 to 7 is expected")]
    Number(u8),
    /// Two roots have the same number.
    #[error("root {0} is listed twice")]
    Twice(u8),
    /// Two roots seal from the same time.
    #[error("roots {0} and {1} seal from the same time: different times are expected")]
    Together(u8, u8),
    /// The period is out of range.
    #[error("a period of 10 seconds to 366 days is expected")]
    Period,
    /// Too few or too many earlier periods.
    #[error("keep = {0}: 1 to {MAX_KEPT} earlier periods are expected")]
    Kept(u8),
}

impl Rotation {
    /// Creates a rotation. `period` is in seconds; the secrets of `keep` earlier periods are
    /// accepted.
    ///
    /// # Errors
    /// The number of roots, a root's number, `period` or `keep` is out of range; or two roots have
    /// the same number or time.
    pub fn new(period: u64, keep: u8, mut roots: Vec<Root>) -> Result<Rotation, InvalidRotation> {
        if !(1..=MAX_ROOTS).contains(&roots.len()) {
            return Err(InvalidRotation::Roots(roots.len()));
        }
        if !PERIODS.contains(&period) {
            return Err(InvalidRotation::Period);
        }
        if !(1..=MAX_KEPT).contains(&keep) {
            return Err(InvalidRotation::Kept(keep));
        }
        if let Some(root) = roots.iter().find(|root| !ROOT_NUMBERS.contains(&root.number)) {
            return Err(InvalidRotation::Number(root.number));
        }
        roots.sort_by_key(|root| root.from);
        for (n, root) in roots.iter().enumerate() {
            if roots[..n].iter().any(|other| other.number == root.number) {
                return Err(InvalidRotation::Twice(root.number));
            }
        }
        if let Some([a, b]) = roots
            .windows(2)
            .find(|two| two[0].from == two[1].from)
            .map(|two| [two[0].number, two[1].number])
        {
            return Err(InvalidRotation::Together(a, b));
        }
        Ok(Rotation { period, keep, roots })
    }

    /// Returns the numbered secrets at time `now`, in seconds since 1970: first the sealing secret,
    /// then the other accepted secrets.
    pub fn secrets(&self, now: u64) -> Vec<(u8, [u8; 32])> {
        let current = now / self.period;
        let sealing = self.roots.iter().rposition(|root| root.from <= now).unwrap_or(0);
        let mut secrets = vec![self.derive(sealing, current)];
        let oldest = current.saturating_sub(self.keep.into());
        for (n, root) in self.roots.iter().enumerate() {
            // Periods in which the root seals, and one more at each end for clocks that differ.
            let first = match n {
                // The first root also seals before its time, because there is no earlier root.
                0 => 0,
                _ => (root.from / self.period).saturating_sub(1),
            };
            let last = self.roots.get(n + 1).map_or(u64::MAX, |next| next.from / self.period + 1);
            let accepted = oldest.max(first)..=(current + 1).min(last);
            let others = accepted.filter(|period| (n, *period) != (sealing, current));
            secrets.extend(others.map(|period| self.derive(n, period)));
        }
        secrets
    }

    /// Time until the next period or root begins, in seconds.
    pub fn until_next(&self, now: u64) -> u64 {
        let period = self.period - now % self.period;
        let roots = self.roots.iter().filter_map(|root| root.from.checked_sub(now));
        roots.filter(|until| *until > 0).fold(period, u64::min)
    }

    /// Number and secret of a period.
    fn derive(&self, root: usize, period: u64) -> (u8, [u8; 32]) {
        let Root { number, secret, .. } = &self.roots[root];
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let mut derived = [0; 32];
        let text = [LABEL, &period.to_be_bytes()].concat();
        derived.copy_from_slice(hmac::sign(&key, &text).as_ref());
        let low = (period % (1 << PERIOD_BITS)) as u8;
        (number << PERIOD_BITS | low, derived)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3600;

    fn root(number: u8, from: u64) -> Root {
        Root { number, secret: [number + 1; 32], from }
    }

    fn rotation(roots: &[Root]) -> Rotation {
        Rotation::new(HOUR, 1, roots.to_vec()).unwrap()
    }

    #[test]
    fn each_period_has_a_secret_which_the_neighbouring_periods_accept() {
        let rotation = rotation(&[root(2, 0)]);
        let at = |hour: u64| rotation.secrets(hour * HOUR + 5);
        let numbers = |hour| at(hour).iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(100), [2 << 5 | 4, 2 << 5 | 3, 2 << 5 | 5]);
        assert!(at(101).contains(&at(100)[0]) && at(99).contains(&at(100)[0]));
        assert!(!at(102).contains(&at(100)[0]), "one earlier period is kept");
        assert_eq!(rotation.until_next(100 * HOUR + 5), HOUR - 5);
    }

    #[test]
    fn a_new_root_seals_at_its_time_and_the_old_one_expires() {
        let (old, new) = (root(0, 0), root(1, 100 * HOUR + 1_800));
        let both = rotation(&[new.clone(), old.clone()]);
        let (old, new) = (rotation(&[old]), rotation(&[new]));
        let sealing = |of: &Rotation, at| of.secrets(at)[0];
        let time = 100 * HOUR + 1_800;
        assert_eq!(sealing(&both, time - 1), sealing(&old, time - 1));
        assert_eq!(sealing(&both, time), sealing(&new, time));
        assert_eq!(both.until_next(time - 1), 1);
        // All replicas have both roots. Within an hour, each accepts the data that the others seal.
        for ahead in [0, 1, 1_799] {
            assert!(both.secrets(time - 1).contains(&sealing(&both, time + ahead)));
            assert!(both.secrets(time + ahead).contains(&sealing(&both, time - 1)));
        }
        // Afterwards the old root does not matter.
        let later = time + 3 * HOUR;
        assert_eq!(both.secrets(later), new.secrets(later));
        // A single root also seals before its time.
        assert_eq!(sealing(&new, 5).0, 1 << 5);
    }

    #[test]
    fn invalid_roots_and_periods_are_refused() {
        let of = |period, keep, roots: &[Root]| Rotation::new(period, keep, roots.to_vec()).err();
        assert_eq!(of(HOUR, 1, &[]), Some(InvalidRotation::Roots(0)));
        assert_eq!(of(9, 1, &[root(0, 0)]), Some(InvalidRotation::Period));
        assert_eq!(of(HOUR, 0, &[root(0, 0)]), Some(InvalidRotation::Kept(0)));
        assert_eq!(of(HOUR, 1, &[root(8, 0)]), Some(InvalidRotation::Number(8)));
        let twice = [root(3, 0), root(3, 5)];
        assert_eq!(of(HOUR, 1, &twice), Some(InvalidRotation::Twice(3)));
        let together = [root(3, 5), root(4, 5)];
        assert_eq!(of(HOUR, 1, &together), Some(InvalidRotation::Together(3, 4)));
    }

    proptest! {
        #[test]
        fn replicas_accept_each_others_secrets_and_numbers_are_unique(
            now in 10 * HOUR..1_000 * HOUR, skew in 0..HOUR, age in 0..HOUR,
            keep in 1..=MAX_KEPT, from in prop::collection::vec(0..1_000 * HOUR, 0..3)
        ) {
            let mut times: BTreeSet<u64> = from.into_iter().collect();
            times.insert(0);
            let roots = (0..).zip(times).map(|(number, from)| root(number, from)).collect();
            let rotation = Rotation::new(HOUR, keep, roots).unwrap();
            let secrets = rotation.secrets(now);
            let numbers: BTreeSet<u8> = secrets.iter().map(|(number, _)| *number).collect();
            prop_assert_eq!(numbers.len(), secrets.len());
            prop_assert!(secrets.contains(&rotation.secrets(now + skew)[0]), "a clock ahead");
            prop_assert!(secrets.contains(&rotation.secrets(now - age)[0]), "an earlier answer");
        }
    }
}
