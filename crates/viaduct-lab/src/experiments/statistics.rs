//! Statistics of samples.

use crate::experiment::{Bound, Run, student_95};

/// Returns the mean; NaN if empty.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the mean of a property of `items`; NaN if empty.
pub(super) fn mean_of<T>(items: &[T], property: impl Fn(&T) -> f64) -> f64 {
    mean(&items.iter().map(property).collect::<Vec<_>>())
}

/// Returns the median; NaN if empty.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the median of a property of `items`; NaN if empty.
pub(super) fn median_of<T>(items: &[T], property: impl Fn(&T) -> f64) -> f64 {
    median(&items.iter().map(property).collect::<Vec<_>>())
}

/// Returns Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything.
pub(super) fn jain(shares: &[f64]) -> f64 {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    shares.iter().sum::<f64>().powi(2) / (shares.len() as f64 * squares)
}

/// Checks the mean over the rounds of a run. If there are several rounds, records the mean's 95 %
/// confidence interval.
pub(super) fn check_mean(run: &mut Run, name: &str, values: &[f64], bound: Bound) {
    run.check(name, mean(values), bound);
    if values.len() > 1 {
        run.param(&format!("{name}, 95 %"), with_interval(values));
    }
}

/// Returns the standard error of the median of a normal distribution with these quartiles.
pub(super) fn median_error(values: &[f64]) -> f64 {
    let deviation = (quantile(values, 0.75) - quantile(values, 0.25)) / 1.349;
    1.2533 * deviation / (values.len() as f64).sqrt()
}

/// Formats a mean with the half-width of its 95 % confidence interval.
pub(super) fn with_interval(values: &[f64]) -> String {
    format!("{:.3} ± {:.3}", mean(values), student_95(values))
}

/// Returns the quantile `q` (0 to 1) of `values` by nearest rank; NaN if empty.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Returns the growth of the lowest value from the first fifth of `values` to the last fifth; NaN
/// if `values` is empty.
pub(super) fn growth(values: &[f64]) -> f64 {
    let fifth = values.len().div_ceil(5);
    let lowest = |of: &[f64]| of.iter().copied().reduce(f64::min).unwrap_or(f64::NAN);
    lowest(&values[values.len() - fifth..]) - lowest(&values[..fifth])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| quantile(&values, q)), [1.0, 50.0, 99.0, 100.0]);
        assert_eq!(mean(&values), 50.5);
        assert!(quantile(&[], 0.5).is_nan() && mean(&[]).is_nan());
    }

    #[test]
    fn jains_index_is_one_for_equal_shares_and_a_fraction_for_a_single_user() {
        assert_eq!(jain(&[5.0; 4]), 1.0);
        assert_eq!(jain(&[9.0, 0.0, 0.0]), 1.0 / 3.0);
    }

    #[test]
    fn four_times_as_many_values_halve_the_error_of_the_median() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let many = values.repeat(4);
        assert_eq!(median_error(&many), median_error(&values) / 2.0);
        // Quartiles 50 apart belong to a normal distribution with a deviation of 37.
        assert!((median_error(&values) - 4.65).abs() < 0.01, "{}", median_error(&values));
        assert_eq!(median_error(&[7.0; 9]), 0.0);
    }
}
