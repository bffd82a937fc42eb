//! Simulation of an FEC code over a lossy link: packets at a constant rate, their repairs, and the
//! fate of each lost packet. The experiments on bursts (Maelstrom, Figures 13 to 17) and the
//! property tests of the codes use it for their sweeps.
//!
//! ```text
//!   source ─┬─ packet n ──────────▶ ┌──────┐ ──▶ known packets ─┐
//!           └─▶ Encoder ─ repairs ▶ │ Link │ ──▶ Decoder ◀──────┴──▶ recovered, checked
//!                                   └──────┘
//! ```
//!
//! Packets and repairs share the link, so that a burst can hit both, as on a real link. The
//! contents of packet n are computed from n and the seed, once to send it and once to check it on
//! arrival. So packets in flight need not be stored, and each recovered packet can be compared with
//! the original.

mod run;
#[cfg(test)]
mod tests;

use crate::fec::{Decoder, Encoder, Seq};
use crate::link::LinkConfig;
use crate::time::{Duration, Instant};
use run::Run;

/// Parameters of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Number of source packets.
    pub packets: u64,
    /// Packets per second, above 0; the time between them is rounded to whole nanoseconds.
    pub rate: f64,
    /// Minimum and maximum length of a packet, in bytes; uniformly distributed.
    pub sizes: (usize, usize),
    /// Bytes of a repair on the link in addition to its body: headers, and the list of packets
    /// covered.
    pub repair_overhead: usize,
    /// Settings of the link, including its delay and loss.
    pub link: LinkConfig,
    /// Time from the last packet to the encoder's first flush stage, and between stages.
    pub flush: Duration,
    /// Number of latest packets that the receiver stores; repairs of older ones are forgotten.
    pub window: u64,
    /// Seed of losses and contents.
    pub seed: u64,
}

impl Default for Stream {
    /// 10,000 packets of 100 bytes, 1,000 a second, over a link with 50 ms of delay and no loss.
    fn default() -> Self {
        Stream {
            packets: 10_000,
            rate: 1000.0,
            sizes: (100, 100),
            repair_overhead: 40,
            link: LinkConfig { delay: Duration::from_millis(50), ..LinkConfig::default() },
            flush: Duration::from_millis(20),
            window: 8192,
            seed: 1,
        }
    }
}

/// Fate of a source packet that the link dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Number of the packet.
    pub seq: Seq,
    /// Length of the burst in which it was lost: consecutive packets and repairs on the link.
    pub burst: u32,
    /// Time from expected arrival (send time and delay) to recovery; `None` if never recovered.
    pub recovery: Option<Duration>,
}

/// Results of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The lost packets, ascending.
    pub lost: Vec<Lost>,
    /// Source packets sent.
    pub packets: u64,
    /// Bytes of the source packets.
    pub packet_bytes: u64,
    /// Repairs sent.
    pub repairs: u64,
    /// Bytes of the repairs, overhead included.
    pub repair_bytes: u64,
    /// Recovered packets whose bytes differ from those sent; 0 for a working code.
    pub garbled: u64,
    /// Recoveries of packets that were only late, and repeated recoveries.
    pub repeated: u64,
    /// Peak of the decoder's memory, in bytes.
    pub decoder_memory: usize,
}

impl Outcome {
    /// Share of the lost packets that was recovered; 1 if none was lost.
    pub fn recovered_share(&self) -> f64 {
        let recovered = self.lost.iter().filter(|lost| lost.recovery.is_some()).count();
        if self.lost.is_empty() { 1.0 } else { recovered as f64 / self.lost.len() as f64 }
    }

    /// Repair bytes for each byte of data.
    pub fn overhead(&self) -> f64 {
        self.repair_bytes as f64 / self.packet_bytes.max(1) as f64
    }
}

impl Stream {
    /// Runs the stream in virtual time. The encoder and the decoder must be fresh.
    pub fn run(&self, encoder: &mut dyn Encoder, decoder: &mut dyn Decoder) -> Outcome {
        let mut run = Run::new(self, decoder, encoder.next_seq());
        let gap = (1e9 / self.rate).round() as u64;
        let mut packet = Vec::new();
        for i in 0..self.packets {
            let now = Instant::from_nanos(gap * i);
            run.deliver_until(now);
            let seq = encoder.next_seq();
            run.contents.fill(seq, &mut packet);
            run.send_packet(now, seq, packet.len());
            encoder.push(&packet, &mut |repair| run.send_repair(now, repair));
        }
        let mut now = Instant::from_nanos(gap * self.packets);
        for stage in 0..encoder.stages() {
            now += self.flush;
            run.deliver_until(now);
            encoder.flush(stage, &mut |repair| run.send_repair(now, repair));
        }
        run.deliver_until(Instant::from_nanos(u64::MAX));
        run.finish()
    }
}
