//! Streams with a code whose results are easy to predict.

use super::*;
use crate::fec::{Cover, Fire, Recovered, Repair, Row, Sources, Verdict};

/// Encoder that sends every packet once more, `after` packets later.
struct Again {
    next: Seq,
    after: u64,
    waiting: std::collections::VecDeque<(Seq, Vec<u8>)>,
}

impl Again {
    fn new(after: u64) -> Self {
        Again { next: 1, after, waiting: Default::default() }
    }

    fn fire_oldest(&mut self, fire: &mut Fire<'_>) {
        let (first, body) = self.waiting.pop_front().unwrap();
        let cover = Cover { first, stride: 1, count: 1 };
        let len_code = (body.len() as u16).to_be_bytes();
        fire(Repair { cover, row: Row::Xor { layer: 0 }, len_code, body: &body });
    }
}

impl Encoder for Again {
    fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>) {
        self.waiting.push_back((self.next, packet.to_vec()));
        self.next += 1;
        if self.waiting.len() as u64 > self.after {
            self.fire_oldest(fire);
        }
    }

    fn flush(&mut self, _stage: usize, fire: &mut Fire<'_>) {
        while !self.waiting.is_empty() {
            self.fire_oldest(fire);
        }
    }

    fn stages(&self) -> usize {
        1
    }

    fn next_seq(&self) -> Seq {
        self.next
    }

    fn memory(&self) -> usize {
        0
    }
}

struct Once;

impl Decoder for Once {
    fn repair(
        &mut self,
        repair: Repair<'_>,
        sources: &dyn Sources,
        out: &mut Recovered,
    ) -> Verdict {
        if sources.get(repair.cover.first).is_some() {
            return Verdict::Useless;
        }
        out.push(repair.cover.first, repair.body);
        Verdict::Used
    }

    fn known(&mut self, _: Seq, _: &dyn Sources, _: &mut Recovered) {}

    fn forget_below(&mut self, _: Seq) {}

    fn memory(&self) -> usize {
        7
    }
}

fn stream(link: &str) -> Stream {
    Stream { link: link.parse().unwrap(), ..Stream::default() }
}

#[test]
fn without_loss_nothing_is_recovered() {
    let outcome = stream("delay=50ms").run(&mut Again::new(3), &mut Once);
    assert_eq!(outcome.lost, []);
    assert_eq!((outcome.packets, outcome.repairs), (10_000, 10_000));
    assert_eq!((outcome.garbled, outcome.repeated, outcome.decoder_memory), (0, 0, 7));
    assert!((outcome.overhead() - 1.4).abs() < 1e-9);
}

#[test]
fn a_recovery_comes_as_late_as_the_repair_was_sent() {
    let sizes = (40, 1400);
    let outcome = Stream { sizes, ..stream("delay=50ms,loss=trace:100:1") }
        .run(&mut Again::new(3), &mut Once);
    // One in 101 of 20,000 packets and repairs; half of these are repairs.
    assert!((98..=100).contains(&outcome.lost.len()), "{}", outcome.lost.len());
    assert_eq!((outcome.garbled, outcome.repeated), (0, 0));
    // Three packets at 1,000 a second; the last ones are sent by the flush.
    let late = Some(Duration::from_millis(3));
    let most = outcome.lost.iter().filter(|l| l.seq < 9_990);
    assert!(most.clone().all(|l| (l.burst, l.recovery) == (1, late)), "{:?}", outcome.lost);
}

#[test]
fn bursts_count_neighbours_on_the_link_and_include_repairs_sent_soon_after() {
    let link = "delay=50ms,loss=1%x10";
    let soon = stream(link).run(&mut Again::new(3), &mut Once);
    // Packets and repairs alternate, so a burst hits five packets. It also hits the repairs of two
    // of them if it begins with a packet, and of one if it begins with a repair.
    assert!(soon.lost.iter().all(|lost| lost.burst == 10), "{:?}", soon.lost);
    let share = soon.recovered_share();
    assert!((share - 0.7).abs() < 0.05, "{share}");
    let late = stream(link).run(&mut Again::new(300), &mut Once);
    assert!(late.recovered_share() > 0.9, "{}", late.recovered_share());
}

#[test]
fn late_packets_are_not_lost() {
    let outcome = stream("delay=50ms,jitter=10ms,reorder=10%:5ms,duplicate=5%")
        .run(&mut Again::new(0), &mut Once);
    assert_eq!(outcome.lost, []);
    assert!(outcome.repeated > 100, "repairs that overtook their packets");
}
