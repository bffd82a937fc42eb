//! Closed forms of Maelstrom 4.4 for the probability that a lost packet is recovered.

/// Probability of recovery by layered interleaving (r,c), if packets and repairs are lost
/// independently with probability `p`: `1 - (1 - (1-p)^r)^c`. A lower bound, since layers also help
/// each other.
pub fn layered_independent(r: u8, c: usize, p: f64) -> f64 {
    1.0 - unusable(r, p).powf(c as f64)
}

/// Probability of recovery by layered interleaving, if the packet was lost in a burst of `burst`
/// packets: `1 - x^c'`, where c' counts the interleaves above `burst` and x is the probability that
/// a repair is lost or not usable. Packets and repairs outside the burst are lost independently
/// with probability `p`.
pub fn layered_burst(r: u8, interleaves: &[u16], burst: u64, p: f64) -> f64 {
    let above = interleaves.iter().filter(|&&i| u64::from(i) > burst).count();
    layered_independent(r, above, p)
}

/// Probability of recovery by Reed-Solomon (r,c) under independent loss with probability `p`: at
/// most c - 1 of the other r + c - 1 packets and repairs of the block are lost.
pub fn reed_solomon(r: u8, c: u8, p: f64) -> f64 {
    let n = u32::from(r) + u32::from(c) - 1;
    (0..u32::from(c)).map(|lost| binomial(n, lost, p)).sum()
}

/// Probability x that a repair is lost, or useless because another packet that it covers is lost.
fn unusable(r: u8, p: f64) -> f64 {
    1.0 - (1.0 - p).powi(i32::from(r))
}

/// Probability of exactly `k` losses among `n` packets.
fn binomial(n: u32, k: u32, p: f64) -> f64 {
    let choices = (0..k).map(|i| f64::from(n - i) / f64::from(i + 1)).product::<f64>();
    choices * p.powi(k as i32) * (1.0 - p).powi((n - k) as i32)
}

#[cfg(test)]
mod tests;
