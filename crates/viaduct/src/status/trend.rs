//! History of a service or a peer: its rate and loss of the last two minutes, drawn as sparklines.

use std::collections::VecDeque;

/// Number of samples that are kept, one a second.
pub const SPAN: usize = 120;
/// Characters for the heights of a cell. The first stands for zero.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Loss that fills a cell, unless the history has a greater loss.
const FULL_LOSS: f64 = 0.01;

/// Values of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Bytes per second, or requests per second.
    pub rate: f32,
    /// Packets lost.
    pub lost: u32,
    /// Packets whose fate became known.
    pub covered: u32,
}

/// Samples of the last [`SPAN`] seconds. Seconds in which the service did not answer have none.
#[derive(Debug, Default)]
pub struct Trend {
    samples: VecDeque<Option<Sample>>,
    /// Number of seconds so far. A cell begins at a multiple of the seconds that it covers, so that
    /// a sample remains in the same cell while the plot moves to the left.
    seconds: usize,
}

impl Trend {
    /// Adds the sample of a second; `None` if there is none.
    pub fn push(&mut self, sample: Option<Sample>) {
        if self.samples.len() == SPAN {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.seconds += 1;
    }

    /// Mean rates as `cells` characters, the newest last, relative to the greatest.
    pub fn rates(&self, cells: usize) -> String {
        let mean = |all: &[Sample]| {
            Some(all.iter().map(|sample| f64::from(sample.rate)).sum::<f64>() / all.len() as f64)
        };
        draw(&self.cells(cells, mean), 0.0)
    }

    /// Losses as `cells` characters, the newest last, relative to the greatest or to 1 %.
    pub fn losses(&self, cells: usize) -> String {
        let share = |all: &[Sample]| {
            let covered: u64 = all.iter().map(|sample| u64::from(sample.covered)).sum();
            let lost: u64 = all.iter().map(|sample| u64::from(sample.lost)).sum();
            (covered > 0).then(|| lost as f64 / covered as f64)
        };
        draw(&self.cells(cells, share), FULL_LOSS)
    }

    /// Values of the last `cells` cells; `None` where there are no samples.
    fn cells(&self, cells: usize, value: impl Fn(&[Sample]) -> Option<f64>) -> Vec<Option<f64>> {
        let wide = SPAN.div_ceil(cells.max(1));
        let first = self.seconds - self.samples.len();
        let last = self.seconds.div_ceil(wide);
        let mut parts = vec![Vec::new(); cells];
        for (second, sample) in (first..).zip(&self.samples) {
            // The newest cell may be incomplete, and the oldest seconds may be in no cell.
            let Some(at) = (second / wide + cells).checked_sub(last) else { continue };
            parts[at].extend(*sample);
        }
        parts.iter().map(|part| if part.is_empty() { None } else { value(part) }).collect()
    }
}

/// Draws values relative to the greatest, or to `full` if it is greater.
fn draw(values: &[Option<f64>], full: f64) -> String {
    let most = values.iter().flatten().copied().fold(full, f64::max);
    let level = |value: f64| match most > 0.0 {
        // Rounded up, so that every value above zero is visible.
        true => LEVELS[(value / most * (LEVELS.len() - 1) as f64).ceil() as usize],
        false => LEVELS[0],
    };
    values.iter().map(|value| value.map_or(' ', level)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rate: f32, lost: u32) -> Option<Sample> {
        Some(Sample { rate, lost, covered: 1_000 })
    }

    #[test]
    fn cells_are_relative_to_the_greatest_and_the_newest_is_last() {
        let mut trend = Trend::default();
        assert_eq!((trend.rates(4), trend.losses(0)), ("    ".to_owned(), String::new()));
        for second in 0..40 {
            trend.push(sample(if second < 20 { 0.0 } else { 7.0 }, 5));
        }
        // Cells of ten seconds.
        assert_eq!(trend.rates(12), "        ▁▁██");
        assert_eq!(
            trend.losses(12),
            "        ▅▅▅▅",
            "half a percent, where a full cell is one percent"
        );
        trend.push(sample(0.001, 40));
        assert_eq!(trend.rates(12), "       ▁▁██▂");
        assert_eq!(trend.losses(12), "       ▂▂▂▂█");
    }

    #[test]
    fn seconds_without_an_answer_are_blank_and_old_ones_are_forgotten() {
        let mut trend = Trend::default();
        (0..SPAN).for_each(|_| trend.push(sample(1.0, 0)));
        (0..10).for_each(|_| trend.push(None));
        assert_eq!(trend.rates(12), "███████████ ");
        assert_eq!(trend.losses(6), "▁▁▁▁▁ ");
        assert_eq!(trend.samples.len(), SPAN);
        (0..SPAN).for_each(|_| trend.push(None));
        assert_eq!(trend.rates(120), " ".repeat(120));
    }
}
