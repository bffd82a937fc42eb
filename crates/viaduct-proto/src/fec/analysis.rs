//! Closed forms of Maelstrom 4.4 for the probability that a lost packet is recovered.

/// Layered interleaving (r,c) when packets and repairs are lost independently with probability
/// `p`: `1 - (1 - (1-p)^r)^c`. A lower bound, since layers also help each other.
pub fn layered_independent(r: u8, c: usize, p: f64) -> f64 {
    1.0 - unusable(r, p).powf(c as f64)
}

/// Layered interleaving when the packet was lost in a burst of `burst` packets: `1 - x^c'`, where
/// c' counts the interleaves above `burst` and x is the probability that a repair is lost or not
/// usable. Other losses come with probability `p`, independently.
pub fn layered_burst(r: u8, interleaves: &[u16], burst: u64, p: f64) -> f64 {
    let above = interleaves.iter().filter(|&&i| u64::from(i) > burst).count();
    layered_independent(r, above, p)
}

/// Reed-Solomon (r,c) under independent loss with probability `p`: the probability that of the
/// other r + c - 1 packets of the block at most c - 1 are lost.
pub fn reed_solomon(r: u8, c: u8, p: f64) -> f64 {
    let n = u32::from(r) + u32::from(c) - 1;
    (0..u32::from(c)).map(|lost| binomial(n, lost, p)).sum()
}

/// Probability x that a repair is lost, or unusable because another of its packets is lost.
fn unusable(r: u8, p: f64) -> f64 {
    1.0 - (1.0 - p).powi(i32::from(r))
}

/// Probability of exactly `k` in `n`.
fn binomial(n: u32, k: u32, p: f64) -> f64 {
    let choices = (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product::<f64>();
    choices * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)
}

#[cfg(test)]
mod tests;
