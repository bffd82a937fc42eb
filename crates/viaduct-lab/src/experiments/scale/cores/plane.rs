//! Packet planes of a site's workers in virtual time: CPU time per packet, summed over all workers.
//!
//! ```text
//!   64 pairs of hosts ─▶ site A: a plane for each worker, timed ◀─▶ site B: one plane
//! ```

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustix::time::{ClockId, clock_gettime};
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::repair::control::Limits;
use viaduct_proto::repair::lanes::{LaneCount, Shares, lane_hash};
use viaduct_proto::repair::wire::LANE_AT;
use viaduct_proto::repair::{
    Coding, Local, PeerConfig, Plane, RackConfig, Sites, Transport, TransportChoice,
};
use viaduct_proto::time::{Duration as Span, Instant as Now};
use viaduct_proto::wire::ip::{self, Header, MutableFields};

use super::rounded;
use crate::experiments::prelude::*;

/// Compared configurations (arms): numbers of lanes and of workers. The first one is a gateway
/// without lanes.
const ARMS: [(usize, usize); 5] = [(1, 1), (16, 1), (16, 2), (16, 4), (16, 8)];
/// Packets handled together, half of them in each direction.
const BATCH: usize = 256;
/// Time between two batches, for 100,000 packets a second.
const STEP: Span = Span::from_micros(2_560);
const LEN: usize = 1_200;
/// Batches per slice. The arms alternate slice by slice.
const SLICE: usize = 20;
/// Maximum cost of a packet, relative to that of one worker with the same lanes.
const COST: f64 = 1.1;

pub(super) const STEPS: usize = 1;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let slices = run.choose(60, 16);
    run.param("packets", format!("{LEN} bytes, 64 pairs of hosts, code auto, no loss"));
    run.step("the workers' planes in virtual time")?;
    let mut arms = ARMS.iter().map(|&(lanes, workers)| Arm::new(lanes, workers));
    let mut arms = arms.by_ref().collect::<Result<Vec<_>>>()?;
    let mut times = vec![Vec::new(); arms.len()];
    for slice in 0..slices {
        // Each slice begins with another arm.
        for turn in 0..arms.len() {
            let at = (slice + turn) % arms.len();
            let time: Duration = (0..SLICE).map(|_| arms[at].batch()).sum();
            if slice >= slices / 4 {
                times[at].push(time.as_secs_f64());
            }
        }
    }
    let plot = Plot::histogram("Cost of a packet", ("lanes, workers", ""), ("CPU", "ns"));
    for (x, ((lanes, workers), own)) in ARMS.iter().zip(&times).enumerate() {
        let cost = 1e9 * median(own) / (SLICE * BATCH) as f64;
        run.plot_bar(&plot, "all workers", (x, &format!("{lanes}, {workers}")), cost);
        run.param(&format!("{lanes} lanes, {workers} workers: ns a packet"), rounded(cost));
        if *workers > 1 {
            let ratios: Vec<f64> = own.iter().zip(&times[1]).map(|(own, one)| own / one).collect();
            let name = format!("{workers} workers: cost per packet, relative to one worker");
            run.at_most(&name, median(&ratios), COST);
        }
    }
    arms.iter().try_for_each(Arm::check)
}

/// Site A with some workers, and site B with one.
struct Arm {
    lanes: LaneCount,
    workers: Vec<Plane>,
    far: Plane,
    now: Now,
    sent: u64,
}

impl Arm {
    /// Creates both sites, and waits until all sessions are up.
    fn new(lanes: usize, workers: usize) -> Result<Arm> {
        let lanes = LaneCount::new(lanes).context("a power of two")?;
        let planes = (0..workers).map(|worker| {
            let shares = (0..=lanes.last()).filter(|share| usize::from(*share) % workers == worker);
            plane(0, lanes, shares.collect())
        });
        let workers = planes.collect::<Result<_>>()?;
        let far = plane(1, LaneCount::ONE, Shares::all(LaneCount::ONE))?;
        let mut arm = Arm { lanes, workers, far, now: Now::ZERO, sent: 0 };
        for _ in 0..400 {
            arm.now += STEP;
            arm.exchange(arm.now);
        }
        ensure!(arm.far.stats()[0].1.up, "not all sessions are up");
        Ok(arm)
    }

    /// Returns the index of the worker that handles a lane's packets.
    fn worker(&self, lane: u8) -> usize {
        usize::from(self.lanes.lane(lane)) % self.workers.len()
    }

    /// Passes a batch of packets; returns the CPU time used by the workers.
    fn batch(&mut self) -> Duration {
        self.now += STEP;
        let now = self.now;
        let mut packets: Vec<Vec<(bool, Vec<u8>)>> = vec![Vec::new(); self.workers.len()];
        for at in 0..BATCH {
            let leaves = at % 2 == 0;
            let packet = packet(self.sent, leaves);
            self.sent += 1;
            match leaves {
                true => self.far.handle_incoming(now, now, &mut packet.clone()),
                false => self.far.handle_outgoing(now, now, &mut packet.clone()),
            }
            let lane = Header::parse(&packet).map_or(0, |header| lane_hash(&header));
            packets[self.worker(lane)].push((leaves, packet));
        }
        let mut time = Duration::ZERO;
        for (worker, packets) in self.workers.iter_mut().zip(&mut packets) {
            let begin = thread_time();
            for (leaves, packet) in packets {
                match leaves {
                    true => worker.handle_outgoing(now, now, packet),
                    false => worker.handle_incoming(now, now, packet),
                }
            }
            time += thread_time() - begin;
        }
        time + self.exchange(now)
    }

    /// Carries all datagrams between the sites; returns the CPU time of the workers.
    fn exchange(&mut self, now: Now) -> Duration {
        let mut time = Duration::ZERO;
        self.far.handle_timeout(now);
        let mut from_far = vec![Vec::new(); self.workers.len()];
        for (_, datagram) in self.far.transmits() {
            let worker = usize::from(self.lanes.lane(datagram[LANE_AT])) % self.workers.len();
            from_far[worker].push(datagram.to_vec());
        }
        self.far.clear_transmits();
        for (worker, datagrams) in self.workers.iter_mut().zip(&mut from_far) {
            let begin = thread_time();
            for datagram in datagrams {
                worker.handle_datagram(now, address(1), datagram);
            }
            worker.handle_timeout(now);
            worker.transmits().for_each(|(to, datagram)| {
                black_box((to, datagram.len()));
            });
            time += thread_time() - begin;
            for (_, datagram) in worker.transmits() {
                self.far.handle_datagram(now, address(0), &mut datagram.to_vec());
            }
            worker.clear_transmits();
        }
        time
    }

    /// Checks that all packets were protected.
    fn check(&self) -> Result<()> {
        let of = |plane: &Plane| plane.stats()[0].1.sender.protected;
        let protected: u64 = self.workers.iter().map(of).sum();
        ensure!(protected == self.sent / 2, "{protected} of {} packets protected", self.sent / 2);
        Ok(())
    }
}

fn plane(number: u8, lanes: LaneCount, shares: Shares) -> Result<Plane> {
    // Each plane has sessions of its own, with different keys.
    static SEED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let rng = Mutex::new(Rng::from_seed(SEED.fetch_add(1, Ordering::Relaxed)));
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| {
        rng.lock().expect("no holder of the lock panics").fill(out);
    });
    let secret = |n: u8| SecretKey::from_bytes([n + 1; 32]);
    let prefix = |n: u8| vec![format!("10.{}.0.0/16", n + 1).parse().expect("a prefix")];
    let local = Local { secret: secret(number), entropy, unix_nanos_at_zero: 1 << 60, lanes };
    let other = 1 - number;
    let peer = PeerConfig {
        name: "peer".to_owned(),
        key: secret(other).public(),
        endpoint: Some(address(other)),
        paths: None,
        transport: TransportChoice::Only(Transport::Udp),
        sites: Sites { local: prefix(number), remote: prefix(other) },
        coding: Some(Coding::Auto(Limits { max_overhead: 0.3, max_rate: None }.into())),
        flush_after: Span::from_millis(8),
        rekey_after: Span::from_secs(3_600),
        longest: 1_500,
        mtu: 1_500,
        memory: 32 << 20,
        rack: RackConfig::default(),
    };
    Plane::with_shares(local, vec![peer], shares, Now::ZERO).context("a plane of the lab")
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number + 1], 7400))
}

/// Builds packet `number`, from site A if `leaves`, otherwise from site B.
fn packet(number: u64, leaves: bool) -> Vec<u8> {
    let mut packet = vec![number as u8; LEN];
    let [a, b] = [number / 2 % 8, number / 16 % 8].map(|host| host as u8 + 1);
    let (source, destination) = ([10, 1, 0, a], [10, 2, 0, b]);
    let (source, destination) = if leaves { (source, destination) } else { (destination, source) };
    packet[..28].fill(0);
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(LEN as u16).to_be_bytes());
    packet[9] = 17;
    packet[12..16].copy_from_slice(&source);
    packet[16..20].copy_from_slice(&destination);
    packet[20..24].copy_from_slice(&[0x13, 0x88, 0x13, 0x88]);
    packet[28..36].copy_from_slice(&number.to_be_bytes());
    ip::restore(&mut packet, MutableFields { ttl: 63, tos: 0 });
    packet
}

/// Returns the CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
