//! Numbered, timestamped UDP packets over the emulated link alone: from one gateway's `wan0` to the
//! other's, without hosts, forwarding or gateway programs.
//!
//! ```text
//!   gwa: number, time ─▶ wan0 ─▶ emulator ─▶ wan0 ─▶ gwb: the kernel's receive timestamp
//! ```

use std::io;
use std::net::UdpSocket;
use std::time::SystemTime;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use viaduct_sys::process::thread::set_fifo;
use viaduct_sys::socket::timestamp;

use crate::emulator::EmulatorConfig;
use crate::experiments::prelude::*;

/// Packets to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Number of packets.
    pub(super) packets: u32,
    /// Bytes per packet, IP header included: at least 40.
    pub(super) bytes: usize,
    /// Packets per batch.
    pub(super) batch: u32,
    /// Time between batches.
    pub(super) gap: Duration,
}

/// Packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Packet number, from 0.
    pub(super) number: u32,
    /// Receive time of the kernel, in seconds since the first packet was sent.
    pub(super) at: f64,
    /// Delay over the link in seconds.
    pub(super) delay: f64,
}

/// Header bytes of IP and UDP.
const HEADERS: usize = 28;
/// Time without a packet after which reception ends.
const SILENCE: Duration = Duration::from_millis(500);
/// Real-time priority above the emulator's, so that a packet is sent as soon as it is timestamped.
const PRIORITY: i32 = 20;
const PORT: u16 = 9000;

/// Builds two sites with this link between them.
pub(super) fn world(run: &Run, link: LinkConfig, spin: bool) -> Result<World> {
    let config = EmulatorConfig { spin, ..EmulatorConfig::symmetric(link, run.seed()) };
    let wan = Wan::Emulated(Box::new(config));
    let world = World::build(&DumbbellSpec { wan, ..DumbbellSpec::default() }, run.journal())?;
    for gateway in [world.dumbbell.gateway_a(), world.dumbbell.gateway_b()] {
        // Packets of IPv6 neighbour discovery would consume random numbers of the emulator, and so
        // change the losses and delays of the probe's packets.
        gateway.set_sysctls(&[("net/ipv6/conf/wan0/disable_ipv6", "1")])?;
    }
    Ok(world)
}

impl Probe {
    /// Creates a probe that sends one packet every `gap`.
    pub(super) fn steady(packets: u32, bytes: usize, gap: Duration) -> Probe {
        Probe { packets, bytes, batch: 1, gap }
    }

    /// Creates a probe that sends at this rate, in bits per second, for `duration`. Batches consist
    /// of complete packets, and are therefore half a millisecond or more apart.
    pub(super) fn at_rate(bits_per_second: f64, bytes: usize, duration: Duration) -> Probe {
        let gap = Duration::from_micros(500);
        let per_gap = bits_per_second / 8.0 / bytes as f64 * gap.as_secs_f64();
        let batch = per_gap.ceil().max(1.0);
        let gap = gap.mul_f64(batch / per_gap);
        let packets = batch * (duration.as_secs_f64() / gap.as_secs_f64()).ceil();
        Probe { packets: packets as u32, bytes, batch: batch as u32, gap }
    }

    /// Sends the packets; returns those that arrived, in order of arrival.
    pub(super) fn run(&self, world: &World) -> Result<Vec<Arrival>> {
        let (from, to) = (world.dumbbell.gateway_a(), world.dumbbell.gateway_b());
        let receiver = to.netns().enter(|| open("192.0.2.2", PORT))??;
        let sender = from.netns().enter(|| open("192.0.2.1", 0))??;
        sender.connect(("192.0.2.2", PORT))?;
        timestamp::enable(&receiver)?;
        // Receive timestamps take effect only some milliseconds after they are enabled.
        thread::sleep(Duration::from_millis(20));
        receiver.set_read_timeout(Some(SILENCE))?;
        thread::scope(|scope| {
            let sent = scope.spawn(|| self.send(&sender));
            let received = scope.spawn(|| receive(&receiver, self.bytes));
            let (start, received) = (join(sent)?, join(received)?);
            let seconds = |nanos: u64, since: u64| (nanos as f64 - since as f64) / 1e9;
            let arrival = |&(number, sent, got): &(u32, u64, u64)| Arrival {
                number,
                at: seconds(got, start),
                delay: seconds(got, sent),
            };
            Ok(received.iter().map(arrival).collect())
        })
    }

    /// Sends the packets; returns the start time in ns.
    fn send(&self, socket: &UdpSocket) -> io::Result<u64> {
        if self.batch == 1 {
            set_fifo(PRIORITY);
        }
        let (began, start) = (Instant::now(), nanos(SystemTime::now()));
        let mut packet = vec![0u8; self.bytes - HEADERS];
        for number in 0..self.packets {
            if number % self.batch == 0 {
                // A sender that is behind its schedule does not sleep until it has caught up.
                let due = self.gap * (number / self.batch);
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            packet[..4].copy_from_slice(&number.to_be_bytes());
            packet[4..12].copy_from_slice(&nanos(SystemTime::now()).to_be_bytes());
            socket.send(&packet)?;
        }
        Ok(start)
    }
}

/// Receives the packets: number, send time and receive time in ns.
fn receive(socket: &UdpSocket, bytes: usize) -> io::Result<Vec<(u32, u64, u64)>> {
    let mut arrived = Vec::new();
    let mut packet = vec![0u8; bytes];
    loop {
        match timestamp::receive(socket, &mut packet) {
            Ok((_, stamp)) => {
                let field = |from: usize, to: usize| {
                    packet[from..to].iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
                };
                arrived.push((field(0, 4) as u32, field(4, 12), nanos(stamp)));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(arrived),
            Err(e) => return Err(e),
        }
    }
}

fn open(ip: &str, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((ip, port))?;
    // Room for packets that arrive while the reader is delayed. Without CAP_NET_ADMIN the call
    // fails, and the buffer keeps its default size.
    let _ = set_socket_recv_buffer_size_force(&socket, 64 << 20);
    Ok(socket)
}

fn nanos(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
