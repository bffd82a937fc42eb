//! Numbered datagrams between many pairs of addresses, so that every lane of two gateways carries
//! some.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use viaduct_proto::repair::lanes::{LaneCount, lane_hash};
use viaduct_proto::wire::ip::Header;

use crate::topology::Host;
use crate::world::World;

/// Number of addresses of each host. Each address of a1 sends to each address of b1.
const ADDRESSES: u8 = 8;
const PORT: u16 = 5_000;
/// Interval of the datagrams of all pairs together.
const INTERVAL: Duration = Duration::from_micros(500);
/// Payload of a datagram in bytes.
const LENGTH: usize = 300;
/// Maximum share of datagrams that arrive twice: on a busy machine, a gateway may read a repair
/// before a packet that the repair covers.
const MAX_TWICE: f64 = 0.01;
/// Time without a datagram after which reception ends.
const REST: Duration = Duration::from_millis(700);

/// Pairs of addresses of the hosts a1 and b1.
#[derive(Debug)]
pub struct Pairs {
    from: Host,
    to: Host,
}

/// Datagram of a stream.
#[derive(Clone, Copy, Debug)]
pub struct PairDatagram {
    /// Send time.
    pub at: Instant,
    /// Number of the lane, 0 to 15.
    pub lane: u8,
    /// True if the datagram has arrived.
    pub has_arrived: bool,
}

/// Returns the share of datagrams that have not arrived; 0 if there are no datagrams.
pub fn lost_share<'a>(datagrams: impl IntoIterator<Item = &'a PairDatagram>) -> f64 {
    let (mut all, mut lost) = (0_u32, 0_u32);
    for datagram in datagrams {
        all += 1;
        lost += u32::from(!datagram.has_arrived);
    }
    f64::from(lost) / f64::from(all.max(1))
}

impl Pairs {
    /// Adds the addresses to the hosts.
    ///
    /// # Errors
    /// If `ip` fails.
    pub fn new(world: &World) -> Result<Pairs> {
        for (host, site) in [(world.a1(), 1), (world.b1(), 2)] {
            for n in 0..ADDRESSES {
                let at = format!("{}/24", address(site, n));
                host.run("ip", &["addr", "add", &at, "dev", "eth0"])?;
            }
        }
        Ok(Pairs { from: world.a1().clone(), to: world.b1().clone() })
    }

    /// Sends datagrams for `time`, and waits for the last ones.
    ///
    /// # Errors
    /// If a socket fails, a datagram has arrived with a wrong byte, or more than
    /// [`MAX_TWICE`] have arrived twice.
    pub fn stream(&self, time: Duration) -> Result<Vec<PairDatagram>> {
        let receiver = self.to.udp_socket(PORT)?;
        receiver.set_read_timeout(Some(REST))?;
        let bind = |n| UdpSocket::bind((address(1, n), 0));
        let senders: io::Result<Vec<_>> =
            self.from.netns().enter(|| (0..ADDRESSES).map(bind).collect())?;
        let senders = senders?;
        let arriving = thread::spawn(move || arrivals(&receiver));
        let (begun, mut sent) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let number = sent.len() as u32;
            let (from, to) = (number as u8 % ADDRESSES, (number / u32::from(ADDRESSES)) as u8);
            let (own, to) = (address(1, from), address(2, to % ADDRESSES));
            senders[usize::from(from)].send_to(&datagram(number), (to, PORT))?;
            let lane = lane(own, to);
            sent.push(PairDatagram { at: Instant::now(), lane, has_arrived: false });
            thread::sleep((INTERVAL * sent.len() as u32).saturating_sub(begun.elapsed()));
        }
        let arrived = arriving.join().ok().context("the receiver panicked")??;
        for number in arrived {
            sent.get_mut(number as usize).context("a datagram of another stream")?.has_arrived =
                true;
        }
        Ok(sent)
    }
}

fn arrivals(receiver: &UdpSocket) -> Result<HashSet<u32>> {
    let (mut arrived, mut twice, mut buffer) = (HashSet::new(), 0_u32, [0; 2_000]);
    while let Ok(length) = receiver.recv(&mut buffer) {
        let number = u32::from_be_bytes(*buffer.first_chunk().context("a short datagram")?);
        ensure!(buffer[..length] == datagram(number), "datagram {number} has a wrong byte");
        twice += u32::from(!arrived.insert(number));
    }
    let share = f64::from(twice) / arrived.len().max(1) as f64;
    ensure!(share <= MAX_TWICE, "{twice} of {} datagrams have arrived twice", arrived.len());
    Ok(arrived)
}

fn datagram(number: u32) -> [u8; LENGTH] {
    let mut datagram = [number as u8; LENGTH];
    datagram[..4].copy_from_slice(&number.to_be_bytes());
    datagram
}

fn address(site: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, site, 1, 10 + n)
}

fn lane(from: Ipv4Addr, to: Ipv4Addr) -> u8 {
    let [source, destination] = [from, to].map(IpAddr::from);
    let header = Header { source, destination, protocol: 17, header_len: 20, total_len: 328 };
    LaneCount::new(16).map_or(0, |lanes| lanes.lane(lane_hash(&header)))
}
