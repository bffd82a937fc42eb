//! Two machines that play ping-pong.

use super::*;
use crate::time::Duration;

/// Sends a numbered ping every `every`; without `every`, answers each packet.
#[derive(Debug, Default)]
struct Player {
    every: Option<Duration>,
    next: Instant,
    sent: u64,
    answers: Vec<(u64, Instant)>,
    out: Vec<(Port, Vec<u8>)>,
}

impl Machine for Player {
    fn handle_packet(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        if self.every.is_none() {
            self.out.push((port, packet));
        } else {
            let number = u64::from_be_bytes(packet[..8].try_into().unwrap());
            self.answers.push((number, now));
        }
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        self.out.pop()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.every.map(|_| self.next)
    }

    fn handle_timeout(&mut self, now: Instant) {
        let mut ping = vec![0; 100];
        ping[..8].copy_from_slice(&self.sent.to_be_bytes());
        self.out.push((3, ping));
        self.sent += 1;
        self.next = now + self.every.unwrap();
    }
}

fn play(link: &str, seed: u64, end: Duration) -> (Sim<Player>, Node, [LinkId; 2]) {
    let mut sim = Sim::new();
    let every = Some(Duration::from_millis(10));
    let ping = sim.add(Player { every, ..Default::default() });
    let pong = sim.add(Player::default());
    let links = sim.connect_both((ping, 3), (pong, 0), &link.parse().unwrap(), seed);
    sim.run_until(Instant::ZERO + end);
    (sim, ping, links)
}

#[test]
fn a_round_trip_takes_both_delays() {
    let (sim, ping, _) = play("delay=25ms,rate=80k", 1, Duration::from_secs(1));
    let answers = &sim.node(ping).answers;
    // 100 bytes at 80 kb/s take 10 ms, each way.
    let due = |n: u64| Instant::from_nanos((70 + 10 * n) * 1_000_000);
    assert!(answers.iter().enumerate().all(|(i, &(n, at))| n == i as u64 && at == due(n)));
    assert_eq!(answers.len(), 94);
    assert_eq!(sim.now(), Instant::from_nanos(1_000_000_000));
}

#[test]
fn runs_differ_by_seed_alone() {
    let link = "delay=25ms,loss=20%,jitter=5ms,duplicate=10%,reorder=5%:20ms";
    let answers = |seed| {
        let (sim, ping, _) = play(link, seed, Duration::from_secs(5));
        sim.node(ping).answers.clone()
    };
    assert_eq!(answers(1), answers(1));
    assert_ne!(answers(1), answers(9));
}

#[test]
fn missing_packets_are_those_that_the_links_recorded() {
    let (mut sim, ping, [there, back]) = play("delay=25ms,loss=10%", 4, Duration::from_secs(20));
    assert!(!sim.run_to_rest(sim.now()), "the ping's timer never rests");
    let answers: Vec<u64> = sim.node(ping).answers.iter().map(|&(n, _)| n).collect();
    let lost_there: Vec<u64> = sim.take_record(there).drops.iter().map(|d| d.ordinal).collect();
    let lost_back = sim.link(back).stats().lost as usize;
    assert!(lost_there.iter().all(|n| !answers.contains(n)));
    let held = sim.link(there).held() + sim.link(back).held();
    let sent = sim.node(ping).sent as usize;
    assert_eq!(sent, answers.len() + lost_there.len() + lost_back + held);
}

#[test]
fn a_link_can_be_cut_and_mended() {
    let (mut sim, ping, links) = play("delay=1ms", 4, Duration::from_millis(95));
    assert_eq!(sim.node(ping).answers.len(), 10);
    sim.set_link(links[0], "loss=100%".parse().unwrap());
    sim.run_until(Instant::from_nanos(195_000_000));
    assert_eq!(sim.node(ping).answers.len(), 10);
    sim.set_link(links[0], "delay=1ms".parse().unwrap());
    sim.run_until(Instant::from_nanos(295_000_000));
    assert_eq!(sim.node(ping).answers.len(), 20);
}
