//! Equations of the paper, shown beside the measurements. Hop i has the one-way delay D_i, D is the
//! sum of the D_i, and slow start takes n round trips for B bytes.

/// Initial window in segments.
const INITIAL_WINDOW: f64 = 10.0;
/// Bytes per segment.
const SEGMENT: f64 = 1448.0;

/// Expected times of a transfer in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// Time to the first byte.
    pub(super) first_byte: f64,
    /// Time to the last byte.
    pub(super) whole: f64,
}

/// Returns the round trips of slow start for `bytes`.
fn rounds(bytes: usize) -> f64 {
    (bytes as f64 / (INITIAL_WINDOW * SEGMENT) + 1.0).log2().ceil()
}

/// Returns the times for `bytes` over hops of these one-way delays in milliseconds, with the
/// SYN forwarded early at each proxy between them.
pub(super) fn expected(delays: &[f64], bytes: usize) -> Expected {
    let (sum, n) = (delays.iter().sum::<f64>(), rounds(bytes));
    let longest = delays.iter().copied().fold(0.0, f64::max);
    let first_byte = 2.0 * sum + 2.0 * longest;
    Expected { first_byte, whole: 2.0 * sum + 2.0 * n * longest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_yields_the_papers_figures() {
        let even = |proxies: usize| vec![50.0 / (proxies + 1) as f64; proxies + 1];
        let saved = |bytes: usize, proxies: usize| {
            1.0 - expected(&even(proxies), bytes).whole / expected(&even(0), bytes).whole
        };
        let near = |value: f64, meant: f64| (value - meant).abs() < 1e-3;
        assert!(near(saved(10_000, 1), 0.25) && near(saved(10_000, 3), 0.375));
        assert!(near(saved(25_000, 1), 1.0 / 3.0) && near(saved(25_000, 2), 4.0 / 9.0));
        assert!(near(saved(25_000, 3), 0.5));
    }
}
