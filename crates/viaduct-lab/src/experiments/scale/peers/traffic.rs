//! Traffic of a hub: the peer of each packet.

use viaduct_proto::rng::Rng;

/// Distribution of packets over the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// None: only reports keep the sessions alive.
    Idle,
    /// All packets belong to the first peer.
    One,
    /// Each train of packets belongs to a random peer; all peers are equally likely.
    Trains,
    /// Each packet belongs to a random peer; the share of the n-th peer is proportional to 1/n.
    Zipf,
    /// Each packet belongs to a random peer; all peers are equally likely.
    Uniform,
}

/// Packets per train: a TCP window.
pub(super) const TRAIN: usize = 32;

impl Pattern {
    /// All patterns, in the order in which they are measured.
    pub(super) const ALL: [Pattern; 5] =
        [Pattern::Idle, Pattern::One, Pattern::Trains, Pattern::Zipf, Pattern::Uniform];

    /// Returns the name for display.
    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Idle => "idle",
            Pattern::One => "all with one peer",
            Pattern::Trains => "trains of 32",
            Pattern::Zipf => "Zipf",
            Pattern::Uniform => "uniform",
        }
    }
}

/// Generator of the packets' peers, from a seed.
#[derive(Debug)]
pub(super) struct Traffic {
    pattern: Pattern,
    peers: usize,
    rng: Rng,
    /// Cumulative shares of the peers, for [`Pattern::Zipf`].
    shares: Vec<f64>,
    /// Peer of the current train, and the number of packets left in it.
    train: (usize, usize),
}

impl Traffic {
    pub(super) fn new(pattern: Pattern, peers: usize, seed: u64) -> Traffic {
        let sum = |sum: &mut f64, n: usize| {
            *sum += 1.0 / n as f64;
            Some(*sum)
        };
        let shares = (1..=peers).scan(0.0, sum).collect();
        Traffic { pattern, peers, rng: Rng::from_seed(seed), shares, train: (0, 0) }
    }

    /// Returns the peers of the next `count` packets.
    pub(super) fn next(&mut self, count: usize) -> Vec<usize> {
        match self.pattern {
            Pattern::Idle => Vec::new(),
            _ => (0..count).map(|_| self.peer()).collect(),
        }
    }

    fn peer(&mut self) -> usize {
        match self.pattern {
            Pattern::Idle | Pattern::One => 0,
            Pattern::Trains => {
                if self.train.1 == 0 {
                    self.train = (self.any(), TRAIN);
                }
                self.train.1 -= 1;
                self.train.0
            }
            Pattern::Zipf => {
                let all = self.shares.last().copied().unwrap_or_default();
                let at = self.rng.unit() * all;
                self.shares.partition_point(|sum| *sum <= at).min(self.peers - 1)
            }
            Pattern::Uniform => self.any(),
        }
    }

    fn any(&mut self) -> usize {
        self.rng.below(self.peers as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of packets of each peer among 100,000, and the number of changes from one
    /// peer to another.
    fn counted(pattern: Pattern) -> (Vec<usize>, usize) {
        let peers = Traffic::new(pattern, 100, 7).next(100_000);
        let mut counts = vec![0; 100];
        peers.iter().for_each(|peer| counts[*peer] += 1);
        (counts, peers.windows(2).filter(|pair| pair[0] != pair[1]).count())
    }

    #[test]
    fn packets_are_distributed_as_named() {
        assert_eq!(counted(Pattern::One), ([vec![100_000], vec![0; 99]].concat(), 0));
        let (uniform, changes) = counted(Pattern::Uniform);
        assert!(uniform.iter().all(|count| (800..1_200).contains(count)) && changes > 98_000);
        let (trains, changes) = counted(Pattern::Trains);
        assert!(trains.iter().all(|count| (300..2_000).contains(count)));
        assert!((3_000..3_200).contains(&changes), "{changes}");
        let (zipf, _) = counted(Pattern::Zipf);
        let share = |n: usize| zipf[n] as f64 / zipf[0] as f64;
        assert!((share(1) - 0.5).abs() < 0.03 && (share(9) - 0.1).abs() < 0.01, "{zipf:?}");
        assert!(Traffic::new(Pattern::Idle, 100, 7).next(9).is_empty());
    }
}
