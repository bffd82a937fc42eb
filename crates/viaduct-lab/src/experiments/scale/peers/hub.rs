//! Packet plane of a hub, in virtual time. Its inputs are recorded in a simulation with all its
//! peers. Then they are replayed to another hub with the same keys, and only the CPU time of that
//! hub is measured.
//!
//! ```text
//!   Recorder   hub ◀─▶ planes of all peers ─▶ inputs of the hub, in batches
//!   Replay     packets, datagrams ─▶ hub      timed by the thread's clock
//! ```
//!
//! With the same entropy and the same inputs, a state machine behaves identically. The second hub
//! can therefore open the datagrams that were sealed for the first hub.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::repair::control::Limits;
use viaduct_proto::repair::lanes::LaneCount;
use viaduct_proto::repair::{
    Coding, Local, PeerConfig, Plane, RackConfig, Sites, Transport, TransportChoice,
};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::timers::DeadlineQueue;
use viaduct_proto::wire::ip::{self, MutableFields};

use super::traffic::{Pattern, Traffic};

/// Packets handled together, half of them in each direction.
pub(super) const BATCH: usize = 256;
/// Time between two batches, for 100,000 packets a second.
pub(super) const STEP: Duration = Duration::from_micros(2_560);
/// Length of the packets in bytes.
pub(super) const LEN: usize = 1_200;
/// Memory of the hub for packets: the default of `memory`.
const MEMORY: usize = 32 << 20;
/// Maximum time until all sessions are up.
const HANDSHAKES: Duration = Duration::from_secs(60);

/// Input of the hub.
#[derive(Debug)]
enum Input {
    /// Packet to a peer.
    Outgoing(u32),
    /// Packet from a peer.
    Incoming(u32),
    /// Datagram from a peer.
    Datagram(u32, Box<[u8]>),
}

/// Inputs at one time.
#[derive(Debug)]
pub(super) struct Batch {
    at: Instant,
    inputs: Vec<Input>,
}

/// Recorded inputs: the handshakes until all sessions are up, and the inputs of each pattern.
#[derive(Debug)]
pub(super) struct Recording {
    peers: usize,
    handshakes: Vec<Batch>,
    pub(super) patterns: Vec<Vec<Batch>>,
    /// Number of packets that the hub protected during the recording.
    protected: u64,
}

/// Simulation of a hub with all its peers.
struct Recorder {
    hub: Plane,
    spokes: Vec<Plane>,
    deadlines: DeadlineQueue,
    /// Datagrams of the spokes that the hub has not received yet.
    sent: Vec<(usize, Box<[u8]>)>,
    now: Instant,
    packets: Packets,
}

impl Recording {
    /// Records a hub of `peers` peers, with `batches` batches of each pattern.
    pub(super) fn new(peers: usize, batches: usize, seed: u64) -> Result<Recording> {
        let mut recorder = Recorder::new(peers)?;
        let mut handshakes = Vec::new();
        while recorder.hub.stats().iter().any(|(_, stats)| !stats.up)
            || recorder.spokes.iter().any(|spoke| !spoke.stats()[0].1.up)
        {
            ensure!(recorder.now < Instant::ZERO + HANDSHAKES, "not all sessions are up");
            for _ in 0..40 {
                handshakes.push(recorder.step(&[]));
            }
        }
        let patterns = Pattern::ALL.map(|pattern| {
            let mut traffic = Traffic::new(pattern, peers, seed);
            (0..batches).map(|_| recorder.step(&traffic.next(BATCH))).collect()
        });
        let protected = protected(&recorder.hub);
        Ok(Recording { peers, handshakes, patterns: patterns.into(), protected })
    }
}

fn protected(hub: &Plane) -> u64 {
    hub.stats().iter().map(|(_, stats)| stats.sender.protected).sum()
}

impl Recorder {
    fn new(peers: usize) -> Result<Recorder> {
        let spokes =
            (0..peers).map(|n| plane(1 + n, vec![peer(0, n, 1)])).collect::<Result<_>>()?;
        let mut deadlines = DeadlineQueue::default();
        (0..peers).for_each(|n| deadlines.set(n, Instant::ZERO));
        Ok(Recorder {
            hub: hub(peers)?,
            spokes,
            deadlines,
            sent: Vec::new(),
            now: Instant::ZERO,
            packets: Packets::default(),
        })
    }

    /// Passes to the hub the datagrams that the spokes have sent, and a packet to or from each of
    /// `peers`. Returns these inputs.
    fn step(&mut self, peers: &[usize]) -> Batch {
        self.now += STEP;
        let now = self.now;
        let mut inputs = Vec::new();
        for (n, datagram) in std::mem::take(&mut self.sent) {
            self.hub.handle_datagram(now, address(1 + n), &mut datagram.clone());
            inputs.push(Input::Datagram(n as u32, datagram));
        }
        for (at, &n) in peers.iter().enumerate() {
            let leaves = at % 2 == 0;
            let mut packet = vec![0; LEN];
            self.packets.write(n, leaves, &mut packet);
            if leaves {
                self.hub.handle_outgoing(now, now, &mut packet.clone());
                self.spokes[n].handle_incoming(now, now, &mut packet);
                inputs.push(Input::Outgoing(n as u32));
            } else {
                self.spokes[n].handle_outgoing(now, now, &mut packet.clone());
                self.hub.handle_incoming(now, now, &mut packet);
                inputs.push(Input::Incoming(n as u32));
            }
            self.deadlines.set(n, now);
        }
        self.hub.handle_timeout(now);
        for (to, datagram) in self.hub.transmits() {
            let n = number(to.address) - 1;
            self.spokes[n].handle_datagram(now, address(0), &mut datagram.to_vec());
            self.deadlines.set(n, now);
        }
        self.hub.clear_transmits();
        while let Some(n) = self.deadlines.poll_expired(now) {
            let spoke = &mut self.spokes[n];
            spoke.handle_timeout(now);
            self.sent.extend(spoke.transmits().map(|(_, datagram)| (n, datagram.into())));
            spoke.clear_transmits();
            self.deadlines.set(n, spoke.poll_timeout());
        }
        Batch { at: now, inputs }
    }
}

/// Hub to which recorded inputs are replayed.
pub(super) struct Replay {
    hub: Plane,
    packets: Packets,
    buffers: Vec<Vec<u8>>,
}

impl Replay {
    /// Creates the hub, and replays the handshakes.
    pub(super) fn new(of: &Recording) -> Result<Replay> {
        let buffers = vec![vec![0; LEN]; BATCH];
        let mut replay = Replay { hub: hub(of.peers)?, packets: Packets::default(), buffers };
        for batch in &of.handshakes {
            replay.run(batch);
        }
        Ok(replay)
    }

    /// Replays a batch; returns the CPU time used by the hub.
    pub(super) fn run(&mut self, batch: &Batch) -> Duration {
        let now = batch.at;
        let mut buffers = self.buffers.iter_mut();
        let mut datagrams = Vec::new();
        for input in &batch.inputs {
            match input {
                Input::Outgoing(n) | Input::Incoming(n) => {
                    let leaves = matches!(input, Input::Outgoing(_));
                    let buffer = buffers.next().expect("a buffer for each packet of a batch");
                    self.packets.write(*n as usize, leaves, buffer);
                }
                Input::Datagram(_, bytes) => datagrams.push(bytes.to_vec()),
            }
        }
        let (mut buffers, mut datagrams) = (self.buffers.iter_mut(), datagrams.into_iter());
        let begin = thread_time();
        for input in &batch.inputs {
            match input {
                Input::Outgoing(_) => {
                    buffers
                        .next()
                        .into_iter()
                        .for_each(|of| self.hub.handle_outgoing(now, now, of));
                }
                Input::Incoming(_) => {
                    buffers
                        .next()
                        .into_iter()
                        .for_each(|of| self.hub.handle_incoming(now, now, of));
                }
                Input::Datagram(n, _) => {
                    let mut datagram = datagrams.next().unwrap_or_default();
                    self.hub.handle_datagram(now, address(1 + *n as usize), &mut datagram);
                }
            }
        }
        self.hub.handle_timeout(now);
        self.hub.transmits().for_each(|(to, datagram)| {
            black_box((to, datagram.len()));
        });
        self.hub.clear_transmits();
        thread_time() - begin
    }

    /// Checks that this hub has protected as many packets as the recorded hub.
    pub(super) fn check(&self, of: &Recording) -> Result<()> {
        let (own, recorded) = (protected(&self.hub), of.protected);
        ensure!(own == recorded, "the replayed hub has protected {own} packets, not {recorded}");
        Ok(())
    }

    /// Returns the bytes of memory that the hub uses for packets.
    pub(super) fn memory(&self) -> usize {
        self.hub.memory()
    }
}

/// Packets with distinct contents.
#[derive(Debug, Default)]
struct Packets {
    count: u64,
}

impl Packets {
    /// Writes the next packet, to or from a host of peer `n`.
    fn write(&mut self, n: usize, leaves: bool, packet: &mut [u8]) {
        self.count += 1;
        let [hub, peer] = [site(0), site(1 + n)].map(|of| u32::from(of) | 7);
        let (source, destination) = if leaves { (hub, peer) } else { (peer, hub) };
        packet.fill(self.count as u8);
        packet[..28].fill(0);
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(LEN as u16).to_be_bytes());
        packet[9] = 17;
        packet[12..16].copy_from_slice(&source.to_be_bytes());
        packet[16..20].copy_from_slice(&destination.to_be_bytes());
        packet[20..24].copy_from_slice(&[0x13, 0x88, 0x13, 0x88]);
        packet[28..36].copy_from_slice(&self.count.to_be_bytes());
        ip::restore(packet, MutableFields { ttl: 63, tos: 0 });
    }
}

/// Creates the plane of the hub, which is site 0.
fn hub(peers: usize) -> Result<Plane> {
    plane(0, (0..peers).map(|n| peer(1 + n, n, peers)).collect())
}

fn plane(number: usize, peers: Vec<PeerConfig>) -> Result<Plane> {
    let rng = Mutex::new(Rng::from_seed(number as u64));
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| {
        rng.lock().expect("no holder of the lock panics").fill(out);
    });
    let local = Local {
        secret: secret(number),
        entropy,
        unix_nanos_at_zero: 1 << 60,
        lanes: LaneCount::ONE,
    };
    Plane::new(local, peers, Instant::ZERO).context("a plane of the lab")
}

/// Returns the config of site `number` as a peer, for the config of its partner. The partner of a
/// spoke is the hub (site 0); the partner of the hub is the spoke `n` (site `1 + n`). The partner
/// has `peers` peers.
fn peer(number: usize, n: usize, peers: usize) -> PeerConfig {
    let prefix = |number| vec![format!("{}/24", site(number)).parse().expect("a prefix")];
    let partner = if number == 0 { 1 + n } else { 0 };
    PeerConfig {
        name: format!("site-{number}"),
        key: secret(number).public(),
        endpoint: Some(address(number)),
        paths: None,
        transport: TransportChoice::Only(Transport::Udp),
        sites: Sites { local: prefix(partner), remote: prefix(number) },
        coding: Some(Coding::Auto(Limits { max_overhead: 0.3, max_rate: None }.into())),
        flush_after: Duration::from_millis(8),
        rekey_after: Duration::from_secs(3_600),
        longest: 1_500,
        mtu: 1_500,
        memory: MEMORY / peers,
        rack: RackConfig::default(),
    }
}

fn secret(number: usize) -> SecretKey {
    let mut bytes = [9; 32];
    bytes[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
    SecretKey::from_bytes(bytes)
}

/// Returns the /24 network of a site.
fn site(number: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | (number as u32) << 8)
}

/// Returns the address of a site's gateway.
fn address(number: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from_bits(0xc612_0000 + number as u32), 7400))
}

/// Returns the site whose gateway has this address.
fn number(address: SocketAddr) -> usize {
    match address {
        SocketAddr::V4(v4) => (v4.ip().to_bits() - 0xc612_0000) as usize,
        SocketAddr::V6(_) => 0,
    }
}

/// Returns the CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_protects_the_recorded_packets() {
        let recording = Recording::new(5, 200, 1).unwrap();
        let mut replay = Replay::new(&recording).unwrap();
        assert!(replay.check(&recording).is_err(), "the handshakes alone");
        for batch in recording.patterns.iter().flatten() {
            replay.run(batch);
        }
        replay.check(&recording).unwrap();
        let sent = 4 * 200 * BATCH as u64 / 2;
        assert_eq!(recording.protected, sent, "every packet was protected");
        assert!(replay.memory() <= MEMORY);
    }
}
