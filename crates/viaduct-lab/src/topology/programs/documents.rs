//! Documents of a web server under a load of requests, with sizes by Zipf's law.
//!
//! The frequency of a document of k KB, k from 1 to 1000, is proportional to k^-1.7: the mean is
//! 11.5 KB, 86 % are below 10 KB, and 20 requests per second yield the 200 KB/s of the slides
//! ("Taming the LFN"). Only a few sizes are stored; each represents all sizes up to the next.

use std::fs;
use std::io;
use std::path::Path;

use viaduct_proto::rng::Rng;

/// Exponent of Zipf's law for sizes.
const EXPONENT: f64 = 1.7;
/// Largest size in KB (1000 bytes).
const LARGEST: usize = 1000;
/// Stored sizes in KB.
const SIZES: [usize; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 20, 25, 32, 40, 60, 80, 120, 180, 250, 400, 600, 1000];

/// Library of documents; the same seed yields the same bytes.
#[derive(Clone, Debug)]
pub struct Documents {
    /// Content of the largest document; the others are prefixes of it.
    bytes: Vec<u8>,
    /// Cumulative share of requests for k KB or less, k from 1.
    cumulated: Vec<f64>,
}

impl Documents {
    /// Generates all documents.
    pub fn new(seed: u64) -> Documents {
        let mut bytes = vec![0; LARGEST * 1000];
        Rng::from_seed(seed).fill(&mut bytes);
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = (1..=LARGEST)
            .map(|kb| {
                sum += (kb as f64).powf(-EXPONENT);
                sum
            })
            .collect();
        cumulated.iter_mut().for_each(|share| *share /= sum);
        Documents { bytes, cumulated }
    }

    /// Returns the stored sizes in KB, in ascending order.
    pub fn sizes(&self) -> &'static [usize] {
        &SIZES
    }

    /// Returns the document of `kb` KB, or the largest one if `kb` is larger.
    pub fn of(&self, kb: usize) -> &[u8] {
        &self.bytes[..(kb * 1000).min(self.bytes.len())]
    }

    /// Draws the size, in KB, of the next requested document.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let at = rng.unit();
        let kb = 1 + self.cumulated.partition_point(|share| *share <= at).min(LARGEST - 1);
        SIZES[SIZES.partition_point(|size| *size <= kb) - 1]
    }

    /// Writes each document to a file in `dir`, named by its size in KB.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        SIZES.iter().try_for_each(|kb| fs::write(dir.join(kb.to_string()), self.of(*kb)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_documents_are_small_and_the_mean_matches_the_slides() {
        let (documents, mut rng) = (Documents::new(1), Rng::from_seed(1));
        let drawn: Vec<usize> = (0..200_000).map(|_| documents.draw(&mut rng)).collect();
        let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
        let small = drawn.iter().filter(|kb| **kb < 10).count() as f64 / drawn.len() as f64;
        assert!((9.0..12.0).contains(&mean), "{mean} KB");
        assert!((0.84..0.88).contains(&small), "{small}");
        assert!(drawn.contains(&1000) && drawn.contains(&1));
    }
}
