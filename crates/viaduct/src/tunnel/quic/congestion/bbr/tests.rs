use std::collections::VecDeque;

use viaduct_proto::time::Instant as Ours;

use super::super::pacer::Pacer;
use super::*;

const MTU: u64 = 1200;
const TICK: Duration = Duration::from_micros(250);
/// Time until a missing packet is known to be lost, in round trips.
const LATE: f64 = 1.25;

/// A bottleneck with a queue, a path in both directions, and a sender.
struct World {
    began: Instant,
    now: Instant,
    bbr: Bbr,
    pacer: Pacer,
    /// Rate of the bottleneck, in bytes a second.
    rate: f64,
    /// Maximum length of the queue, in bytes.
    buffer: u64,
    /// Round trip without a queue, in seconds.
    rtt: f64,
    /// The path loses one of this many packets; 0: no loss.
    lose: u64,
    /// Bytes a second that the source produces.
    source: f64,
    /// Bytes that the source has ready.
    budget: f64,
    /// Send times of the packets in the queue.
    queue: VecDeque<Instant>,
    credit: f64,
    /// Times at which acknowledgements reach the sender, each with the send time of the packet.
    acks: VecDeque<(Instant, Instant)>,
    /// Times at which the sender detects losses, each with the send time of the packet.
    losses: VecDeque<(Instant, Instant)>,
    in_flight: u64,
    limited: bool,
    sent: u64,
    delivered: u64,
    lost: u64,
    /// Bytes in the queue, summed over ticks.
    queued: u64,
}

impl World {
    fn new(mbits: f64, rtt: f64, buffer: f64) -> World {
        let (began, rate) = (Instant::now(), mbits * 1e6 / 8.0);
        World {
            began,
            now: began,
            bbr: Bbr::new(began, MTU as u16),
            pacer: Pacer::default(),
            rate,
            buffer: (buffer * rate * rtt) as u64,
            rtt,
            lose: 0,
            source: f64::INFINITY,
            budget: 0.0,
            queue: VecDeque::new(),
            credit: 0.0,
            acks: VecDeque::new(),
            losses: VecDeque::new(),
            in_flight: 0,
            limited: false,
            sent: 0,
            delivered: 0,
            lost: 0,
            queued: 0,
        }
    }

    /// Runs for `seconds`. Returns the used share of the bottleneck's rate, and the mean queue in
    /// round trips.
    fn run(&mut self, seconds: f64) -> (f64, f64) {
        (self.delivered, self.queued) = (0, 0);
        let ticks = (seconds / TICK.as_secs_f64()) as u64;
        (0..ticks).for_each(|_| self.tick());
        let queued = self.queued as f64 / ticks as f64;
        (self.delivered as f64 / self.rate / seconds, queued / self.rate / self.rtt)
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.forward();
        self.acknowledge();
        self.send();
        self.queued += self.queue.len() as u64 * MTU;
    }

    fn forward(&mut self) {
        self.credit += self.rate * TICK.as_secs_f64();
        while self.credit >= MTU as f64
            && let Some(sent_at) = self.queue.pop_front()
        {
            self.credit -= MTU as f64;
            self.delivered += MTU;
            self.acks.push_back((self.now + Duration::from_secs_f64(self.rtt), sent_at));
        }
        self.credit = self.credit.min(MTU as f64);
    }

    fn acknowledge(&mut self) {
        let now = self.now;
        while let Some(sent_at) = due(&mut self.losses, now) {
            self.in_flight -= MTU;
            self.bbr.on_congestion_event(now, sent_at, false, MTU);
        }
        let mut came = false;
        while let Some(sent_at) = due(&mut self.acks, now) {
            self.in_flight -= MTU;
            // Same as `on_ack`, which needs the library's RTT estimator.
            self.bbr.samples.acked(now, sent_at, MTU);
            came = true;
        }
        if came {
            self.bbr.on_end_acks(now, self.in_flight, self.limited, None);
        }
    }

    fn send(&mut self) {
        self.budget = (self.budget + self.source * TICK.as_secs_f64()).min(1e6);
        let ours = Ours::from_nanos((self.now - self.began).as_nanos() as u64);
        let pace = self.bbr.metrics().pacing_rate.map(|bits| bits as f64 / 8.0);
        let most = match pace.map(|rate| self.pacer.poll(ours, rate, MTU)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(_)) => return,
            None => u64::MAX,
        };
        let mut sent = 0;
        self.limited = false;
        while sent + MTU <= most && self.in_flight + MTU <= self.bbr.window() {
            self.limited = self.budget < MTU as f64;
            if self.limited {
                break;
            }
            (self.budget, sent) = (self.budget - MTU as f64, sent + MTU);
            self.put();
        }
        if sent > 0 {
            self.bbr.on_sent(self.now, sent, 0);
            self.pacer.spend(sent);
        }
    }

    fn put(&mut self) {
        self.sent += 1;
        self.in_flight += MTU;
        let unlucky = self.lose > 0 && self.sent.is_multiple_of(self.lose);
        if unlucky || self.queue.len() as u64 * MTU >= self.buffer {
            self.lost += 1;
            let known = self.now + Duration::from_secs_f64(LATE * self.rtt);
            self.losses.push_back((known, self.now));
        } else {
            self.queue.push_back(self.now);
        }
    }
}

/// Takes the next entry due by `now`.
fn due(of: &mut VecDeque<(Instant, Instant)>, now: Instant) -> Option<Instant> {
    let &(at, sent_at) = of.front()?;
    (at <= now).then(|| of.pop_front())?;
    Some(sent_at)
}

#[test]
fn a_path_is_filled_with_hardly_any_standing_queue() {
    for (mbits, rtt) in [(200.0, 0.1), (1000.0, 0.06), (10.0, 0.6), (20.0, 0.01)] {
        let mut world = World::new(mbits, rtt, 1.0);
        world.run(60.0 * rtt);
        let (share, queue) = world.run(60.0 * rtt + 10.0);
        assert!(share > 0.95, "{mbits} Mb/s, {rtt} s: {share}");
        let burst = 4.0 * (0.001_f64).max(2.0 * MTU as f64 / world.rate) / rtt;
        assert!(queue < 0.04 + burst, "{mbits} Mb/s, {rtt} s: {queue} round trips in the queue");
    }
}

#[test]
fn a_full_path_is_probed_gently() {
    let mut world = World::new(100.0, 0.1, 1.0);
    world.run(6.0);
    let mut longest = 0.0_f64;
    for _ in 0..1000 {
        longest = longest.max(world.run(0.01).1);
    }
    assert!(longest < 0.15, "{longest} round trips in the queue");
}

#[test]
fn a_path_with_random_loss_is_filled() {
    for lose in [100, 50, 20] {
        let mut world = World::new(100.0, 0.1, 1.0);
        world.lose = lose;
        world.run(6.0);
        let (share, _) = world.run(10.0);
        assert!(share > 0.9, "one of {lose} is lost: {share}");
    }
}

#[test]
fn a_short_queue_is_not_overrun() {
    let mut world = World::new(100.0, 0.1, 0.1);
    world.run(6.0);
    (world.sent, world.lost) = (0, 0);
    let (share, _) = world.run(10.0);
    let lost = world.lost as f64 / world.sent as f64;
    assert!(share > 0.9, "{share}");
    assert!(lost < 0.03, "{lost} of the packets are lost");
}

#[test]
fn a_path_that_becomes_slower_or_faster_is_followed() {
    let mut world = World::new(100.0, 0.1, 2.0);
    world.run(6.0);
    world.rate /= 4.0;
    world.run(6.0);
    let (share, queue) = world.run(4.0);
    assert!(share > 0.9 && queue < 0.5, "slower: {share}, {queue} round trips in the queue");
    world.rate *= 4.0;
    world.run(8.0);
    let (share, _) = world.run(4.0);
    assert!(share > 0.9, "faster: {share}");
}

#[test]
fn an_application_limited_sender_keeps_its_estimate_of_the_path() {
    let mut world = World::new(100.0, 0.1, 1.0);
    world.run(6.0);
    world.source = world.rate / 10.0;
    let (share, queue) = world.run(20.0);
    assert!(share > 0.09 && queue < 0.05, "{share}, {queue} round trips in the queue");
    world.source = f64::INFINITY;
    world.run(0.5);
    let (share, _) = world.run(2.0);
    assert!(share > 0.9, "{share}");
}

#[test]
fn persistent_loss_closes_the_window_and_deliveries_open_it() {
    let mut world = World::new(100.0, 0.1, 1.0);
    world.run(6.0);
    world.bbr.on_congestion_event(world.now, world.now, true, MTU);
    assert_eq!(world.bbr.window(), MIN_PIPE_CWND * MTU);
    world.run(1.5);
    let (share, _) = world.run(2.0);
    assert!(share > 0.9, "{share}");
}
