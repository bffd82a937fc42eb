//! Forged TCP segments, as a machine on the path could send them: their sources are the ends of a
//! fake-TCP connection.
//!
//! ```text
//!   gwa ◀── "from gwb" ── middlebox ── "from gwa" ──▶ gwb
//!                            ┊ tap on `east`: the numbers that both ends expect
//! ```

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use viaduct_proto::fake_tcp::{Kind, parse};
use viaduct_proto::rng::Rng;
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::capture::ring::{Ring, RingConfig};
use viaduct_sys::socket::mmsg::Outbox;

use crate::flood::segment;
use crate::stop;
use crate::topology::Middlebox;

/// Port at which the gateways listen.
const PORT: u16 = 7400;
const GATEWAY_A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of gateway A as translated by the middlebox, which keeps its port.
const TRANSLATED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const GATEWAY_B: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const RING: RingConfig = RingConfig { max_packet: 1500, bytes: 8 << 20 };
const TICK: Duration = Duration::from_millis(1);

/// Flag of the end of a direction's data.
pub const FIN: u8 = 0x01;
/// Flag of a connection's first segment.
pub const SYN: u8 = 0x02;
/// Flag of a reset.
pub const RST: u8 = 0x04;
/// Flag of data; forged segments with it have a payload.
pub const PSH: u8 = 0x08;
/// Flag of an acknowledgement.
pub const ACK: u8 = 0x10;

/// Segments to forge, half of them to each gateway.
#[derive(Clone, Copy, Debug)]
pub struct Forgery<'a> {
    /// Number of segments.
    pub count: u64,
    /// Segments per second.
    pub rate: u64,
    /// Flags of the segments, in turn.
    pub flags: &'a [u8],
    /// True if every second segment with the same flags has the sequence and acknowledgement
    /// numbers that the receiver expects. All others have random numbers, and so have all segments
    /// until the connection has carried data in their direction.
    pub knows_numbers: bool,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Forgery<'_> {
    /// Sends the segments from the middlebox. Their source addresses are those of the ends of the
    /// connection that gateway A has opened from `port`. Fails if the process may not send them, or
    /// on Ctrl-C.
    pub fn send(&self, middlebox: &Middlebox, port: u16) -> Result<()> {
        middlebox.node.netns().enter(|| {
            let ring = Ring::open("east", RING)?;
            let (raw, outbox) = (RawSockets::open()?, Outbox::default());
            let expected = [None; 2];
            Forger { ring, raw, outbox, expected, rng: Rng::from_seed(self.seed) }.run(self, port)
        })?
    }
}

struct Forger {
    ring: Ring,
    raw: RawSockets,
    outbox: Outbox,
    /// Next sequence and acknowledgement numbers of the segments to each gateway: A, B.
    expected: [Option<(u32, u32)>; 2],
    rng: Rng,
}

impl Forger {
    fn run(mut self, forgery: &Forgery<'_>, port: u16) -> Result<()> {
        let (mut sent, begun) = (0, Instant::now());
        while sent < forgery.count {
            stop::check()?;
            self.observe();
            let due = (begun.elapsed().as_secs_f64() * forgery.rate as f64) as u64;
            while sent < due.min(forgery.count) && !self.outbox.is_full() {
                self.forge(forgery, sent, port);
                sent += 1;
            }
            self.outbox.flush(self.raw.socket(true).context("no raw socket of IPv4")?);
            if sent >= due {
                thread::sleep(TICK);
            }
        }
        Ok(())
    }

    /// Reads the sequence and acknowledgement numbers of the connection's own segments.
    fn observe(&mut self) {
        while let Some(frame) = self.ring.next() {
            let Some((segment, _)) = parse(&frame) else { continue };
            // The tap also sees the forged segments. Those without PSH carry no data and
            // are skipped.
            if segment.kind == Kind::Data && segment.length > 0 {
                let to_b = segment.destination.port() == PORT;
                let next = segment.seq.wrapping_add(segment.length);
                self.expected[usize::from(to_b)] = Some((next, segment.ack));
            }
        }
    }

    fn forge(&mut self, forgery: &Forgery<'_>, number: u64, port: u16) {
        let to_b = number % 2 == 1;
        let (from, to) = match to_b {
            true => ((TRANSLATED, port), (GATEWAY_B, PORT)),
            false => ((GATEWAY_B, PORT), (GATEWAY_A, port)),
        };
        let ends = [from, to].map(|(ip, port)| SocketAddrV4::new(ip, port));
        let turn = number as usize / 2;
        let flags = forgery.flags[turn % forgery.flags.len()];
        let random = self.rng.next_u64();
        let expected = self.expected[usize::from(to_b)];
        let is_right = forgery.knows_numbers && (turn / forgery.flags.len()) % 2 == 1;
        let random = ((random >> 32) as u32, random as u32);
        let numbers = expected.filter(|_| is_right).unwrap_or(random);
        let payload = if flags & PSH == 0 { &b""[..] } else { b"forged" };
        let packet = segment((ends[0], ends[1]), numbers, flags, (&[], payload));
        self.outbox.push(&packet, ends[1].into(), None);
    }
}
