//! Fates of a stream's packets, for comparison with the configured loss process.

use std::collections::BTreeMap;

use viaduct_proto::link::Loss;

use super::probe::Arrival;

/// Record of the packets that did not arrive.
pub(super) struct Fates {
    /// True for each lost packet, by number.
    pub(super) lost: Vec<bool>,
}

impl Fates {
    /// Builds the record of `sent` packets, of which `arrived` were received.
    pub(super) fn of(sent: u32, arrived: &[Arrival]) -> Fates {
        let mut lost = vec![true; sent as usize];
        for arrival in arrived {
            if let Some(lost) = lost.get_mut(arrival.number as usize) {
                *lost = false;
            }
        }
        Fates { lost }
    }

    /// Counts the packets that arrived at least once.
    pub(super) fn arrived(&self) -> usize {
        self.lost.iter().filter(|lost| !**lost).count()
    }

    /// Returns the share of lost packets.
    pub(super) fn rate(&self) -> f64 {
        1.0 - self.arrived() as f64 / self.lost.len() as f64
    }

    /// Counts the packets that were overtaken by one sent later.
    pub(super) fn overtaken(&self, arrived: &[Arrival]) -> usize {
        let mut latest = 0;
        let mut seen = vec![false; self.lost.len()];
        let is_overtaken = |arrival: &&Arrival| {
            latest = latest.max(arrival.number);
            // A duplicate does not count as another packet.
            let first = !std::mem::replace(&mut seen[arrival.number as usize], true);
            first && arrival.number < latest
        };
        arrived.iter().filter(is_overtaken).count()
    }

    /// Returns the lengths of loss bursts, without those cut off by the ends of the stream.
    fn bursts(&self) -> Vec<u32> {
        let runs = self.lost.chunk_by(|a, b| a == b);
        let whole = self.lost.len();
        let mut at = 0;
        let mut bursts = Vec::new();
        for run in runs {
            if run[0] && at > 0 && at + run.len() < whole {
                bursts.push(run.len() as u32);
            }
            at += run.len();
        }
        bursts
    }

    /// Returns each burst length with its share of the bursts.
    pub(super) fn shares_of_lengths(&self) -> Vec<(u32, f64)> {
        let bursts = self.bursts();
        let mut counts = BTreeMap::new();
        for length in &bursts {
            *counts.entry(*length).or_insert(0) += 1;
        }
        counts.into_iter().map(|(length, n)| (length, f64::from(n) / bursts.len() as f64)).collect()
    }

    /// Returns the deviation of the loss rate in standard errors.
    pub(super) fn errors_of_rate(&self, loss: &Loss) -> f64 {
        let mean = loss.mean();
        (self.rate() - mean).abs() / (variance(loss) / self.lost.len() as f64).sqrt()
    }

    /// Returns the deviation of the mean burst length in standard errors; infinite if the
    /// length should be constant and is not.
    pub(super) fn errors_of_length(&self, loss: &Loss) -> f64 {
        let bursts = self.bursts();
        let (mean, deviation) = length(loss);
        let n = bursts.len() as f64;
        let measured = bursts.iter().map(|&length| f64::from(length)).sum::<f64>() / n;
        if deviation == 0.0 {
            let exact = bursts.iter().all(|&length| f64::from(length) == mean);
            return if exact { 0.0 } else { f64::INFINITY };
        }
        (measured - mean).abs() / (deviation / n.sqrt())
    }
}

/// Returns the variance of the number of losses, per packet of a long stream.
fn variance(loss: &Loss) -> f64 {
    let mean = loss.mean();
    match loss {
        Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
            // Covariances decay by the factor `stay` with each packet of distance.
            let moves = p_good_to_bad + p_bad_to_good;
            let (stay, bad) = (1.0 - moves, p_good_to_bad / moves);
            let near = (loss_bad - loss_good).powi(2) * bad * (1.0 - bad);
            mean * (1.0 - mean) + 2.0 * near * stay / (1.0 - stay)
        }
        Loss::Bursts { length, .. } => {
            // Renewal process: a burst, and a geometric gap of at least one packet.
            let burst = f64::from(*length);
            let cycle = burst / mean;
            let gap = cycle - burst;
            let variance_of_gap = gap * (gap - 1.0);
            burst * burst * variance_of_gap / cycle.powi(3)
        }
        _ => mean * (1.0 - mean),
    }
}

/// Returns the mean and standard deviation of a burst's length.
fn length(loss: &Loss) -> (f64, f64) {
    let geometric = |more: f64| (1.0 / (1.0 - more), more.sqrt() / (1.0 - more));
    match loss {
        Loss::Bursts { length, .. } => (f64::from(*length), 0.0),
        Loss::GilbertElliott { p_bad_to_good, loss_good, loss_bad, p_good_to_bad } => {
            // A few bursts begin with a rare loss in the good state; the mean includes them.
            let moves = p_good_to_bad + p_bad_to_good;
            let (bad, good) = (p_good_to_bad / moves, p_bad_to_good / moves);
            let after_bad = (1.0 - p_bad_to_good) * loss_bad + p_bad_to_good * loss_good;
            let after_good = (1.0 - p_good_to_bad) * loss_good + p_good_to_bad * loss_bad;
            let begin = bad * loss_bad * (1.0 - after_bad) + good * loss_good * (1.0 - after_good);
            let (_, deviation) = geometric(after_bad);
            (loss.mean() / begin, deviation)
        }
        Loss::Independent { rate } => geometric(*rate),
        _ => (f64::NAN, f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use viaduct_proto::link::loss::LossProcess;
    use viaduct_proto::rng::Rng;

    use super::*;

    #[test]
    fn deviations_of_each_process_have_the_expected_variance() {
        for text in ["1%", "1%x8", "ge:0.2%:10%:0.01%:50%"] {
            let loss: Loss = text.parse().unwrap();
            let mut squares = [0.0; 2];
            for seed in 0..200 {
                let (mut process, mut rng) = (LossProcess::new(&loss), Rng::from_seed(seed));
                let lost = (0..50_000).map(|_| process.next(&mut rng)).collect();
                let fates = Fates { lost };
                let errors = [fates.errors_of_rate(&loss), fates.errors_of_length(&loss)];
                squares = [0, 1].map(|i| squares[i] + errors[i].powi(2) / 200.0);
            }
            // The mean square of normalized errors is 1.
            assert!((0.7..1.4).contains(&squares[0]), "{text}: rate {squares:?}");
            assert!(squares[1] < 1.4, "{text}: length {squares:?}");
        }
    }

    #[test]
    fn bursts_at_the_ends_are_not_counted() {
        let lost = [1, 1, 0, 1, 0, 1, 1, 1, 0, 1].map(|bit| bit == 1).to_vec();
        assert_eq!(Fates { lost }.bursts(), [1, 3]);
    }
}
